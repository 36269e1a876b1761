"""Grading of programs: the record's test runs in a process of its own, and only a whole run proves anything."""

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from endpoint_stand_in import Endpoint, tree_of
from typer.testing import CliRunner

from cluster.cli.main import app
from cluster.client.client import Client
from cluster.evaluation import code_test
from cluster.evaluation.code_test import GRADING_FIELDS, CodeMatcher, CodeTest, grading_slots
from cluster.evaluation.loop import Plan, evaluate
from cluster.evaluation.problem_files import BadLine, EvalProblem, ProblemFileError, Record, parse_problem
from cluster.evaluation.statistics import Row
from cluster.training.solutions import read_solved

TEST = CodeTest("import math\n", "assert f(1) == 2\nassert f(2) == 3\n")
MBPP = {
    "task_id": 2,
    "text": "Write a function to find the shared elements.",
    "test_list": ["assert set(shared((1, 2), (2, 3))) == {2}", "assert shared((), ()) == ()"],
    "test_setup_code": "import heapq",
}
DATA = Path(__file__).parents[1] / "humaneval" / "HumanEval.jsonl.gz"


@pytest.mark.parametrize(
    ("program", "passes"),
    [
        ("def f(x): return x + 1", True),
        ("def f(x): return x + math.floor(1.5)", True),
        ("import dataclasses, collections\nprint('x' * 10**6)\nf = lambda x: x + 1", True),
        ("def f(x): return 2", False),
        ("def f(x): return x +", False),
        ("import os\nos._exit(0)", False),
        ("import sys\nsys.exit(0)", False),
        ("import os\ndef f(x): return x + 1 + len({*os.environ} - {'LC_CTYPE'})", True),
        ("import socket\nsocket.socket()\ndef f(x): return x + 1", False),
        ("import subprocess\nsubprocess.run(['true'])\ndef f(x): return x + 1", False),
        ("import os\nos.fork()\ndef f(x): return x + 1", False),
        ("import os\nos.open('/etc/passwd', os.O_RDONLY)\ndef f(x): return x + 1", False),
        ("import pathlib\npathlib.Path(__import__('tempfile').mktemp()).write_text('')\ndef f(x): return x + 1", False),
        ("x = 'a' * (2 << 30)\ndef f(x): return x + 1", False),
    ],
)
async def test_a_program_passes_if_its_test_runs_to_the_end(program: str, passes: bool) -> None:
    assert await TEST.passes(program, grading_slots()) is passes


async def test_an_endless_program_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_test, "SECONDS", 0.3)
    assert not await TEST.passes("while True: pass", grading_slots())


async def test_solutions_of_human_eval_pass_and_broken_ones_do_not() -> None:
    records = [json.loads(line) for line in gzip.decompress(DATA.read_bytes()).splitlines()][::32]
    slots = grading_slots()
    for record in records:
        problem = parse_problem(Record(1, record))
        assert isinstance(problem, EvalProblem)
        assert (problem.unique_id, problem.problem) == (record["task_id"], record["prompt"])
        assert problem.test is not None
        assert record["test"] not in problem.problem
        assert await problem.test.passes(record["prompt"] + record["canonical_solution"], slots)
        assert not await problem.test.passes(record["prompt"] + "    return NotImplemented\n", slots)


async def test_a_record_of_mbpp_names_its_function_and_keeps_its_tests() -> None:
    problem = parse_problem(Record(1, MBPP))
    assert isinstance(problem, EvalProblem)
    assert problem.problem == f"{MBPP['text']}\nThe name of the function is `shared`."
    assert (problem.unique_id, problem.answer, problem.search) == ("2", "", {})
    assert problem.test is not None
    matcher = CodeMatcher(problem.test, grading_slots())
    answers = ["def shared(a, b): return tuple(set(a) & set(b))", "def shared(a, b): return a"]
    assert [await matcher.same("", answer) for answer in answers] == [True, False]
    assert await matcher.group([answers[0], answers[1], answers[0]]) == [[0, 2], [1]]


@pytest.mark.parametrize(
    ("given", "checks"),
    [
        (["assert shared((), ()) == ()"], ("assert shared((), ()) == ()",)),
        ([{"input": "f(1)", "output": "2"}], ({"input": "f(1)", "output": "2"},)),
        ("assert shared((), ()) == ()", ("assert shared((), ()) == ()",)),
        (["assert"], None),
        (None, None),
        (7, None),
    ],
)
def test_checks_come_from_the_field_that_the_caller_names(given: Any, checks: tuple[Any, ...] | None) -> None:
    problem = parse_problem(Record(3, MBPP | {"visible": given}), "visible")
    if checks is None:
        assert isinstance(problem, BadLine)
        assert problem.reason.startswith("'visible' has no checks: 0")
    else:
        assert isinstance(problem, EvalProblem)
        assert problem.search == {"checks": list(checks)}


@pytest.mark.parametrize("command", [["eval", "--strategy", "greedy", "--problems"], ["batch"]])
def test_a_field_that_grades_gives_no_checks(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "mbpp.jsonl"
    file.write_text(json.dumps(MBPP))
    output = [] if command[0] == "eval" else [str(tmp_path / "out.jsonl")]
    for field in sorted(GRADING_FIELDS):
        refused = CliRunner().invoke(app, [*command, str(file), *output, "--checks-field", field])
        assert refused.exit_code == 2
        assert f"--checks-field {field}: this field grades" in refused.output


def test_a_batch_grades_every_path_and_its_results_train_nothing(endpoint: Endpoint, tmp_path: Path) -> None:
    right, wrong = "def shared(a, b):\n    return tuple(set(a) & set(b))\n", "def shared(a, b):\n    return a\n"
    tree = tree_of(None, None)
    question = f"{MBPP['text']}\nThe name of the function is `shared`."
    for node, program in zip(tree["nodes"][1:], (right, wrong), strict=True):
        node["text"] = f"```python\n{program}```"
    endpoint.trees[question] = tree
    endpoint.texts[question] = tree["nodes"][1]["text"]
    given, output = tmp_path / "mbpp.jsonl", tmp_path / "out.jsonl"
    given.write_text(json.dumps(MBPP | {"visible": ["assert shared((), ()) == ()"]}))
    options = ["--url", endpoint.url, "--strategy", "best_of_n", "--checks-field", "visible", "--trees"]
    exported = tmp_path / "trees.jsonl"
    done = CliRunner().invoke(app, ["batch", str(given), str(output), *options, "--export", str(exported)])
    assert endpoint.requests[0]["search"]["checks"] == ["assert shared((), ()) == ()"]
    line = json.loads(output.read_text())
    assert (line["answer"], line["right"], line["expected"]) == (right, True, "")
    assert [(path["answer"], path["right"], path["group"]) for path in line["paths"]] == [
        (right, True, 0),
        (wrong, False, 1),
    ]
    assert "training data is made of problems with an answer" in " ".join(done.output.split())
    assert not exported.exists()
    with pytest.raises(ProblemFileError) as refused:
        asyncio.run(read_solved(output))
    assert "graded by a test" in str(refused.value.bad_lines[0])


def test_an_evaluation_sends_the_checks_and_grades_the_program(endpoint: Endpoint) -> None:
    right, wrong = "def f(x):\n    return x + 1\n", "def f(x):\n    return x\n"
    problems = [
        EvalProblem(name, f"{name}?", "", None, TEST, ("assert f(1) == 2",)) for name in ("solved", "lost", "missed")
    ]
    endpoint.texts = {
        f"{name}?": f"```python\n{program}```"
        for name, program in {"solved": right, "lost": wrong, "missed": wrong}.items()
    }
    endpoint.answers = {"solved?": right, "lost?": wrong, "missed?": wrong}
    endpoint.others = {"lost?": [right]}
    rows: list[Row] = []

    async def go() -> None:
        async with Client(endpoint.url, timeout_s=10) as client:
            await evaluate(client.ask, problems, "best_of_n", Plan(), rows.append)

    asyncio.run(go())
    assert {body["search"]["checks"][0] for body in endpoint.requests} == {"assert f(1) == 2"}
    found = {row.problem_id: (row.answer, row.right, row.in_pool) for row in rows}
    assert found == {
        "solved": (right, True, True),
        "lost": (wrong, False, True),
        "missed": (wrong, False, False),
    }
