"""A browser, and the endpoint over a generator without an engine. Every page is watched for as long as it is open."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from search.answers.equivalence import AnswerMatcher
from tests.page.stand_in import served

Json = dict[str, Any]
KEY = "a-key-of-twenty-characters"
MISSING = "these tests drive Debian's Chromium, and there is none here: apt-get install chromium"
expect.set_options(timeout=30_000)


def pytest_sessionstart() -> None:
    if shutil.which("chromium") is None:
        if os.environ.get("CI"):
            pytest.exit(f"skipped: {MISSING}", 0)
        pytest.exit(MISSING, 1)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Chromium's sandbox does not work for root.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def matcher() -> Iterator[AnswerMatcher]:
    made = AnswerMatcher()
    yield made
    made.close()


@pytest.fixture(scope="session")
def endpoint(matcher: AnswerMatcher, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of an endpoint without keys, which keeps searches."""
    with served(matcher, str(tmp_path_factory.mktemp("store"))) as url:
        yield url


@pytest.fixture(scope="session")
def fast_endpoint(matcher: AnswerMatcher) -> Iterator[str]:
    """URL of one that keeps nothing, and writes hundreds of steps a second."""
    with served(matcher, None, pause_s=0.001) as url:
        yield url


@pytest.fixture(scope="session")
def keyed(matcher: AnswerMatcher, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of an endpoint with the key `KEY`."""
    with served(matcher, str(tmp_path_factory.mktemp("store")), keys=[KEY]) as url:
        yield url


Visit = Callable[..., Page]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Opens pages. At the end: none asked another origin for anything, none had an error in its console."""
    opened = []
    problems: list[str] = []

    def visit(url: str, width: int = 1440, height: int = 900, refusals: bool = False, **context: Any) -> Page:
        """``refusals``: whether a 400 or 401, which browsers always note in the console, is part of the test."""
        made = browser.new_context(viewport={"width": width, "height": height}, **context)
        opened.append(made)
        page = made.new_page()

        def note(message: Any) -> None:
            if message.type in ("error", "warning") and not (refusals and re.search("40[01]", message.text)):
                problems.append(message.text)

        page.on("console", note)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        own = url if url.startswith("file:") else f"{url.rstrip('/')}/"
        page.on("request", lambda request: problems.append(request.url) if not _is_own(request.url, own) else None)
        page.goto(url)
        return page

    yield visit
    for each in opened:
        each.close()
    assert problems == []


def _is_own(url: str, own: str) -> bool:
    return url.startswith((own, "blob:", "data:image/svg+xml;"))


def ask(page: Page, question: str, seed: int = 3, **fields: str) -> None:
    """Sends the form. ``fields``: of the first search and the budget, by name."""
    page.fill("[name=question]", question)
    page.fill("#search-1 [name=seed]", str(seed))
    for name, value in fields.items():
        if name == "how":
            page.select_option("#search-1 [name=how]", value)
        else:
            page.fill(f"[name={name}] >> nth=0", value)
    page.click("#go")


def figure(text: str | None, word: str) -> int:
    """The number before a word: 27 of ``searching · 27 distinct steps``."""
    found = re.search(rf"([\d,]+) {word}", text or "")
    assert found, text
    return int(found[1].replace(",", ""))


def direct(url: str, question: str, search: Json, seed: int = 3, key: str | None = None) -> Json:
    """The reply that the same search gets without the page, with its tree."""
    body = {"model": "m", "messages": [{"role": "user", "content": question}], "seed": seed, "search": search}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    reply = httpx.post(f"{url}/v1/search", json=body, headers=headers, timeout=120, trust_env=False)
    assert reply.status_code == 200, reply.text
    found: Json = reply.json()
    return found


@pytest.fixture
def saved_file(tmp_path: Path) -> Path:
    return tmp_path / "search.json"
