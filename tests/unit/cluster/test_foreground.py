"""`banyan serve`: what it prints can be typed, where it listens it is reached, what Ray writes is nobody else's."""

import datetime as dt
import json
import shlex
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from endpoint_stand_in import listening
from typer.testing import CliRunner

from cluster.cli.main import app
from cluster.cli.serve import card_warnings, command, welcome
from cluster.launch import application, ray_runtime
from cluster.launch.application import Running, url_of
from cluster.launch.config_file import BUILDER
from cluster.launch.errors import LaunchError
from cluster.launch.private_directory import private_directory
from tests.unit.reward_cards import worthless_card


def test_the_curl_line_is_a_valid_request_and_the_solve_line_names_the_endpoint() -> None:
    lines = welcome(Running("http://127.0.0.1:9000", None, "/logs", 3.0), "some-model").plain.splitlines()
    curl = shlex.split(next(line for line in lines if "curl" in line and "-d" in line))
    assert curl[2] == "http://127.0.0.1:9000/v1/chat/completions"
    assert json.loads(curl[-1])["model"] == "some-model"
    solve = shlex.split(next(line for line in lines if " solve " in line))
    assert solve[-2:] == ["--url", "http://127.0.0.1:9000"]


def test_the_command_is_named_by_its_path_where_the_shell_does_not_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [".venv/bin/banyan"])
    assert command() == ".venv/bin/banyan"
    monkeypatch.setattr(sys, "argv", ["/elsewhere/banyan"])
    assert command() == "/elsewhere/banyan"


def test_the_welcome_names_the_file_of_the_dashboard_token() -> None:
    running = Running("http://127.0.0.1:9000", "http://127.0.0.1:8265", "/logs", 3.0, Path("/home/me/token"))
    assert "dashboard http://127.0.0.1:8265, which asks for the token in /home/me/token" in welcome(running, "m").plain


def test_serve_warns_of_a_reward_model_that_is_worth_nothing(tmp_path: Path) -> None:
    def served_with(prm: dict[str, Any]) -> dict[str, Any]:
        return {"applications": [{"import_path": BUILDER, "args": {"prm": prm}}]}

    file = tmp_path / "card.json"
    file.write_text(worthless_card().model_dump_json())
    assert card_warnings(served_with({"card": str(file)})) == [worthless_card().verdict]
    assert card_warnings(served_with({"card": "embedded:prm"})) == []
    assert card_warnings(served_with({})) == []
    assert card_warnings({"applications": [{"import_path": "another:app"}]}) == []


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files, which all users may write."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_rays_files_are_in_a_directory_that_is_this_users_alone(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def init(**arguments: Any) -> None:
        asked.append(arguments)
        raise SystemExit

    monkeypatch.setattr(ray_runtime.ray, "init", init)
    for variable in ("RAY_ADDRESS", "RAY_TMPDIR"):
        monkeypatch.delenv(variable, raising=False)
    for change in ({}, {"RAY_TMPDIR": "/elsewhere"}, {"RAY_ADDRESS": "10.0.0.1:6379"}):
        for name, value in change.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(KeyboardInterrupt):
            ray_runtime.start(dashboard=False)
        for name in change:
            monkeypatch.delenv(name)
    assert [each["_temp_dir"] for each in asked] == [str(private_directory() / "ray"), None, None]
    assert [each["address"] for each in asked] == ["local", "local", "10.0.0.1:6379"]
    assert private_directory().parent == temporary
    assert private_directory().stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_can_enter_is_not_used(temporary: Path) -> None:
    path = private_directory()
    path.chmod(0o755)
    with pytest.raises(
        LaunchError,
        match=r"must belong to this user and be closed to others \(mode 0700\): remove it, or name .* RAY_TMPDIR",
    ):
        private_directory()
    path.rmdir()
    (temporary / "theirs").mkdir(mode=0o700)
    path.symlink_to(temporary / "theirs")
    with pytest.raises(LaunchError, match=r"must belong to this user and be closed to others"):
        private_directory()
    path.unlink()
    path.write_text("")
    with pytest.raises(LaunchError, match="cannot make the directory"):
        private_directory()


class Healthy(BaseHTTPRequestHandler):
    """Answers 200."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def healthy(directory: Path) -> Iterator[str]:
    """An endpoint with a certificate of its own. Yields its URL."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "banyan.example")])
    now = dt.datetime.now(dt.UTC)
    certificate = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    signed = certificate.not_valid_before(now).not_valid_after(now + dt.timedelta(hours=1)).sign(key, SHA256())
    pem = directory / "both.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem.write_bytes(private + signed.public_bytes(Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with HTTPServer(("127.0.0.1", 0), Healthy) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_an_endpoint_with_a_certificate_is_waited_for(tmp_path: Path) -> None:
    """Though the certificate is of another name, and signed by nobody that is known here."""
    with healthy(tmp_path) as url:
        application._wait_healthy(url, time.monotonic() + 20, "/logs")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000/x"),
        ("0.0.0.0", "http://127.0.0.1:8000/x"),
        ("localhost", "http://localhost:8000/x"),
        ("::1", "http://[::1]:8000/x"),
        ("::", "http://[::1]:8000/x"),
        ("fd00::2", "http://[fd00::2]:8000/x"),
    ],
)
def test_the_url_of_an_address_is_one_at_which_this_machine_reaches_it(host: str, url: str) -> None:
    assert url_of(host, 8000, "/x") == url


@pytest.mark.skipif(not Path("/proc/net/if_inet6").is_file(), reason="no IPv6 here")
def test_an_address_of_ipv6_is_polled_shown_for_shells_and_asked() -> None:
    with listening("::1") as endpoint:
        application._wait_healthy(endpoint.url, time.monotonic() + 10, "/logs")
        shown = welcome(Running(endpoint.url, None, "/logs", 3.0), "m").plain
        solve = next(line for line in shown.splitlines() if " solve " in line)
        assert f"--url '{endpoint.url}'" in solve  # unquoted, a shell would look for files of that pattern
        assert f"curl -s '{endpoint.url}/v1/chat/completions'" in shown
        answered = CliRunner().invoke(app, shlex.split(solve)[1:])
        assert "answer     2" in answered.stdout


def test_an_address_that_cannot_be_listened_on_is_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as endpoint:
        port = int(endpoint.url.rpartition(":")[2])
        with pytest.raises(LaunchError, match=rf"cannot listen on 127\.0\.0\.1, port {port} \(Address already in use"):
            application._check_port("127.0.0.1", port)

    def without_ipv6(family: int) -> socket.socket:
        raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr(socket, "socket", without_ipv6)
    with pytest.raises(LaunchError, match=r"cannot listen on ::1, port 8000 \(Address family not supported"):
        application._check_port("::1", 8000)
