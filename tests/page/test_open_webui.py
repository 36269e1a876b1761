"""Open WebUI as published, in front of the served application: a question, another try, a stop, and its side calls.

Skipped unless ``OPEN_WEBUI`` names its program; docs/chat-windows.md says how to install it.
"""

import json
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

import tests.ray_environment  # noqa: F401  # before Ray is imported
from deployments.http.chat.chat_windows import NOTE
from tests.agent_model import longer_context
from tests.clients.recording_proxy import Recorded, RecordingProxy, recording_proxy
from tests.page.open_webui import ANSWER_S, ask, chat_page, needs_open_webui, open_webui
from tests.page.stand_in import QUESTION
from tests.serve.application import Application, running, until

PICTURE = os.environ.get("OPEN_WEBUI_PICTURE", "")
"""Where a picture of the answered question goes, for docs/chat-windows.md."""
CONTEXT = 4096
"""Tokens. To the embedded models each letter of most words is a token, and the prompt for a title has 1,044."""
LONG = "Start with 7." + " Add 8. Multiply by 2. Subtract 9." * 4 + " What is the result?"
FIRST_BYTE_S = 1.0
SILENCE_S = 10.0
WITHOUT_TOOLS = {"DEFAULT_MODEL_METADATA": '{"capabilities": {"builtin_tools": false}}'}

pytestmark = needs_open_webui


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    models = tmp_path_factory.mktemp("models")
    settings = {
        "generator": longer_context("generator", models, CONTEXT),
        "prm": longer_context("prm", models, CONTEXT),
        "controller": {"side_calls": {}},
        "http": {"canary_every_s": 0},
    }
    with running(settings, tmp_path_factory.mktemp("keys")) as application:
        yield application


@pytest.fixture(scope="module")
def proxy(application: Application) -> Iterator[RecordingProxy]:
    with recording_proxy(application.url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def window(application: Application, proxy: RecordingProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of Open WebUI."""
    with open_webui(proxy.url, application.key, tmp_path_factory.mktemp("open_webui"), **WITHOUT_TOOLS) as url:
        yield url


@pytest.fixture
def page(window: str, browser: Browser) -> Iterator[Page]:
    with chat_page(browser, window) as page:
        yield page


def answered(page: Page, proxy: RecordingProxy) -> Recorded:
    """Waits for the answer on the page, and returns the last question and its reply."""
    expect(page.get_by_role("button", name="Regenerate")).to_be_visible(timeout=ANSWER_S * 1000)
    question = streamed(proxy)[-1]
    answer = search_of(question)["answer"]
    expect(page.locator("#response-content-container").last).to_contain_text(f"{{{answer}}}")
    return question


def streamed(proxy: RecordingProxy) -> list[Recorded]:
    """The questions so far, with their replies."""
    return [each for each in proxy.recorded if each.body.get("stream")]


def side_calls(proxy: RecordingProxy) -> list[Recorded]:
    """All other requests that are answered."""
    return [each for each in proxy.recorded if not each.body.get("stream") and each.pieces]


def search_of(recorded: Recorded) -> dict[str, Any]:
    """The `search` block of a reply, streamed or not."""
    text = b"".join(piece for _, piece in recorded.pieces).decode()
    [line] = [line.removeprefix("data: ") for line in text.splitlines() if '"search":' in line]
    block: dict[str, Any] = json.loads(line)["search"]
    return block


def assert_lively(recorded: Recorded) -> None:
    times = [seconds for seconds, _ in recorded.pieces]
    silence = max(after - before for before, after in pairwise(times))
    print(f"\nfirst byte {times[0]:.2f} s, longest silence {silence:.2f} s, in all {times[-1]:.1f} s")
    assert times[0] < FIRST_BYTE_S
    assert silence < SILENCE_S


def test_a_question_another_try_a_stop_and_side_calls(
    application: Application, proxy: RecordingProxy, page: Page
) -> None:
    ask(page, QUESTION)
    question = answered(page, proxy)
    thought = page.get_by_role("button", name=re.compile("^Thought for"))
    step = page.get_by_text(re.compile(r"\[\d+\.\d+] 0\.\d\d .* 229 = "))
    expect(step).to_be_hidden()
    assert (search_of(question)["strategy"], search_of(question)["n"]) == ("beam_search", 16)
    assert_lively(question)
    thought.click()
    expect(step.first).to_be_visible()
    if PICTURE:
        page.screenshot(path=PICTURE)
    thought.click()

    until(lambda: len(side_calls(proxy)) == 3, "a title, tags and what to ask next", ANSWER_S)
    for each in side_calls(proxy):
        search = search_of(each)
        print(search["generated_tokens"], each.body["messages"][-1]["content"].splitlines()[1])
        assert (search["strategy"], search["nodes"] > 0, search["prm_calls"]) == ("greedy", True, 0)
        assert NOTE in search["notes"]

    page.get_by_role("button", name="Regenerate").click()
    page.get_by_role("button", name="Try Again").click()
    expect(page.get_by_text("2/2")).to_be_visible()
    page.get_by_role("button", name="Stop", exact=True).wait_for(state="hidden", timeout=ANSWER_S * 1000)
    answered(page, proxy)
    assert len(streamed(proxy)) == 2

    ask(page, LONG)
    page.get_by_role("button", name="Thinking").wait_for()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_hidden()
    until(application.is_whole, "the search has ended, in the engines too", 30)
    stopped = streamed(proxy)[-1]
    assert stopped.body["messages"][-1]["content"] == LONG
    assert not any(b"[DONE]" in piece for _, piece in stopped.pieces)
