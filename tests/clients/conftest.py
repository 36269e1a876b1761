"""One application for all client tests, started as a user starts it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cluster.launch.application import free_port
from tests.agent_model import agent_settings
from tests.tool_templates import HERMES

CONFIG = Path(__file__).parents[2] / "serve_config.yaml"
START_S = 600.0
STOP_S = 120.0


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of ``banyan serve`` with the shipped configuration and a chat template that takes tools. Without tools it
    makes the same prompts as the model's own."""
    directory = tmp_path_factory.mktemp("serve")
    template = directory / "tools.jinja"
    template.write_text(HERMES)
    with serving(directory, {"generator": {"chat_template": str(template)}}) as url:
        yield url


@pytest.fixture(scope="session")
def calling_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of another, whose model makes two calls of ``flip`` at once."""
    directory = tmp_path_factory.mktemp("calling")
    settings = agent_settings(directory, [("flip", {"side": True}), ("flip", {"side": False})], context=4096)
    with serving(directory, settings) as url:
        yield url


@contextmanager
def serving(directory: Path, settings: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Runs ``banyan serve`` with the shipped configuration and some other settings; yields its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    output, config = directory / "output", directory / "serve_config.yaml"
    shipped = yaml.safe_load(CONFIG.read_text())
    for part, others in settings.items():
        shipped["applications"][0]["args"][part].update(others)
    config.write_text(yaml.safe_dump(shipped))
    # A token of its own, and none of the API keys that may be set here.
    environment = {name: value for name, value in os.environ.items() if name != "BANYAN_API_KEYS"}
    environment["RAY_AUTH_TOKEN_PATH"] = str(directory / "token")
    environment["HOME"] = str(directory)  # where clients leave files and batches
    # In a session of its own, so that it gets none of this test's signals and leaves no process behind.
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "cluster.cli.main", "serve", "--config", str(config), "--port", str(port)],
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_S
        while not _healthy(url):
            assert process.poll() is None, output.read_text(errors="replace")
            assert time.monotonic() < deadline, output.read_text(errors="replace")
            time.sleep(0.5)
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=30.0, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
