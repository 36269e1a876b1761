"""Every search has one log line, and no log file of Ray, vLLM, LMCache or Banyan contains text of a user."""

import json
import secrets
from pathlib import Path
from typing import Any

import pytest
import ray

from deployments.admission.keys import key_digest
from tests.serve.application import BEAM, Application, problems, request, until


@pytest.fixture
def logs(application: Application) -> Path:
    """Ray's log directory, to which all processes of the application write."""
    return Path(ray._private.worker._global_node.get_logs_dir_path())


def lines_of(logs: Path, search_id: str) -> list[dict[str, Any]]:
    written = (line for file in logs.glob("worker-*.out") for line in file.read_text(errors="replace").splitlines())
    return [json.loads(line) for line in written if line.startswith('{"search"') and search_id in line]


def files_with(logs: Path, words: bytes) -> list[str]:
    return [str(file.relative_to(logs)) for file in logs.rglob("*") if file.is_file() and words in file.read_bytes()]


def test_every_search_has_one_log_line_with_its_figures(application: Application, logs: Path) -> None:
    [problem] = problems(1, seed=77)
    reply = application.chat(problem, seed=1)
    search_id = reply["id"].removeprefix("chatcmpl-")
    until(lambda: bool(lines_of(logs, search_id)), "its line is written")
    [line] = lines_of(logs, search_id)
    assert line["key"] == key_digest(application.key)[:8]
    assert (line["strategy"], line["n"]) == (BEAM["strategy"], BEAM["n"])
    assert (line["ending"], line["degraded"]) == ("finished", False)
    assert line["generated_tokens"] == reply["search"]["generated_tokens"]
    assert line["nodes"] == line["steps"] == reply["search"]["nodes"]


def test_no_text_of_a_user_is_in_any_log(application: Application, logs: Path) -> None:
    [problem] = problems(1, seed=78)
    words = str(10**15 + secrets.randbelow(10**15))
    asked = [{"role": "user", "content": f"{problem.text} {words}"}]
    body = request(problem, 1, messages=asked)
    reply = application.http.post("/v1/chat/completions", json=body).raise_for_status().json()
    refused = [
        body | {"search": {"strategy": words}},
        body | {"model": words},
        body | {"messages": asked * 200},
        body | {"search": BEAM | {"budget": {"seconds": 0.001}}},
    ]
    for wrong in refused:
        assert application.http.post("/v1/chat/completions", json=wrong).is_error
    scored = {"model": body["model"], "question": words, "steps": [f"{words}\n\n"]}
    application.http.post("/v1/score", json=scored).raise_for_status()
    search_id = reply["id"].removeprefix("chatcmpl-")
    until(lambda: bool(lines_of(logs, search_id)), "its line is written")
    assert files_with(logs, words.encode()) == []
