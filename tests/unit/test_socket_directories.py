"""Directories of engines' sockets: kept while the owner lives, and removed afterwards, however it ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from deployments.engines.sockets import PREFIX, SocketDirectory

OWNER = """
import sys, time
from pathlib import Path
from deployments.engines.sockets import SocketDirectory
held = SocketDirectory(Path(sys.argv[1]))
(held.path / "socket").touch()
print(held.path, flush=True)
time.sleep(600)
"""


def test_a_directory_is_removed_with_its_engine(tmp_path: Path) -> None:
    first, second = SocketDirectory(tmp_path), SocketDirectory(tmp_path)
    assert set(tmp_path.iterdir()) == {first.path, second.path}
    (first.path / "socket").touch()
    first.remove()
    assert set(tmp_path.iterdir()) == {second.path}
    second.remove()
    assert not any(tmp_path.iterdir())


def test_the_next_start_removes_the_directory_of_a_killed_owner(tmp_path: Path) -> None:
    others = tmp_path / "not-an-engines"
    others.mkdir()
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        theirs = Path(owner.stdout.readline().strip())
        beside = SocketDirectory(tmp_path)
        assert (theirs / "socket").exists(), "its owner lives"
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait(30)
        assert theirs.exists()
        after = SocketDirectory(tmp_path)
    assert set(tmp_path.iterdir()) == {others, beside.path, after.path}
    beside.remove()
    after.remove()


def test_a_file_with_the_prefix_is_ignored(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}notes").touch()
    SocketDirectory(tmp_path).remove()
    assert [path.name for path in tmp_path.iterdir()] == [f"{PREFIX}notes"]


def test_vllm_gets_the_directory_unless_its_paths_would_be_too_long(tmp_path: Path) -> None:
    far = tmp_path / ("a" * 80)
    far.mkdir()
    short, long = SocketDirectory(Path("/tmp")), SocketDirectory(far)
    assert short.environment == {"VLLM_RPC_BASE_PATH": str(short.path)}
    assert long.environment == {}
    short.remove()
    long.remove()
