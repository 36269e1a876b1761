"""Make, sh and Python read the same environment from one file. The token is created once and kept private."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.launch.errors import LaunchError
from cluster.launch.token import ensure_token
from deployments.startup import environment
from deployments.startup.environment import set_environment, variables

ROOT = Path(__file__).parents[3]
BARE = {"HOME": "/somewhere/else", "PATH": os.environ["PATH"]}


def read_by(*command: str) -> dict[str, str]:
    shown = subprocess.run(command, cwd=ROOT, env=BARE, capture_output=True, text=True, check=True).stdout
    pairs = (line.partition("=") for line in shown.splitlines())
    return {name: value for name, _, value in pairs}


@pytest.mark.parametrize(
    "command",
    [
        ("sh", "-c", ". scripts/environment && env"),
        ("make", "--no-print-directory", "-f", "scripts/environment", "--eval", "shown: ; @env", "shown"),
    ],
    ids=["sh", "make"],
)
def test_make_and_sh_read_the_same_variables_as_python(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", BARE["HOME"])
    said = variables()
    assert said["RAY_AUTH_MODE"] == "token"
    assert said["RAY_AUTH_TOKEN_PATH"] == "/somewhere/else/.banyan/ray_token"
    assert read_by(*command).items() >= said.items()


def test_variables_that_are_set_already_stay_unless_the_file_turns_them_off() -> None:
    mine = {"RAY_AUTH_TOKEN_PATH": "/mine", "PYTHONDONTWRITEBYTECODE": "1"}
    set_environment(mine)
    assert mine == variables() | {"RAY_AUTH_TOKEN_PATH": "/mine"}
    assert mine["PYTHONDONTWRITEBYTECODE"] == ""


def test_variables_that_kubernetes_sets_for_services_are_removed() -> None:
    """A Service named `vllm` sets VLLM_PORT, where vLLM expects a number: every engine would end at its start."""
    links = {
        "VLLM_PORT": "tcp://10.96.7.31:8000",
        "VLLM_DP_MASTER_PORT": "tcp://10.96.7.32:80",
        "LMCACHE_PORT": "tcp://[fd00::7]:5555",
        "RAY_GCS_SERVER_PORT": "tcp://10.96.7.33:6379",
        "MASTER_PORT": "udp://10.96.7.34:29500",
        "BANYAN_PORT": "sctp://10.96.7.35:8000",
    }
    mine = {
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "5600",
        "RAY_ADDRESS": "10.96.7.33:6379",
        "RAY_REDIS_ADDRESS": "tcp://redis:6379",
    }
    given = links | mine
    set_environment(given)
    assert given == variables() | mine


def test_bytecode_is_written_whatever_the_callers_environment_says(tmp_path: Path) -> None:
    """By the process itself, and by the processes that it starts."""
    for name in ("of_parent", "of_child"):
        (tmp_path / f"{name}.py").touch()
    program = (
        "import subprocess, sys; from deployments.startup.environment import set_environment; set_environment(); "
        "import of_parent; subprocess.run([sys.executable, '-c', 'import of_child'], check=True)"
    )
    given = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    given.pop("PYTHONPYCACHEPREFIX", None)
    subprocess.run([sys.executable, "-c", program], env=given, check=True, timeout=60)
    written = {path.name.split(".")[0] for path in (tmp_path / "__pycache__").iterdir()}
    assert written == {"of_parent", "of_child"}


def test_a_line_that_sh_make_and_python_read_differently_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "environment.sh"
    file.write_text('export A=1\nexport B="two words"\n')
    monkeypatch.setattr(environment, "FILE", file)
    with pytest.raises(ValueError, match=r"environment\.sh:2"):
        variables()


def test_the_token_is_created_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "token"
    said = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}
    assert ensure_token(said) == path
    token = path.read_text()
    assert len(token) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert ensure_token(said) == path
    assert path.read_text() == token
    assert list(path.parent.iterdir()) == [path]


def test_no_token_is_created_if_ray_does_not_use_one(tmp_path: Path) -> None:
    said = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    assert ensure_token(said | {"RAY_AUTH_TOKEN": "given"}) is None
    assert ensure_token(said | {"RAY_AUTH_MODE": "disabled"}) is None
    assert list(tmp_path.iterdir()) == []


def test_a_token_that_cannot_be_read_or_created_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "token"
    empty.touch()
    with pytest.raises(LaunchError, match=f"{empty} contains no token"):
        ensure_token({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(empty)})
    with pytest.raises(LaunchError, match="cannot make Ray's token"):
        ensure_token({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(empty / "below")})
