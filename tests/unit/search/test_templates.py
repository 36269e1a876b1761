"""Templates: what a model that reads solutions is shown, and the number that it answers with."""

from typing import Any

import pytest
from pydantic import ValidationError

from search.templates import CONVERSATION, TEMPLATES, Template, composed

SHORT = Template(prompt="Q: {question}\n{candidates}\n\n{note} Go.", candidate="{number}) {text}", separator="\n")


def test_a_prompt_shows_the_question_and_the_solutions_in_their_order() -> None:
    assert SHORT.text("Why?", ["because \n", "so"]) == "Q: Why?\n1) because\n2) so\n\nGo."
    assert SHORT.text("Why?", ["so"], "Checks: none.") == "Q: Why?\n1) so\n\nChecks: none. Go."


def test_a_prompt_can_say_how_many_solutions_it_shows_and_which_is_the_last() -> None:
    counted = SHORT.model_copy(update={"prompt": "{count}, the last is {last}: {question}{candidates}{note}"})
    assert counted.text("?", ["so", "no"]) == "2, the last is 2: ?1) so\n2) no"
    assert counted.model_copy(update={"first": 0}).text("?", ["so"]) == "1, the last is 0: ?0) so"


def test_readers_who_choose_are_told_the_numbers() -> None:
    """As in the published prompt. Untold, a small model often answers with the number of solutions."""
    text = TEMPLATES["select"].text("Why?", ["one", "two", "three"])
    assert "followed by 3 solutions" in text
    assert text.endswith("Judgment: [IDX]\nwhere IDX is the index 0-2 of the best solution.")


def test_placeholders_in_questions_and_solutions_stay_as_they_are() -> None:
    text = SHORT.text("Fill {note} and {candidates}", ["{question} {number}"], "{text}.")
    assert text == "Q: Fill {note} and {candidates}\n1) {question} {number}\n\n{text}. Go."


def test_only_the_question_of_a_chat_changes() -> None:
    system, question = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}
    assert composed([system, question], SHORT, ["so"]) == [
        system,
        {"role": "user", "content": "Q: Why?\n1) so\n\nGo."},
    ]


def test_a_chat_that_ends_in_a_tools_result_is_read_as_a_whole() -> None:
    chat = [{"role": "user", "content": "Why?"}, {"role": "tool", "content": "42", "tool_call_id": "1"}]
    *earlier, last = composed(chat, SHORT, ["so"])
    assert earlier == chat
    assert last == {"role": "user", "content": SHORT.text(CONVERSATION, ["so"])}


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_default_names_its_source_and_shows_its_solutions(name: str) -> None:
    template = TEMPLATES[name]
    text = template.text("Why?", ["first one", "second one"], "A check failed.")
    assert template.source
    assert text.index("Why?") < text.index("first one") < text.index("second one") < text.index("A check failed.\n\n")
    assert "{" not in text


@pytest.mark.parametrize(
    ("reply", "chosen"),
    [
        ("Solution 1 errs.\nJudgment: [2]", 2),
        ("**Judgment:** 0", 0),
        (r"judgment: \boxed{1}", 1),
        ("Judgment: 0? No.\nJudgment: 1", 1),
        ("Judgment: [IDX]", None),
        ("Judgment: 3", None),
        ("The best is 2.", None),
        ("Judgment: 0\nJudgment: 12", None),
        ("Judgment: 1 would be tempting, but all are wrong.\nJudgment: none", None),
        ("Judgment: 1\nJudgment: [IDX]", None),
        ("Judgment: -1", None),
        ("Judgment: \u22121", None),
        ("Judgment - 1", None),
    ],
)
def test_a_choice_is_the_number_behind_its_last_mark(reply: str, chosen: int | None) -> None:
    assert TEMPLATES["select"].chosen(reply, 3) == chosen


def test_a_mark_may_be_bold() -> None:
    template = Template(prompt=PROMPT + "End with **Best:** number", candidate="{number} {text}", choice="**Best:**")
    assert [template.chosen(reply, 3) for reply in ("**Best:** 2", "Best: **2**", "best: 4")] == [1, 1, None]


def test_a_template_that_asks_for_no_number_chooses_none() -> None:
    assert TEMPLATES["fuse"].chosen("Judgment: 1", 3) is None


PROMPT = "{question} {candidates} {note}"


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"prompt": "{question} {note}"}, "must have {candidates} once, not 0 times"),
        ({"prompt": PROMPT + "{note}"}, "must have {note} once, not 2 times"),
        ({"prompt": PROMPT, "candidate": "{number}"}, "must have {text}"),
        ({"prompt": PROMPT, "candidate": "{number} {text}", "choice": "Best:"}, "does not ask for 'Best:'"),
        ({"prompt": PROMPT, "candidate": "{number} {text}", "choice": " "}, "choice: must be a text, not ' '"),
        ({"prompt": PROMPT + "**", "candidate": "{number} {text}", "choice": "**"}, "must be a text"),
        ({"prompt": PROMPT + "Best:", "candidate": "{text}", "choice": "Best:"}, "must have {number}"),
    ],
)
def test_a_template_without_its_placeholders_is_refused(given: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault.replace("{", r"\{")):
        Template(**given)
