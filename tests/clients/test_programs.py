"""Published clients, each in an environment of its own: their default requests are answered, and one seed gives the
same text, plain and streamed, by chat, by responses and by batch.

The bodies that they send are kept in ``tests/unit/http/client_bodies.json``, and a test that runs with every commit
sends them.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.agent_model import ANSWER, SAID
from tests.clients.bodies import assert_recorded
from tests.clients.commands import HERE, ROOT, program_of
from tests.clients.programs.client_report import QUESTION, SEED
from tests.clients.recording_proxy import RecordingProxy, recording_proxy

MODEL = "banyan-arithmetic"
RUN_S = 300.0
NODE_MODULES = ROOT / ".venv-clients" / "vercel_ai" / "node_modules"
SEEDED = {
    "openai": {"chat", "chat_streamed", "responses", "responses_streamed", "batch", "batch_responses"},
    "langchain": {"chat", "chat_streamed", "responses", "responses_streamed"},
    "litellm": {"chat", "chat_streamed", "responses", "responses_streamed"},
    # Its provider sends neither a seed nor extra fields with responses.
    "inspect_ai": {"chat", "chat_streamed", "evaluation"},
    "llama_index": {"chat", "chat_streamed", "complete", "complete_streamed", "responses", "responses_streamed"},
    # Neither sends a seed with responses.
    "llm": {"chat", "chat_streamed"},
    "vercel_ai": {"chat", "chat_streamed", "openai_chat", "openai_chat_streamed"},
}
"""The routes over which each client can send a seed."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def proxy(endpoint: str) -> Any:
    with recording_proxy(endpoint) as proxy:
        yield proxy


def run(
    client: str, proxy: RecordingProxy, directory: Path, kind: str = "client", choice: str = "auto"
) -> dict[str, str]:
    """Texts of the replies to a client, by route. ``kind``: of its program. ``choice``: for an agent's first turn."""
    file = directory / "texts.json"
    url = f"{proxy.url}/v1"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "PYTHONPATH": str(HERE / "programs"),
        "MODEL": MODEL,
        "QUESTION": QUESTION,
        "SEED": str(SEED),
        "CHOICE": choice,
        "LOGS": str(directory / "logs"),
        "LLM_USER_PATH": str(directory),
        "NODE_PATH": str(NODE_MODULES),
        "OPENAI_BASE_URL": url,
        "OPENAI_API_BASE": url,
        "OPENAI_API_KEY": "none",
        "BANYAN_BASE_URL": url,
        "BANYAN_API_KEY": "none",
        "NO_PROXY": "127.0.0.1",
        # No downloads.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LANGSMITH_TRACING": "false",
    }
    done = subprocess.run(
        [*program(client, kind), str(file)],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    texts: dict[str, str] = json.loads(file.read_text())
    return texts


def program(client: str, kind: str) -> list[str]:
    """The command of a client's program."""
    if client != "vercel_ai":
        return [str(program_of(client, "python")), str(HERE / "programs" / f"{client}_{kind}.py")]
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no Node.js")
    assert NODE_MODULES.is_dir(), f"no {NODE_MODULES}: `make test-clients` sets it up"
    return [node, str(HERE / "programs" / f"vercel_ai_{kind}.cjs")]


@pytest.mark.parametrize("client", SEEDED)
def test_default_requests_of_a_client_are_answered(client: str, proxy: RecordingProxy, tmp_path: Path) -> None:
    before = len(proxy.recorded)
    texts = run(client, proxy, tmp_path)
    recorded = proxy.recorded[before:]
    print(f"\n{client}: {len(recorded)} requests, statuses {sorted({each.status for each in recorded})}")
    for route, text in texts.items():
        print(f"  {route:20} {text.split()[-1]}")
    assert {each.status for each in recorded} == {200}
    assert all("\\boxed{" in text for text in texts.values())
    assert len({texts[route] for route in SEEDED[client]}) == 1, texts
    assert_recorded(client, ((each.path, each.body) for each in recorded))


def test_all_clients_get_the_same_text(endpoint: str, tmp_path: Path) -> None:
    """With the same seed."""
    with recording_proxy(endpoint) as proxy:
        texts = {}
        for client in ("openai", "litellm"):
            directory = tmp_path / client
            directory.mkdir()
            texts[client] = run(client, proxy, directory)["chat"]
    assert len(set(texts.values())) == 1, texts


AGENTS = ["openai", "langchain", "vercel_ai"]
ROUTES = {"chat", "chat_streamed", "responses", "responses_streamed"}


@pytest.mark.parametrize("client", AGENTS)
def test_an_agent_gets_the_calls_that_a_model_writes(client: str, calling_endpoint: str, tmp_path: Path) -> None:
    """Two calls at once, their results, and the answer to them: by chat and by responses, plain and streamed."""
    with recording_proxy(calling_endpoint) as proxy:
        texts = run(client, proxy, tmp_path, "agent")
        assert [each.status for each in proxy.recorded] == [200] * 8
        assert_recorded(f"{client} agent", ((each.path, each.body) for each in proxy.recorded[1::2]))
    assert texts.keys() == ROUTES
    expected = {
        f"{SAID}flip({{'side': True}}), flip({{'side': False}}): {ANSWER}",
        f'{SAID}flip({{"side":true}}), flip({{"side":false}}): {ANSWER}',
    }
    assert set(texts.values()) <= expected, texts


@pytest.mark.parametrize("client", AGENTS)
def test_an_agent_gets_a_call_that_it_requires(client: str, proxy: RecordingProxy, tmp_path: Path) -> None:
    """By a model that knows nothing of functions. The same one by every route over which the client sends a seed."""
    before = len(proxy.recorded)
    texts = run(client, proxy, tmp_path, "agent", choice="required")
    assert {each.status for each in proxy.recorded[before:]} == {200}
    assert texts.keys() == ROUTES
    assert all(text.startswith("flip({") for text in texts.values()), texts
    assert texts["chat"] == texts["chat_streamed"]
