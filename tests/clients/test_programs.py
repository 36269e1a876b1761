"""Clients as they are published, each from an environment of its own: what they send by default gets an answer, and the
answer to one seed is the same text, plain and streamed, by chat, by responses and by batch.

The bodies that they send are kept in ``tests/unit/http/client_bodies.json``, where a test of every commit sends them.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.bodies import assert_recorded
from tests.clients.commands import HERE, program_of
from tests.clients.passage import Passage, noting

MODEL = "banyan-arithmetic"
RUN_S = 300.0
SEEDED = {
    "openai": {"chat", "chat_streamed", "responses", "responses_streamed", "batch", "batch_responses"},
    "langchain": {"chat", "chat_streamed", "responses", "responses_streamed"},
    "litellm": {"chat", "chat_streamed", "responses", "responses_streamed"},
    # Its provider sends neither a seed nor a field of one's own with responses.
    "inspect_ai": {"chat", "chat_streamed", "evaluation"},
}
"""The ways in which each client can name a seed."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def passage(endpoint: str) -> Any:
    with noting(endpoint) as passage:
        yield passage


def run(client: str, passage: Passage, directory: Path) -> dict[str, str]:
    """What a client was answered, by the way in which it asked."""
    said = directory / "said.json"
    url = f"{passage.url}/v1"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "PYTHONPATH": str(HERE / "programs"),
        "MODEL": MODEL,
        "LOGS": str(directory / "logs"),
        "OPENAI_BASE_URL": url,
        "OPENAI_API_BASE": url,
        "OPENAI_API_KEY": "none",
        "BANYAN_BASE_URL": url,
        "BANYAN_API_KEY": "none",
        "NO_PROXY": "127.0.0.1",
        # Nothing is to be fetched from anywhere.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LANGSMITH_TRACING": "false",
    }
    done = subprocess.run(
        [str(program_of(client, "python")), str(HERE / "programs" / f"{client}_client.py"), str(said)],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, str] = json.loads(said.read_text())
    return told


@pytest.mark.parametrize("client", SEEDED)
def test_a_client_is_answered(client: str, passage: Passage, tmp_path: Path) -> None:
    before = len(passage.asked)
    said = run(client, passage, tmp_path)
    asked = passage.asked[before:]
    print(f"\n{client}: {len(asked)} requests, statuses {sorted({each.status for each in asked})}")
    for way, text in said.items():
        print(f"  {way:20} {text.split()[-1]}")
    assert {each.status for each in asked} == {200}
    assert all("\\boxed{" in text for text in said.values())
    assert len({said[way] for way in SEEDED[client]}) == 1, said
    assert_recorded(client, ((each.path, each.body) for each in asked))


def test_all_clients_are_told_the_same(endpoint: str, tmp_path: Path) -> None:
    """By one seed, whoever asks."""
    with noting(endpoint) as passage:
        texts = {}
        for client in ("openai", "litellm"):
            directory = tmp_path / client
            directory.mkdir()
            texts[client] = run(client, passage, directory)["chat"]
    assert len(set(texts.values())) == 1, texts
