"""Ray Data pipelines on the served application through ``ray.data.llm``: the example in the docs, run as a program, and
a row that is refused."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest
import ray

from tests.serve.application import Application, Json, problems

PAGE = Path(__file__).parents[2] / "docs" / "jobs.md"
ASKED = problems(8, seed=64)
SCORED: Json = {
    "model": "banyan-arithmetic",
    "question": "Take 12. Increase by 74. What do you get?",
    "steps": ["12 + 74 = 86\n"],
}
RUN_S = 240.0
SCORING = f"""
def to_score(row):
    body = json.dumps({{**{SCORED!r}, row["field"]: "banyan-arithmetic"}})
    return {{"method": "answer_row", "request_kwargs": {{"url": "/v1/score", "body": body}}}}

score = build_processor(config, preprocess=to_score, postprocess=lambda row: {{"rewards": row["rewards"]}})
fields = ray.data.from_items([{{"field": "model"}}, {{"field": "colour"}}])
score(fields).write_json(f"{{here}}/scores")
"""


@pytest.fixture(scope="module")
def directory(application: Application, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which the pipelines ran, with their output."""
    directory = tmp_path_factory.mktemp("pipeline")
    (directory / "problems.jsonl").write_text("".join(json.dumps(problem.as_json()) + "\n" for problem in ASKED))
    [example] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (directory / "pipeline.py").write_text(example + SCORING)
    done = subprocess.run(
        [sys.executable, "pipeline.py"],
        cwd=directory,
        env={**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address},  # as with `ray job submit`
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


def test_rows_get_the_replies_of_their_requests(idle: Application, directory: Path) -> None:
    rows = {row["problem"]: row for row in pyarrow.parquet.read_table(directory / "answers").to_pylist()}
    assert rows.keys() == {problem.text for problem in ASKED}
    for problem in ASKED:
        reply = idle.chat(problem, 1, search={"strategy": "beam_search", "n": 16})
        row = rows[problem.text]
        assert row["answer"] == reply["search"]["answer"]
        assert row["tokens"] == reply["usage"]["completion_tokens"]
        assert row["__inference_error__"] == ""


def test_a_refused_row_has_the_reason_and_the_others_are_answered(idle: Application, directory: Path) -> None:
    lines = [line for file in (directory / "scores").iterdir() for line in file.read_text().splitlines()]
    answered, refused = sorted(map(json.loads, lines), key=lambda row: str(row["__inference_error__"]))
    rewards = idle.http.post("/v1/score", json=SCORED).json()["rewards"]
    assert answered["rewards"] == pytest.approx(rewards, abs=1e-9)  # Ray's JSON has ten digits
    assert refused["__inference_error__"] == "ValueError: 400: unknown field: colour"
