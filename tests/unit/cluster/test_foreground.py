"""What `banyan serve` prints can be typed as it stands."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from cluster.cli.serve import command, welcome
from cluster.launch.application import Running


def test_the_curl_line_is_a_request_and_the_solve_line_names_the_endpoint() -> None:
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


def test_who_opens_the_dashboard_is_told_where_its_token_is() -> None:
    running = Running("http://127.0.0.1:9000", "http://127.0.0.1:8265", "/logs", 3.0, Path("/home/me/token"))
    assert "dashboard http://127.0.0.1:8265, which asks for the token in /home/me/token" in welcome(running, "m").plain
