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


def test_a_tree_gives_its_ended_paths_and_counts_each_step_once() -> None:
    def node(path: list[int], value: float | None, status: str, times: int = 1) -> dict[str, Any]:
        own = {"text": f"step {path}", "status": status, "tokens": 4, "end": "delimiter", "count": times}
        return {"id": path, "reward": 0.5, "logprob": -1.0, "value": value, **own}

    nodes = [
        node([0], 0.5, "open"),
        node([0, 0], 1.0, "terminal", times=3),
        node([0, 1], -1.0, "terminal"),
        node([1], None, "open"),
    ]
    tree = {"format": 1, "problem": "p?", "answer": "2", "level": None, "unique_id": "u", "strategy": "beam-4"}
    tree |= {"seed": 5, "accuracy": 0.75, "nodes": nodes, "examples": []}
    assert parsed(tree) == [
        LabelledSolution(7, "p?", ("step [0]", "step [0, 0]"), (True, True), -1, True, times=3),
        LabelledSolution(7, "p?", ("step [0]", "step [0, 1]"), (None, False), 1, False),
    ]
    del nodes[0]
    assert parse_solutions(Record(7, tree)) == BadLine(7, "nodes: the tree has no node (0,)")


@pytest.mark.parametrize(
    ("fields", "labels", "first_mistake", "right"),
    [
        ({"question": "q?", "steps": ["a", "b"], "correct": True}, (None, None), None, True),
        ({"problem": "q?", "steps": ["a", "b"], "labels": [True, False]}, (True, False), 1, None),
        ({"prompt": "q?", "completions": ["a", "b"], "labels": [True, True]}, (True, True), -1, None),
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
    ("fields", "reason"),
    [
        ({"problem": "q?", "answer": "2"}, "none of the forms that are read: 'problem', 'steps' and 'label'"),
        (PROCESS_BENCH | {"label": 3}, "label must be -1 or the index of one of the 3 steps, not 3"),
        (PROCESS_BENCH | {"label": True}, "label: Input should be a valid integer"),
        (PROCESS_BENCH | {"steps": ["a", 2]}, "steps.1: Input should be a valid string"),
        (PROCESS_BENCH | {"steps": []}, "steps: List should have at least 1 item"),
        (PROCESS_BENCH | {"problem": ""}, "problem: String should have at least 1 character"),
        (prm800k(rated(2)), "label.steps.0.completions.0.rating: Input should be -1, 0 or 1"),
        (prm800k(rated(chosen=None)), "label.steps: no step has a completion"),
        ({"question": "q?", "steps": ["a"]}, "'correct' or 'labels' must be there"),
        ({"question": "q?", "steps": ["a"], "labels": []}, "labels must be 1, one for each step, not 0"),
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
