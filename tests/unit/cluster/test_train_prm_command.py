"""`banyan train-prm` as a user types it: problems are solved first; what cannot be used is refused with a reason."""

import json
from pathlib import Path

import pytest
from endpoint_stand_in import Endpoint, tree_of
from typer.testing import CliRunner, Result

from cluster.cli.main import app


def train_prm(*arguments: object) -> Result:
    result = CliRunner().invoke(app, ["train-prm", *map(str, arguments)], env={"BANYAN_API_KEY": ""})
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def problem_file(tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    lines = (json.dumps({"problem": f"What is {number} + 1?", "answer": "2"}) for number in range(12))
    path.write_text("\n".join(lines))
    return path


def test_problems_are_solved_first_and_only_once(endpoint: Endpoint, problem_file: Path, tmp_path: Path) -> None:
    endpoint.trees = {f"What is {number} + 1?": tree_of("2", "3", "3") for number in range(12)}
    output, settings = tmp_path / "prm", ("--epochs", 1, "--n", 3, "--url", endpoint.url)
    result = train_prm(problem_file, output, *settings)
    assert result.exit_code == 0, result.output
    assert "12 problems, 36 solutions" in result.output
    asked = [request["search"] for request in endpoint.requests if "messages" in request]
    assert asked == [{"strategy": "self_consistency", "n": 3, "logprobs": True}] * 12
    metrics = json.loads((output / "metrics.json").read_text())
    assert metrics["problems"] == {"train": 9, "stop": 1, "card": 2}
    assert metrics["held_out"]["majority"] == 0.0
    assert (output / "README.md").read_text().startswith("# A process reward model\n")

    (output / "metrics.json").unlink()
    assert train_prm(problem_file, output, *settings).exit_code == 0
    assert sum("messages" in request for request in endpoint.requests) == 12
    assert "is complete already" in train_prm(problem_file, output, *settings).output


def test_another_training_in_the_directory_is_refused(tmp_path: Path) -> None:
    pool, output = tmp_path / "pool.jsonl", tmp_path / "prm"
    pool.write_text('{"question": "q", "steps": ["a"], "correct": true}')
    result = train_prm(pool, output)
    assert result.exit_code == 2
    assert "problems with a solution: 1; at least 10 are needed" in result.output
    result = train_prm(pool, output, "--seed", 1)
    assert result.exit_code == 2
    assert "belongs to another training: seed was 0 and is 1" in result.output


def test_a_backbone_that_is_missing_is_refused_before_anything_is_solved(problem_file: Path, tmp_path: Path) -> None:
    result = train_prm(problem_file, tmp_path / "prm", "--backbone", tmp_path / "missing")
    assert result.exit_code == 2
    assert "is not a model directory: it has no config.json" in result.output
    assert not (tmp_path / "prm").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--layers", "-1"), "--layers"),
        (("--layers", "129"), "--layers"),
        (("--held-out", "0.9"), "--held-out"),
        (("--backbone", "embedded:nothing"), "unknown embedded model 'embedded:nothing'"),
        (("--device", "tpu"), "--device: String should match pattern"),
        (("--strategy", "nonsense"), "nonsense"),
    ],
)
def test_settings_out_of_bounds_are_refused_by_name(
    problem_file: Path, tmp_path: Path, arguments: tuple[str, str], reason: str
) -> None:
    result = train_prm(problem_file, tmp_path / "prm", *arguments)
    assert result.exit_code == 2
    assert reason in result.output
    assert not (tmp_path / "prm").exists()


def test_a_bad_line_is_told_with_its_number(tmp_path: Path) -> None:
    pool = tmp_path / "pool.jsonl"
    pool.write_text('{"question": "q", "steps": ["a"], "correct": true}\n{"question": "q", "steps": "a"}\n')
    result = train_prm(pool, tmp_path / "prm")
    assert result.exit_code == 2
    assert "line 2: steps: Input should be a valid list" in result.output
