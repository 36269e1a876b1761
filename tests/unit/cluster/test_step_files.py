"""Files of labelled solutions: the form of a line is told by its fields, and a bad line is named with its fault."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.evaluation.problem_files import BadLine, OnBadLine, ProblemFileError, Record
from cluster.evaluation.step_files import LabelledSolution, parse_solutions, read_solutions

PROCESS_BENCH: dict[str, Any] = {
    "id": "gsm8k-0",
    "generator": "Qwen2-7B-Instruct",
    "problem": "1 + 1 + 1?",
    "steps": ["1 + 1 = 2", "2 + 1 = 4", "The answer is 4"],
    "final_answer_correct": False,
    "label": 1,
}


def rated(*ratings: int | None, chosen: int | None = 0, own: Any = None) -> dict[str, Any]:
    """A step of PRM800K with one completion for each rating."""
    completions = [{"text": f"step rated {rating}", "rating": rating, "flagged": None} for rating in ratings]
    return {"completions": completions, "human_completion": own, "chosen_completion": chosen}


def prm800k(*steps: dict[str, Any], finish_reason: str = "solution") -> dict[str, Any]:
    question = {"problem": "gcd?", "ground_truth_answer": "1"}
    return {"labeler": "x", "question": question, "label": {"steps": [*steps], "finish_reason": finish_reason}}


def parsed(fields: dict[str, Any]) -> list[LabelledSolution]:
    found = parse_solutions(Record(7, json.loads(json.dumps(fields))))
    assert not isinstance(found, BadLine), found
    return found


def test_process_bench_says_nothing_of_the_steps_after_the_first_mistake() -> None:
    [found] = parsed(PROCESS_BENCH)
    steps = ("1 + 1 = 2", "2 + 1 = 4", "The answer is 4")
    assert found == LabelledSolution(7, "1 + 1 + 1?", steps, (True, False, None), 1, False)
    [correct] = parsed(PROCESS_BENCH | {"label": -1, "final_answer_correct": True})
    assert (correct.labels, correct.first_mistake, correct.right) == ((True, True, True), -1, True)


def test_prm800k_follows_the_labellers_choices() -> None:
    last = rated(-1, 0, chosen=None)
    [wrong] = parsed(prm800k(rated(1), rated(-1, 0, chosen=1), last, finish_reason="found_error"))
    assert wrong.problem == "gcd?"
    assert wrong.steps == ("step rated 1", "step rated 0", "step rated -1")
    assert (wrong.labels, wrong.first_mistake, wrong.right) == ((True, True, False), 2, False)
    own = rated(-1, chosen=None, own={"text": "my own", "rating": None})
    [right] = parsed(prm800k(rated(None), own, rated(1)))
    assert right.steps == ("step rated None", "my own", "step rated 1")
    assert (right.labels, right.first_mistake, right.right) == ((None, True, True), None, True)
    [gave_up] = parsed(prm800k(rated(1), rated(chosen=None), finish_reason="give_up"))
    assert (gave_up.steps, gave_up.right) == (("step rated 1",), None)


def test_numbers_of_tables_with_gaps_are_numbers() -> None:
    [found] = parsed(PROCESS_BENCH | {"label": 1.0, "final_answer_correct": 0.0})
    assert (found.labels, found.right) == ((True, False, None), False)
    step = rated(1, -1, chosen=1)
    step["chosen_completion"] = 1.0
    step["completions"][1]["rating"] = -1.0
    [found] = parsed(prm800k(step))
    assert (found.steps, found.labels) == (("step rated -1",), (False,))


def shepherd(text: str, *signs: str) -> dict[str, str]:
    """A line of Math-Shepherd with these labels."""
    texts = text.split("ки")
    label = "".join(part + sign for part, sign in zip(texts, [*signs, ""], strict=True))
    return {"input": text, "label": label, "task": "GSM8K"}


@pytest.mark.parametrize(
    ("line", "problem", "steps", "labels"),
    [
        (
            shepherd("How many? Step 1: Two + two. ки\nStep 2: That is 4. The answer is: 4 ки", "+", "-"),
            "How many?",
            ("Two + two.", "That is 4. The answer is: 4"),
            (True, False),
        ),
        (shepherd("Why -?\nStep 1: a-b+c ки", "+"), "Why -?", ("a-b+c",), (True,)),
        (
            shepherd("Do Step 1: go. How far? Step 1: a ки\nStep 2: bки", "+", "+"),
            "Do Step 1: go. How far?",
            ("a", "b"),
            (True, True),
        ),
        (shepherd("q? step 1: a\n\nb ки\nc ки", "+", "-"), "q?", ("a\n\nb", "c"), (True, False)),
        (shepherd("q? Step 1: a ки\nStep 2: b", "+"), "q?", ("a", "b"), (True, None)),
        (shepherd("A mistake ки of theirs? Step 1: a ки", "-", "+"), "A mistake  of theirs?", ("a",), (True,)),
    ],
)
def test_math_shepherds_own_file(
    line: dict[str, str], problem: str, steps: tuple[str, ...], labels: tuple[bool | None, ...]
) -> None:
    [found] = parsed(line)
    assert (found.problem, found.steps, found.labels, found.right) == (problem, steps, labels, None)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"input": "q? Step 1: a ки", "label": "q? Step 1: a ки"}, "label: must be the input with + or -"),
        ({"input": "q? Step 1: a ки", "label": "q? Step 1: a"}, "label: must be the input with + or -"),
        ({"input": "q? Step 1: a ки", "label": "q? Step 1: b +"}, "label: must be the input with + or -"),
        ({"input": "q? Step 1: a ки", "label": ["+"]}, "label: Input should be a valid string"),
        (shepherd("q? a ки", "+"), "input: there must be a question and then 'Step 1:'"),
        (shepherd("Step 1: a ки", "+"), "input: there must be a question and then 'Step 1:'"),
        (shepherd("q? Step 1: a"), "input: there is no ки"),
        ({"input": "q? Step 1: a ки\nb", "label": "q? Step 1: a +\nc"}, "label: must be the input with + or -"),
        (shepherd("q? Step 1: a ки\nStep 2: ки", "+", "-"), "input: step 2 is empty"),
    ],
)
def test_texts_of_math_shepherd_that_do_not_fit_are_refused(fields: dict[str, Any], reason: str) -> None:
    found = parse_solutions(Record(7, fields))
    assert isinstance(found, BadLine)
    assert found.reason.startswith(reason)


def tree(*nodes: dict[str, Any]) -> dict[str, Any]:
    """A line of an export."""
    known = {"format": 1, "problem": "p?", "answer": "2", "level": None, "unique_id": "u", "strategy": "beam-4"}
    return known | {"seed": 5, "accuracy": 0.75, "nodes": nodes, "examples": []}


def node(path: list[int], value: float | None, status: str = "open", times: int = 1, text: str = "") -> dict[str, Any]:
    own = {"text": text or f"step {path}", "status": status, "tokens": 4, "end": "delimiter", "count": times}
    return {"id": path, "reward": 0.5, "logprob": -1.0, "value": value, **own}


def test_a_tree_gives_its_ended_paths_and_counts_each_step_once() -> None:
    ends = node([0, 0], 1.0, "terminal", times=3), node([0, 1], -1.0, "terminal")
    assert parsed(tree(node([0], 0.5), *ends, node([1], None))) == [
        LabelledSolution(7, "p?", ("step [0]", "step [0, 0]"), (True, True), -1, True, times=3),
        LabelledSolution(7, "p?", ("step [0]", "step [0, 1]"), (None, False), 1, False),
    ]
    assert parse_solutions(Record(7, tree(*ends))) == BadLine(7, "nodes: the tree has no node (0,)")


@pytest.mark.parametrize(("solutions", "label", "first_mistake"), [(7, None, None), (8, False, 0)])
def test_a_step_of_a_tree_is_wrong_if_enough_solutions_go_on_from_it_and_all_are_wrong(
    solutions: int, label: bool | None, first_mistake: int | None
) -> None:
    ends = node([0, 0], -1.0, "terminal", times=3), node([0, 1], -1.0, "terminal", times=solutions - 3)
    first, second = parsed(tree(node([0], -1.0), *ends))
    assert (first.labels, second.labels) == ((label, False), (None, False))
    assert first.first_mistake == second.first_mistake == first_mistake


def test_solutions_of_a_tree_that_begin_with_the_same_text_share_these_steps() -> None:
    begins = node([0], 1.0, text="same"), node([1], -1.0, text="same")
    ends = node([0, 0], 1.0, "terminal"), node([1, 0], -1.0, "terminal")
    right, wrong = parsed(tree(*begins, *ends))
    assert (right.labels, wrong.labels) == ((True, True), (None, False))
    assert (right.first_mistake, wrong.first_mistake) == (-1, 1)


@pytest.mark.parametrize(
    ("fields", "labels", "first_mistake", "right"),
    [
        ({"question": "q?", "steps": ["a", "b"], "correct": True}, (None, None), None, True),
        ({"problem": "q?", "steps": ["a", "b"], "labels": [True, False]}, (True, False), 1, None),
        ({"prompt": "q?", "completions": ["a", "b"], "labels": [True, True]}, (True, True), -1, None),
        ({"prompt": "q?", "completions": ["a", "b"], "labels": [1, 0]}, (True, False), 1, None),
        ({"prompt": "q?", "completions": ["a", "b"], "labels": [1.0, 0.0]}, (True, False), 1, None),
        ({"prompt": "q?", "completions": ["a", "b"], "labels": ["+", "-"]}, (True, False), 1, None),
        ({"prompt": "q?", "completions": ["a", "b"], "labels": [0, None]}, (False, None), 0, None),
        ({"question": "q?", "steps": ["a", "b"], "correct": 1}, (None, None), None, True),
        ({"question": "q?", "steps": ["a", "b"], "correct": 0.0}, (None, None), None, False),
        (
            {"question": "q?", "steps": ["a", "b"], "labels": [None, False], "correct": False},
            (None, False),
            None,
            False,
        ),
    ],
)
def test_plain_solutions(
    fields: dict[str, Any], labels: tuple[bool | None, ...], first_mistake: int | None, right: bool | None
) -> None:
    assert parsed(fields) == [LabelledSolution(7, "q?", ("a", "b"), labels, first_mistake, right)]


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "q? Step 1: a ки", "value": [0.7]},
        {"input": "q? Step 1: a ки", "value": ["+"]},
        {"prompt": "q?", "completion": "a", "label": True},
        {"conversations": [{"role": "user", "content": "q? a"}, {"role": "assistant", "content": "+"}]},
        {"instruction": "q?", "responses": ["a"], "next_response": "b", "rating": 1},
        {"question": "q?", "process": ["a"], "error_steps": [1]},
    ],
)
def test_a_form_that_is_not_read_is_refused_with_those_that_are_and_the_fields_of_the_line(
    fields: dict[str, Any],
) -> None:
    found = parse_solutions(Record(7, fields))
    assert isinstance(found, BadLine)
    assert found.reason.startswith("unknown format. Known are: ")
    assert "(Math-Shepherd)" in found.reason
    assert found.reason.endswith("this line has " + ", ".join(map(repr, fields)))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"problem": "q?", "answer": "2"}, "unknown format. Known are: 'problem', 'steps' and 'label'"),
        (
            {"prompt": "q?", "completions": ["a", "b"], "labels": [0.9, 0.4]},
            "labels.0: must be true or false, 1 or 0, or + or -",
        ),
        ({"prompt": "q?", "completions": ["a", "b"], "labels": [1, -1]}, "labels.1: must be true or false"),
        ({"prompt": "q?", "completions": ["a", "b"], "labels": ["good", "bad"]}, "labels.0: must be true or false"),
        ({"prompt": "q?", "completions": ["a", "b"], "labels": "+-"}, "labels: Input should be a valid list"),
        ({"question": "q?", "steps": ["a"], "correct": "yes"}, "correct: must be true or false"),
        (PROCESS_BENCH | {"final_answer_correct": 2}, "final_answer_correct: must be true or false"),
        (PROCESS_BENCH | {"label": 1.5}, "label: Input should be a valid integer"),
        (PROCESS_BENCH | {"label": "1"}, "label: Input should be a valid integer"),
        (PROCESS_BENCH | {"label": 3}, "label must be -1 or the index of one of the 3 steps, not 3"),
        (PROCESS_BENCH | {"label": True}, "label: Input should be a valid integer"),
        (PROCESS_BENCH | {"steps": ["a", 2]}, "steps.1: Input should be a valid string"),
        (PROCESS_BENCH | {"steps": []}, "steps: List should have at least 1 item"),
        (PROCESS_BENCH | {"problem": ""}, "problem: String should have at least 1 character"),
        (prm800k(rated(2)), "label.steps.0.completions.0.rating: Input should be -1, 0 or 1"),
        (prm800k(rated(chosen=None)), "label.steps: no step has a completion"),
        ({"question": "q?", "steps": ["a"]}, "'correct' or 'labels' is missing"),
        ({"question": "q?", "steps": ["a"], "labels": []}, "there must be 1 labels, one for each step, not 0"),
        ({"steps": ["a"], "correct": True}, "question: Field required"),
        ({"format": 2, "nodes": []}, "format: Input should be 1"),
    ],
)
def test_a_bad_line_is_named_with_its_fault(fields: dict[str, Any], reason: str) -> None:
    found = parse_solutions(Record(7, fields))
    assert isinstance(found, BadLine)
    assert found.number == 7
    assert found.reason.startswith(reason)


def test_bad_lines_are_refused_or_skipped(tmp_path: Path) -> None:
    path = tmp_path / "solutions.jsonl"
    path.write_text("\n".join(map(json.dumps, [PROCESS_BENCH, {"problem": "q?"}, PROCESS_BENCH | {"label": -1}])))
    with pytest.raises(ProblemFileError, match="1 bad line") as refused:
        read_solutions(path)
    assert refused.value.bad_lines[0].number == 2
    file = read_solutions(path, OnBadLine.SKIP)
    assert [each.line for each in file.solutions] == [1, 3]
    assert [each.number for each in file.skipped] == [2]
    assert [each.line for each in read_solutions(path, OnBadLine.SKIP, limit=1).solutions] == [1]
    path.write_text("\n")
    with pytest.raises(ProblemFileError, match="no solutions"):
        read_solutions(path)
