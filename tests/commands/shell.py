"""A user's shell, and the cluster that it starts."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

ROOT = Path(__file__).parents[2]
URL = "http://127.0.0.1:8000"
START_S = 600.0
COMMAND_S = 300.0


class Shell:
    """A user's shells: each sources the environment anew. All their processes have the same unusual HOME, by which they
    are found."""

    def __init__(self, home: Path) -> None:
        self.home = home
        kept = ("PYTHONPATH", "LANG", "TMPDIR")
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        self._environment = {name: os.environ[name] for name in kept if name in os.environ}
        self._environment |= {"PATH": path, "HOME": str(home)}

    def start(self, command: str, log: Path) -> "subprocess.Popen[bytes]":
        with log.open("wb") as output:
            return subprocess.Popen(
                ["sh", "-c", f". scripts/environment && exec {command}"],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def __call__(self, command: str) -> str:
        """Output of a command on stdout; the command must succeed."""
        # Into files: a process that stays in the background would keep a pipe open.
        files = [self.home / name for name in ("stdout", "stderr")]
        with files[0].open("wb") as stdout, files[1].open("wb") as stderr:
            ended = subprocess.run(
                ["sh", "-c", f". scripts/environment && {command}"],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                timeout=COMMAND_S,
                check=False,
            )
        out, err = (file.read_text() for file in files)
        assert ended.returncode == 0, f"{command}\n{out}\n{err}"
        return out

    def processes(self) -> list[psutil.Process]:
        """All processes that these shells started and that still run."""
        return [process for process in psutil.process_iter() if self._started(process)]

    def _started(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("HOME") == str(self.home)
        except psutil.Error:
            return False

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = (yaml.safe_load(self("serve status")) or {}).get("applications", {}).get("banyan", {})
        return status

    def wait_for(self, wanted: str) -> dict[str, Any]:
        """Polls ``serve status`` for the application's part of it, since no event announces a change."""
        deadline = time.monotonic() + START_S
        while (status := self.status()).get("status") != wanted:
            assert time.monotonic() < deadline, status
            time.sleep(1)
        return status


@contextmanager
def head(shell: Shell) -> Iterator[None]:
    """`ray start --head`. It is not ended by `ray stop`, which would end every Ray on this machine."""
    shell("ray start --head")
    try:
        yield
    finally:
        end(shell)


def end(shell: Shell) -> None:
    processes = shell.processes()
    for process in processes:
        try:
            process.terminate()
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(processes, timeout=30)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=10)


def replicas(shell: Shell) -> dict[int, str]:
    """Process ids of the replicas, with their names; Ray appends what a replica is doing."""
    names = {process.pid: " ".join(process.cmdline()).partition(".")[0].strip() for process in shell.processes()}
    return {pid: name for pid, name in names.items() if name.startswith("ray::ServeReplica:")}


def until(condition: Callable[[], Any], message: Callable[[], str], timeout_s: float = START_S) -> Any:
    """Waits until a condition holds that other processes bring about; fails with ``message`` after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, message()
        time.sleep(0.2)
    return found
