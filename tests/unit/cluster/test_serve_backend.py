"""`banyan serve --backend URL` is configured by what the backend says, and refuses in a sentence what it cannot use."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cluster.cli import check_backend
from cluster.cli.main import app
from cluster.cli.serve import VOTE, welcome
from cluster.launch import ray_runtime
from cluster.launch.application import Running
from cluster.launch.backend import KEY_VARIABLE, backend_config
from cluster.launch.config_file import app_config
from cluster.launch.errors import LaunchError
from deployments.backends.capabilities import Capabilities, Finding

KEY = "sk-of-the-test"


class Server(ThreadingHTTPServer):
    """A server of models as an OpenAI client sees it."""

    models: list[dict[str, Any]]
    key: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Models(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        refused = self.server.key is not None and self.headers["Authorization"] != f"Bearer {self.server.key}"
        body = json.dumps({"object": "list", "data": self.server.models}).encode()
        self.send_response(401 if refused else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with Server(("127.0.0.1", 0), Models) as served:
        served.models = [{"id": "small", "max_model_len": 4096}]
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield served
        served.shutdown()
        thread.join()


def generator_of(config: dict[str, Any]) -> dict[str, Any]:
    [application] = config["applications"]
    generator: dict[str, Any] = application["args"]["generator"]
    return generator


def test_the_model_is_the_only_one_or_the_one_that_is_named(server: Server) -> None:
    config = backend_config(server.url, None, None)
    assert generator_of(config) == {"url": server.url, "model": "small"}
    assert config["http_options"]["host"] == "127.0.0.1"
    args = app_config(config)
    assert (args.engines, args.has_rewards) == ({}, False)
    server.models = [{"id": "a"}, {"id": "b"}]
    assert generator_of(backend_config(server.url, "b", None))["model"] == "b"


def test_the_key_is_named_and_not_written(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.key = KEY
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    by_file = backend_config(server.url, None, file)
    assert generator_of(by_file)["api_key_file"] == str(file)
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    by_variable = backend_config(server.url, None, None)
    assert generator_of(by_variable)["api_key_env"] == KEY_VARIABLE
    assert KEY not in json.dumps([by_file, by_variable])


@pytest.mark.parametrize(
    ("models", "model", "message"),
    [
        (["small"], "large", "the backend has no model 'large'; it has: small; choose with --model"),
        (["a", "b"], None, "serves 2 models, so one has to be named: a, b; choose with --model"),
        ([], None, "serves 0 models"),
    ],
)
def test_a_model_that_is_not_there_is_refused(
    server: Server, models: list[str], model: str | None, message: str
) -> None:
    server.models = [{"id": name} for name in models]
    with pytest.raises(LaunchError) as refused:
        backend_config(server.url, model, None)
    assert message in str(refused.value)


def test_a_key_that_is_wrong_or_missing_is_told_with_what_to_do(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = KEY
    with pytest.raises(LaunchError, match=rf"wants a key .*set its key in {KEY_VARIABLE}"):
        backend_config(server.url, None, None)
    monkeypatch.setenv(KEY_VARIABLE, "sk-another")
    with pytest.raises(LaunchError, match=r"does not accept the key") as refused:
        backend_config(server.url, None, None)
    assert "sk-another" not in str(refused.value)
    with pytest.raises(LaunchError, match=r"--backend: api_key_file: the file .* cannot be read"):
        backend_config(server.url, None, tmp_path / "nowhere")


def test_check_backend_takes_the_key_as_serve_does(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = KEY
    without = CliRunner().invoke(app, ["check-backend", server.url])
    assert without.exit_code == 1
    assert f"set its key in {KEY_VARIABLE}, or name a file with --backend-key-file" in " ".join(without.output.split())
    file = tmp_path / "key"
    file.write_text(KEY)
    by_file = CliRunner().invoke(app, ["check-backend", server.url, "--backend-key-file", str(file)])
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    by_variable = CliRunner().invoke(app, ["check-backend", server.url])
    for taken in (by_file, by_variable):  # this server answers no question, and says so
        assert "wants a key" not in taken.output
        assert "501" in taken.output


def test_check_backend_shows_what_a_model_writes_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    written = "It is 4. [/INST] [bold]"

    async def asked(*_: object) -> Capabilities:
        return Capabilities("m", findings=(Finding("usage", True, "a question", written),))

    monkeypatch.setattr(check_backend, "asked", asked)
    shown = StringIO()
    check_backend.show_backend("http://127.0.0.1:8000", None, None, Console(file=shown, width=200))
    assert written in shown.getvalue()


def banyan_serve(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert "Traceback" not in result.output
    return result.exit_code, result.output


def test_the_command_says_what_it_cannot_use() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        status, said = banyan_serve("--backend", f"http://127.0.0.1:{nobody.getsockname()[1]}")
    assert (status, "no connection" in said, "is it running" in said) == (1, True, True)
    assert banyan_serve("--backend", "localhost")[1].startswith("banyan: --backend: url: ")
    assert banyan_serve("--model", "m")[0] == 2
    assert banyan_serve("--backend", "http://127.0.0.1:1", "--config", "c.yaml")[0] == 2


def test_ray_starts_without_dashboard_and_with_a_small_object_store(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[bool, int | None]] = []

    def start(dashboard: bool, object_store_bytes: int | None) -> None:
        started.append((dashboard, object_store_bytes))
        raise LaunchError("enough")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_runtime, "start", start)
    assert banyan_serve("--backend", server.url, "--port", "18093")[0] == 1
    assert banyan_serve("--backend", server.url, "--port", "18093", "--dashboard")[0] == 1
    assert started == [(False, 128 << 20), (True, 128 << 20)]


def test_the_examples_ask_for_what_needs_no_reward_model() -> None:
    shown = welcome(Running("http://127.0.0.1:8000", None, "/logs", 3.0), "small", VOTE).plain
    assert "--strategy sc-16" in shown
    assert '"strategy": "self_consistency"' in shown
    assert 'model="small:sc-16"' in shown
    assert "beam" not in shown
