"""What a reward model is trained on: solutions out of files, their labels, and which problems are held out."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from endpoint_stand_in import tree_of
from test_training_file import line

from cluster.evaluation.problem_files import ProblemFileError
from cluster.training import solutions as reader
from cluster.training.errors import TrainingError
from cluster.training.labels import prefix_shares, split_problems
from cluster.training.solutions import InputForm, Solution, SolvedProblem, form_of, read_solved


def written(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def sampled(question: str, steps: list[str], correct: bool) -> dict[str, Any]:
    return {"question": question, "steps": steps, "correct": correct}


def test_the_label_of_a_prefix_is_the_share_of_right_ends_below_it() -> None:
    shares = prefix_shares(["ab", "ac", "ac", "d"], [True, False, False, True], [2, 1, 1, 3])
    assert shares == [[0.5, 1.0], [0.5, 0.0], [0.5, 0.0], [1.0]]


def test_a_label_does_not_depend_on_what_follows_the_same_steps_of_another_problem() -> None:
    assert prefix_shares([["x"], ["x", "y"]], [True, False], [1, 1]) == [[0.5], [0.5, 0.0]]


def test_solutions_of_a_problem_are_collected_from_the_whole_file(tmp_path: Path) -> None:
    path = written(
        tmp_path / "pool.jsonl",
        sampled("q", ["a\n\n", " b"], True),
        sampled("other", ["c"], False),
        {"problem": "q", "steps": ["a", "b"], "correct": 1, "sample": 3},
        sampled("q", ["a", " \n"], False),
        sampled("q", ["\n"], False),
    )
    assert asyncio.run(read_solved(path)) == [
        SolvedProblem("q", [Solution(("a", "b"), True, 2), Solution(("a",), False)]),
        SolvedProblem("other", [Solution(("c",), False)]),
    ]


def test_every_ended_path_of_a_tree_is_a_solution(tmp_path: Path) -> None:
    exported = json.loads(line("0.5", "3", None).model_dump_json())
    fields = ("problem", "strategy", "seed", "level")
    result = {name: exported[name] for name in fields} | {
        "problem_id": exported["unique_id"],
        "expected": exported["answer"],
        "tree": tree_of("0.5", "3", None),
    }
    first = "1 + 1 = 2"
    expected = [
        SolvedProblem(
            "what is a half?",
            [
                Solution((first, "\\boxed{0.5}"), True),
                Solution((first, "\\boxed{3}"), False),
                Solution((first, "I do not know"), False),
            ],
        )
    ]
    assert asyncio.run(read_solved(written(tmp_path / "export.jsonl", exported))) == expected
    assert asyncio.run(read_solved(written(tmp_path / "results.jsonl", result))) == expected


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"question": "q", "steps": [], "correct": True}, "steps: "),
        ({"question": "", "steps": ["a"], "correct": True}, "question: "),
        ({"question": "q", "steps": ["a"], "correct": "yes"}, "correct: "),
        ({"question": "q", "steps": ["a", 7], "correct": True}, "steps.1: "),
        ({"question": "q", "correct": True}, "no 'steps', which the lines before it have"),
        (["a"], "must be a JSON object, not a list"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_and_field(tmp_path: Path, wrong: Any, reason: str) -> None:
    path = written(tmp_path / "pool.jsonl", sampled("q", ["a"], True), wrong)
    with pytest.raises(ProblemFileError) as refused:
        asyncio.run(read_solved(path))
    assert [bad.number for bad in refused.value.bad_lines] == [2]
    assert refused.value.bad_lines[0].reason.startswith(reason)


def test_the_number_of_solutions_is_capped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_SOLUTIONS", 2)
    path = written(tmp_path / "pool.jsonl", *(sampled("q", [str(number)], True) for number in range(3)))
    with pytest.raises(ProblemFileError, match="more than 2 solutions"):
        asyncio.run(read_solved(path))


def test_the_form_is_told_by_the_first_line(tmp_path: Path) -> None:
    def form(fields: dict[str, Any]) -> InputForm:
        return form_of(written(tmp_path / "file.jsonl", fields))

    assert form({"problem": "q", "steps": ["a"], "correct": True}) is InputForm.SOLUTIONS
    assert form({"problem": "q", "nodes": []}) is InputForm.EXPORT
    assert form({"problem": "q", "tree": {}}) is InputForm.RESULTS
    assert form({"question": "q", "answer": "#### 2"}) is InputForm.PROBLEMS
    with pytest.raises(ProblemFileError, match="cannot read"):
        form_of(tmp_path / "missing.jsonl")


def solved(number: int, rights: tuple[bool, ...] = (True, False)) -> list[SolvedProblem]:
    return [SolvedProblem(f"q{i}", [Solution((f"s{right}",), right) for right in rights]) for i in range(number)]


def test_problems_are_held_out_whole_and_by_the_seed() -> None:
    problems = solved(100)
    split = split_problems(problems, 0.2, seed=1)
    assert [len(part) for part in split] == [70, 10, 20]
    assert sorted(each.question for part in split for each in part) == sorted(each.question for each in problems)
    assert split == split_problems(problems[::-1], 0.2, seed=1)
    assert split != split_problems(problems, 0.2, seed=2)


def test_too_little_to_learn_from_is_refused() -> None:
    with pytest.raises(TrainingError, match="problems with a solution: 9; at least 10"):
        split_problems(solved(9), 0.2, seed=0)
    with pytest.raises(TrainingError, match="all solutions to train on are wrong"):
        split_problems(solved(20, (False,)), 0.2, seed=0)
