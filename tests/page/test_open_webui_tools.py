"""Open WebUI as published, with all tools that it sends by default: it runs what the model calls, and shows the answer.

It runs tools only where the reply is streamed. The requests that it sends are sent again without a stream.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, expect

import tests.ray_environment  # noqa: F401  # before Ray is imported
from tests.agent_model import SAID, agent_settings
from tests.clients.recording_proxy import Recorded, RecordingProxy, recording_proxy
from tests.page.open_webui import ANSWER_S, ask, chat_page, needs_open_webui, open_webui
from tests.serve.application import Application, running

CALLS: list[tuple[str, dict[str, Any]]] = [("get_current_timestamp", {}), ("calculate_timestamp", {"days_ago": 2})]
CONTEXT = 65_536
TOOLS = 36

pytestmark = needs_open_webui


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    settings = agent_settings(tmp_path_factory.mktemp("models"), CALLS, CONTEXT)
    settings |= {"controller": {"side_calls": {}}, "cache": {"enabled": False}, "http": {"canary_every_s": 0}}
    with running(settings, tmp_path_factory.mktemp("keys")) as application:
        yield application


@pytest.fixture(scope="module")
def proxy(application: Application) -> Iterator[RecordingProxy]:
    with recording_proxy(application.url) as proxy:
        yield proxy


def test_its_tools_are_called_and_their_results_answered(
    application: Application, proxy: RecordingProxy, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with (
        open_webui(proxy.url, application.key, tmp_path_factory.mktemp("open_webui")) as url,
        chat_page(browser, url) as page,
    ):
        ask(page, "What day was it two days ago?")
        expect(page.get_by_role("button", name="Regenerate")).to_be_visible(timeout=ANSWER_S * 1000)
        shown = page.locator("#response-content-container").last
        expect(shown).to_contain_text("21")
        expect(shown).to_contain_text(SAID.strip())
    first, second = (each for each in proxy.recorded if each.body.get("stream"))
    assert len(first.body["tools"]) == TOOLS
    assert {name for name, _ in CALLS} <= {tool["function"]["name"] for tool in first.body["tools"]}
    *_, called, result, other = second.body["messages"]
    assert [
        (each["function"]["name"], json.loads(each["function"]["arguments"])) for each in called["tool_calls"]
    ] == CALLS
    for call, said in zip(called["tool_calls"], (result, other), strict=True):
        assert said["tool_call_id"] == call["id"]
        assert "current_iso" in json.loads(said["content"])
    for recorded in (first, second):
        assert recorded.status == 200
        assert_the_same_without_a_stream(recorded, application)


def assert_the_same_without_a_stream(recorded: Recorded, application: Application) -> None:
    body = {**recorded.body, "stream": False}
    body.pop("stream_options", None)
    headers = {"Authorization": f"Bearer {application.key}"}
    url = f"{application.url}{recorded.path}"
    reply = httpx.post(url, json=body, headers=headers, timeout=ANSWER_S, trust_env=False).raise_for_status().json()
    [choice] = reply["choices"]
    streamed = [chunk["choices"][0] for chunk in chunks(recorded) if chunk["choices"]]
    assert choice["finish_reason"] == streamed[-1]["finish_reason"]
    deltas = [each["delta"] for each in streamed]
    assert (choice["message"]["content"] or "") == "".join(each.get("content") or "" for each in deltas)
    parts = [part for each in deltas for part in each.get("tool_calls", ())]
    calls = choice["message"].get("tool_calls", [])
    for index, call in enumerate(calls):
        own = [part["function"] for part in parts if part["index"] == index]
        assert own[0]["name"] == call["function"]["name"]
        assert "".join(part["arguments"] for part in own) == call["function"]["arguments"]
    assert len({part["index"] for part in parts}) == len(calls)


def chunks(recorded: Recorded) -> list[dict[str, Any]]:
    lines = b"".join(piece for _, piece in recorded.pieces).decode().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
