"""The JDK's own HTTP client, which Spring AI and LangChain4j use: plain and streamed, by chat and by responses."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.commands import HERE
from tests.clients.programs.client_report import QUESTION, SEED

MODEL = "banyan-arithmetic"
RUN_S = 300.0
WAYS = ("text", "chunked", "lines")

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def java() -> str:
    found = shutil.which("java")
    if found is None or "jdk.compiler@" not in subprocess.check_output([found, "--list-modules"], text=True):
        pytest.skip("there is no JDK: `apt-get install openjdk-17-jdk-headless`")
    return found


def replies(java: str, endpoint: str, path: str, body: dict[str, Any], directory: Path) -> list[str]:
    """The replies to one body, sent in all ways."""
    sent, reply = directory / "body.json", directory / "reply"
    sent.write_text(json.dumps(body))
    command = [java, str(HERE / "programs" / "JavaClient.java"), endpoint, path, str(sent), str(reply)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [reply.with_suffix(f".{way}").read_text() for way in WAYS]


def streamed_text(reply: str) -> str:
    """The text of a streamed chat completion."""
    events = [line.removeprefix("data: ") for line in reply.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    choices = [choice for event in events[:-1] for choice in json.loads(event).get("choices", ())]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_the_jdks_client_gets_what_others_get(java: str, endpoint: str, tmp_path: Path) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "seed": SEED}
    path = "/v1/chat/completions"
    expected = httpx.post(endpoint + path, json=body, timeout=RUN_S, trust_env=False).json()
    text = expected["choices"][0]["message"]["content"]
    assert "\\boxed{" in text
    plain = replies(java, endpoint, path, body, tmp_path)
    assert [json.loads(reply)["choices"][0]["message"]["content"] for reply in plain] == [text] * len(WAYS)
    streamed = replies(java, endpoint, path, {**body, "stream": True}, tmp_path)
    assert [streamed_text(reply) for reply in streamed] == [text] * len(WAYS)


def test_it_gets_responses_too(java: str, endpoint: str, tmp_path: Path) -> None:
    body = {"model": MODEL, "input": QUESTION, "seed": SEED}
    plain = [json.loads(reply) for reply in replies(java, endpoint, "/v1/responses", body, tmp_path)]
    assert {reply["status"] for reply in plain} == {"completed"}
    [text] = {part["text"] for reply in plain for item in reply["output"] for part in item["content"] if "text" in part}
    assert "\\boxed{" in text
