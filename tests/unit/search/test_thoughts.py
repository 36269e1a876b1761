"""Marks of thoughts: what stands between them is no answer."""

from typing import Any

import pytest

from search.answers.extraction import boxed_answer, extract_answer
from search.answers.thoughts import open_thought, outside_thoughts, without_thoughts


def marked(opening: str, closing: str) -> list[Any]:
    return [pytest.param(opening, closing, id=opening.strip() or closing.strip())]


MARKS = [
    *marked("<think>", "</think>"),
    *marked("<Thinking>", "</Thinking>"),
    *marked("<think >", "</think >"),
    *marked("<think\n>", "</ think>"),
    *marked('<thinking type="deep" n=3>', "</thinking>"),
    *marked("<thought>", "</thought>"),
    *marked("<thought_process>", "</thought_process>"),
    *marked("<chain_of_thought>", "</chain_of_thought>"),
    *marked("<antThinking>", "</antThinking>"),
    *marked("<seed:think>", "</seed:think>"),
    *marked("<mm:think>", "</mm:think>"),
    *marked("<ifm|think_fast>", "</ifm|think_fast>"),
    *marked("<think:opensource>", "</think:opensource>"),
    *marked("<longcat_think>", "</longcat_think>"),
    *marked("<思考>", "</思考>"),
    *marked("[THINK]", "[/THINK]"),
    *marked("◁think▷", "◁/think▷"),
    *marked("<|START_THINKING|>", "<|END_THINKING|>"),
    *marked("<|begin_of_thought|>", "<|end_of_thought|>"),
    *marked("<|think_start|>", "<|think_end|>"),
    *marked("<|thinking|>", "<|/thinking|>"),
    *marked("<｜thinking｜>", "<｜/thinking｜>"),
    *marked("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    *marked("<reasoning>", "</reasoning>"),
    *marked("<scratchpad>", "</scratchpad>"),
    *marked("<reflection>", "</reflection>"),
    *marked("<inner_monologue>", "</inner_monologue>"),
    *marked("<analysis>", "</analysis>"),
    *marked("<unused94>thought\n", "<unused95>"),
    *marked("<|channel>thought\n", "<channel|>"),
    *marked("<|inner_prefix|>", "<|inner_suffix|>"),
    *marked("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    *marked("<|channel|>analysis <|message|>", "<|channel|>final<|message|>"),
    *marked("<|start|>assistant to=self<|message|>", "<|eom|><|start|>assistant to=user<|message|>"),
    *marked("<|message_model|><|content_thinking|>", "<|end_message|><|message_model|><|content_text|>"),
    *marked("<|im_start|>think\n", "<|im_start|>answer\n"),
    *marked("analysis", "assistantfinal"),
    *marked("Here is my thought process:\n", "\n\nHere is my response:\n"),
    *marked("Here's my thought process:", "Here's my response:"),
    *marked("Here are my reasoning steps:\n", "\n[BEGIN FINAL RESPONSE]\n"),
    *marked("## Thinking\n\n", "\n\n## Final Response\n\n"),
]
HEADINGS = ("Here", "analysis", "## ")
"""What begins marks that count at the beginning of a text alone."""


@pytest.mark.parametrize(("opening", "closing"), MARKS)
class TestMarks:
    def test_an_answer_in_a_thought_is_none(self, opening: str, closing: str) -> None:
        thought = f"{opening}So maybe \\boxed{{3}}. The answer is 3."
        assert extract_answer(thought) is None
        assert boxed_answer(thought) is None
        assert extract_answer(f"{thought}{closing}The answer is 9.") == "9"
        assert extract_answer(f"{thought}{closing}So it is \\boxed{{9}}.") == "9"
        assert extract_answer(f"{thought}{closing}I cannot tell.") is None

    def test_what_follows_is_read_behind_the_mark_that_is_open(self, opening: str, closing: str) -> None:
        mark = open_thought(f"{opening}So maybe 3.\n\n")
        assert mark
        assert open_thought(f"{mark}and so on,\n\n") == mark
        assert open_thought(f"{mark}and so on{closing}It is 9.") == ""
        assert extract_answer(f"{mark}then \\boxed{{3}}.{closing}The answer is 9.") == "9"
        assert boxed_answer(f"{mark}then \\boxed{{3}}.\n\n") is None

    def test_a_thought_behind_the_answer_is_none(self, opening: str, closing: str) -> None:
        if not opening.startswith(HEADINGS):
            assert extract_answer(f"The answer is 9.\n{opening}Or \\boxed{{3}}?") == "9"

    def test_everything_before_a_mark_that_closes_nothing_was_thought(self, opening: str, closing: str) -> None:
        if not opening.startswith(HEADINGS):
            assert extract_answer(f"So \\boxed{{3}}.{closing}The answer is 9.") == "9"


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("<think>a</think>b<think>c</think>d", "\nb\nd"),
        ("<think>I close with </think> later. \\boxed{3}</think>9", "9"),
        ("<think>Not [/think>, </reasoning> nor <answer>3</answer>", ""),
        ("<thinking>a <reflection>b</reflection> c</thinking>9", "\n9"),
        ("<think>a <think> b</think>9", "\n9"),
        ("<think>a</thinking>9", "\n9"),
        ("<think/>9", "<think/>9"),
        ("<no_think>9", "<no_think>9"),
        ("Let me think: a < think > b", "Let me think: a < think > b"),
        ("x[thinking about it](y)", "x[thinking about it](y)"),
        ("So, here is my thought process: 9", "So, here is my thought process: 9"),
        ("Analysis: 9", "Analysis: 9"),
        ("analysis of 9", "analysis of 9"),
        ("One.\n\n## Thinking\n\n9", "One.\n\n## Thinking\n\n9"),
        ("Here is my response: 9", "Here is my response: 9"),
        ("<|end|>9", "<|end|>9"),
        ("", ""),
    ],
)
def test_thoughts_and_what_only_looks_like_one(text: str, rest: str) -> None:
    assert without_thoughts(text) == rest
    spans = outside_thoughts(text)
    assert all(start <= end for start, end in spans)
    assert "\n".join(text[start:end] for start, end in spans) == rest
