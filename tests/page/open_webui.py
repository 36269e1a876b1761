"""Open WebUI as published, in front of an application, and its page."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page

from cluster.launch.application import free_port
from tests.serve.application import until

PROGRAM = os.environ.get("OPEN_WEBUI", "")
START_S = 300.0
ANSWER_S = 120.0
ENVIRONMENT = {
    "WEBUI_AUTH": "False",
    "OFFLINE_MODE": "true",
    "HF_HUB_OFFLINE": "1",
    "ENABLE_OLLAMA_API": "false",
    "RAG_EMBEDDING_ENGINE": "openai",  # the default fetches a model
    "WEBUI_SECRET_KEY": "none but this test reaches it",
}
needs_open_webui = [
    pytest.mark.skipif(not PROGRAM, reason="OPEN_WEBUI does not name Open WebUI's program"),
    pytest.mark.timeout(540),
    pytest.mark.filterwarnings("default::ResourceWarning", "default::FutureWarning", "default::DeprecationWarning"),
]


@contextmanager
def open_webui(endpoint: str, key: str, directory: Path, **settings: str) -> Iterator[str]:
    """Runs Open WebUI in front of an endpoint; yields its URL. ``settings``: in its environment."""
    port = free_port()
    own = {"PATH": os.environ["PATH"], "HOME": str(directory), "DATA_DIR": str(directory), "NO_PROXY": "127.0.0.1"}
    server = {"OPENAI_API_BASE_URL": f"{endpoint}/v1", "OPENAI_API_KEY": key}
    log = directory / "log"
    with log.open("wb") as output:
        served = subprocess.Popen(
            [PROGRAM, "serve", "--host", "127.0.0.1", "--port", str(port)],
            cwd=directory,
            env=own | server | ENVIRONMENT | settings,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"

    def is_up() -> bool:
        assert served.poll() is None, log.read_text()[-4000:]
        try:
            return httpx.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    try:
        until(is_up, "Open WebUI answers", START_S, every_s=0.5)
        yield url
    finally:
        os.killpg(served.pid, signal.SIGKILL)
        served.wait()


@contextmanager
def chat_page(browser: Browser, url: str) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    page = context.new_page()
    page.goto(url)
    page.get_by_role("button", name="Okay, Let's Go!").click()  # what is new in this version
    yield page
    context.close()


def ask(page: Page, text: str) -> None:
    page.locator("#chat-input").click()
    page.keyboard.type(text)
    page.keyboard.press("Enter")
