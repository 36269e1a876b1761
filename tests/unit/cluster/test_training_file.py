"""Training data as a file: lines in the order of the problems; the file is complete or not there."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest
from endpoint_stand_in import Endpoint, tree_of

from cluster.client.client import Client
from cluster.evaluation.loop import Plan, evaluate
from cluster.evaluation.problem_files import EvalProblem
from cluster.evaluation.statistics import Row
from cluster.evaluation.training_file import TrainingFile, TrainingLine, training_line
from search.answers.equivalence import AnswerMatcher
from search.snapshot import TreeView

PROBLEM = EvalProblem("p/0", "what is a half?", "\\frac{1}{2}", 3)


def line(*answers: str | None, logprobs: tuple[float, ...] = (), problem: EvalProblem = PROBLEM) -> TrainingLine:
    matcher = AnswerMatcher()
    try:
        tree = TreeView.model_validate(tree_of(*answers, logprobs=logprobs))
        return asyncio.run(training_line(problem, "beam-8", 5, tree, matcher))
    finally:
        matcher.close()


def numbered(number: int) -> TrainingLine:
    return line("3", problem=PROBLEM._replace(unique_id=f"p/{number}"))


def ids(path: Path) -> list[str]:
    return [TrainingLine.model_validate_json(text).unique_id for text in path.read_text().splitlines()]


def test_a_line_has_all_fields() -> None:
    found = line("0.5", "3", "2", None)
    assert json.loads(found.model_dump_json()) == {
        "format": 1,
        "problem": "what is a half?",
        "answer": "\\frac{1}{2}",
        "level": 3,
        "unique_id": "p/0",
        "strategy": "beam-8",
        "seed": 5,
        "accuracy": 0.25,
        "nodes": [
            _node([0], "1 + 1 = 2\n\n", "open", 4, -1.0, 0.5),
            _node([0, 0], "\\boxed{0.5}", "terminal", 6, -2.0, 1.0),
            _node([0, 1], "\\boxed{3}", "terminal", 6, -2.0, -1.0),
            _node([0, 2], "\\boxed{2}", "terminal", 6, -2.0, -1.0),
            _node([0, 3], "I do not know", "terminal", 6, -2.0, -1.0),
        ],
        "examples": [
            {
                "kind": "correct",
                "path": [[0], [0, 0]],
                "text": "1 + 1 = 2\n\n\\boxed{0.5}",
                "answer": "0.5",
                "mean_entropy": 0.3,
                "values": [0.5, 1.0],
            }
        ],
    }


def _node(place: list[int], text: str, status: str, tokens: int, logprob: float, value: float) -> dict[str, object]:
    own = {"id": place, "text": text, "reward": 0.5, "status": status, "tokens": tokens, "logprob": logprob}
    return own | {"count": 1, "value": value}


def test_without_a_right_path_the_wrong_path_of_lowest_entropy_is_the_example() -> None:
    [example] = line("3", None, "4", logprobs=(-2.0, -0.5, -1.0)).examples
    assert (example.kind, example.path[-1], example.answer) == ("incorrect", (0, 1), None)


def test_lines_are_in_the_order_of_the_problems_strategy_by_strategy(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with TrainingFile(path) as file:
        for order in ([2, 0, 3, 1], [1, 0, 3]):
            file.begin()
            for number in order:
                file.put(number, None if number == 3 else numbered(number))
        file.finish()
    assert ids(path) == ["p/0", "p/1", "p/2", "p/0", "p/1"]
    assert file.summary == (
        f"exported 5 trees, 0 correct paths of hard problems, 5 incorrect paths to {path}; 2 failed problems left out"
    )


def test_lines_written_before_an_interruption_are_kept(tmp_path: Path) -> None:
    """Including lines that wait for an earlier problem which never finishes."""
    path = tmp_path / "out.jsonl"
    with TrainingFile(path) as file:
        file.begin()
        for number in (4, 0, 2):
            file.put(number, numbered(number))
        file.finish()
    assert ids(path) == ["p/0", "p/2", "p/4"]
    assert list(tmp_path.iterdir()) == [path]


def test_an_earlier_file_stays_until_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("earlier\n")
    with TrainingFile(path) as file:
        file.begin()
        file.put(0, None)
        file.finish()
    assert file.summary.startswith("exported nothing")
    with suppress(KeyboardInterrupt), TrainingFile(path) as file:
        file.begin()
        file.put(0, numbered(0))
        raise KeyboardInterrupt
    assert path.read_text() == "earlier\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_reported_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    draft = TrainingFile(path)
    draft._file.close()
    with draft as file:
        file._file = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115  # the training file closes it
        file.begin()
        for number in range(20):
            file.put(number, numbered(number))
        with pytest.raises(OSError, match="No space left"):
            file.finish()
    assert not path.exists()


def test_the_order_of_arrival_does_not_change_the_lines(endpoint: Endpoint, tmp_path: Path) -> None:
    problems = [EvalProblem(f"p/{number}", f"q{number}", "2") for number in range(12)]
    endpoint.trees = {"q3": tree_of("3", "4"), "q5": {"version": 2, "nodes": [{}]}}
    endpoint.broken_questions = {"q7"}
    texts: list[str] = []
    for in_flight in (1, 8):
        rows: list[Row] = []

        async def go(file: TrainingFile, plan: Plan, rows: list[Row]) -> None:
            async with Client(endpoint.url, timeout_s=10) as client:
                await evaluate(client.ask, problems, "beam_search", plan, rows.append, file.put)

        path = tmp_path / f"{in_flight}.jsonl"
        with TrainingFile(path) as file:
            file.begin()
            asyncio.run(go(file, Plan(seed=3, in_flight=in_flight, trees=True), rows))
            file.finish()
        texts.append(path.read_text())
        errors = {row.problem_id: row.error for row in rows if row.error}
        assert errors.keys() == {"p/5", "p/7"}
        assert errors["p/5"].startswith("ProtocolError: the reply is not Banyan's: nodes.0.id")
    assert texts[0] == texts[1]
    assert ids(path) == [problem.unique_id for problem in problems if problem.unique_id not in errors]
