"""``banyan check-prm``: every solution is scored once, and the figures are those of the rewards."""

import asyncio
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from endpoint_stand_in import Endpoint
from rich.console import Console
from typer.testing import CliRunner

from cluster.cli.main import app
from cluster.evaluation.prm_check import Post, PrmSummary, ScoredSolution, score_all, summarize
from cluster.evaluation.prm_plot import plot
from cluster.evaluation.prm_tables import tables
from cluster.evaluation.step_files import LabelledSolution
from search.strategies.path_score import Aggregation


def scored(problem: str, answer: str, right: bool, rewards: tuple[float, ...], first_mistake: int) -> ScoredSolution:
    """A solution whose steps from the first mistake on are wrong."""
    labels = tuple(first_mistake < 0 or index < first_mistake for index in range(len(rewards)))
    steps = (*("so" for _ in rewards[1:]), rf"\boxed{{{answer}}}")
    return ScoredSolution(0, LabelledSolution(1, problem, steps, labels, first_mistake, right), rewards, tokens=50)


SCORED = [
    scored("half?", "0.5", True, (0.9, 0.8), -1),
    scored("half?", "2", False, (0.9, 0.4), 1),
    scored("half?", "4/2", False, (0.6, 0.7), 0),
    scored("one?", "1", True, (0.3,), -1),
    ScoredSolution(4, LabelledSolution(5, "two?", ("a",), (True,), -1, True), error="TooLate: no"),
]


def summary_of(given: list[ScoredSolution]) -> PrmSummary:
    return asyncio.run(summarize(given, elapsed_s=2.0))


def shown(summary: PrmSummary) -> str:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(*tables(summary))
    return capture.get()


def test_the_summary_is_that_of_the_rewards() -> None:
    found = summary_of(SCORED)
    assert (found.solutions, found.failed, found.steps, found.right_steps, found.wrong_steps) == (5, 1, 7, 4, 3)
    # Right steps 0.9, 0.8, 0.9, 0.3 against wrong steps 0.4, 0.6, 0.7: 3 + 3 + 3 + 0 of 12 pairs.
    assert found.auc == pytest.approx(9 / 12)
    assert found.first_mistakes == pytest.approx((0.5, 0.5, 0.5))
    assert (found.with_mistake, found.without_mistake) == (2, 2)
    assert (found.steps_per_s, found.tokens_per_s) == (3.5, 100)


def test_outcomes_are_those_of_whole_solutions() -> None:
    found = summary_of(SCORED)
    last = found.outcomes[Aggregation.LAST]
    # Right solutions 0.8, 0.3 against wrong ones 0.4, 0.7: 2 of 4 pairs.
    assert last.auc == pytest.approx(2 / 4)
    assert last.best_of_n is not None
    assert last.best_of_n.problems == 1
    # The wrong answers 2 and 4/2 are one, which wins both votes.
    assert last.best_of_n[1:] == (1.0, 0.0, 0.0, 1.0)


def test_what_the_file_does_not_say_is_left_out() -> None:
    unknown = [LabelledSolution(1, "p", ("a",), (None,), None, right) for right in (True, None)]
    found = shown(summary_of([ScoredSolution(0, each, (0.5,), 10) for each in unknown]))
    assert "step AUC" not in found
    assert "first-mistake" not in found
    assert "shares are of" not in found
    assert "1 right and 0 wrong final answers" in found


def test_the_plot_is_svg_with_both_panels() -> None:
    summary = summary_of(SCORED)
    texts = [each.text or "" for each in ET.fromstring(plot(summary, "of <a> & b")).iter() if each.text]
    assert "of <a> & b" in texts
    assert "ROC curve, area 0.750" in texts
    empty = summary_of([ScoredSolution(4, LabelledSolution(1, "p", ("a",), (None,), None, True), (0.5,), 10)])
    ET.fromstring(plot(empty, "nothing known"))


def write(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


RIGHT = {"problem": "p?", "steps": ["one", "two"], "label": -1, "final_answer_correct": True}
WRONG = {"problem": "p?", "steps": ["one", "wrong"], "label": 1, "final_answer_correct": False}


def test_the_command_scores_a_file(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.broken_questions = {"broken?"}
    file = write(tmp_path / "in.jsonl", RIGHT, WRONG, RIGHT | {"problem": "broken?"})
    output, svg = tmp_path / "out.json", tmp_path / "plot.svg"
    options = ("--url", endpoint.url, "--output", str(output), "--plot", str(svg), "--timeout", "60")
    done = CliRunner().invoke(app, ["check-prm", str(file), *options])
    assert done.exit_code == 0, done.output
    assert "1.000" in done.output
    assert "1 × Refused: the reward model failed (HTTP 503)" in done.output
    report = json.loads(output.read_text())
    assert report["complete"]
    assert report["summary"]["auc"] == 1.0
    assert (report["summary"]["solutions"], report["summary"]["failed"]) == (3, 1)
    assert [row["rewards"] for row in report["rows"]] == [[0.9, 0.9], [0.9, 0.1], []]
    assert "The reward model of stand-in on in.jsonl" in svg.read_text()


def test_the_command_fails_where_nothing_was_scored(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.broken_questions = {"p?"}
    output = tmp_path / "out.json"
    options = ("--url", endpoint.url, "--output", str(output), "--timeout", "60")
    done = CliRunner().invoke(app, ["check-prm", str(write(tmp_path / "in.jsonl", RIGHT)), *options])
    assert done.exit_code == 1
    assert "every request failed" in done.output
    assert not output.exists()


def test_an_interrupted_check_reports_what_is_done(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(post: Post, solutions: list[LabelledSolution], *others: Any) -> None:
        await score_all(post, solutions[:2], *others)
        raise KeyboardInterrupt

    monkeypatch.setattr("cluster.cli.check_prm.score_all", interrupted)
    output = tmp_path / "out.json"
    file = write(tmp_path / "in.jsonl", RIGHT, WRONG, RIGHT)
    done = CliRunner().invoke(app, ["check-prm", str(file), "--url", endpoint.url, "--output", str(output)])
    assert done.exit_code == 130
    assert "interrupted: these are the solutions done until then" in done.output
    report = json.loads(output.read_text())
    assert (report["complete"], len(report["rows"])) == (False, 2)


def test_a_bad_line_is_refused_before_anything_is_sent(endpoint: Endpoint, tmp_path: Path) -> None:
    file = write(tmp_path / "in.jsonl", RIGHT, RIGHT | {"label": 2})
    done = CliRunner().invoke(app, ["check-prm", str(file), "--url", endpoint.url])
    assert done.exit_code == 2
    assert "line 2: label must be -1 or the index of one of the 2 steps, not 2" in done.output
    assert endpoint.requests == []
    same = CliRunner().invoke(app, ["check-prm", str(file), "--output", str(file)])
    assert same.exit_code == 2
