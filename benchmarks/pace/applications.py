"""Applications of both checkouts: each runs in a session of its own, and all its processes are gone when it ends."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from benchmarks.model_pairs import ModelPair
from benchmarks.pace.checkouts import Checkout
from cluster.launch.application import free_port

START_S = 300.0
SHUTDOWN_S = 90.0
KILL_S = 10.0
POLL_S = 0.5
HEALTH_S = 10.0
TAIL_CHARACTERS = 4_000


class StartError(RuntimeError):
    """An application ended before it was healthy, or was not healthy in time. Ends with the tail of its output."""


def config_for(checkout: Checkout, models: ModelPair) -> dict[str, Any]:
    """The checkout's own Serve config with these models, without a store and without canary searches."""
    config: dict[str, Any] = yaml.safe_load((checkout.root / "serve_config.yaml").read_text(encoding="utf-8"))
    arguments = config["applications"][0]["args"]
    arguments["generator"]["model"] = models.generator
    arguments["prm"]["model"] = models.prm
    arguments.get("controller", {}).pop("store", None)
    arguments["http"] = {**(arguments.get("http") or {}), "canary_every_s": 0}
    return config


class Application:
    """An application that ``banyan serve`` runs in a process group of its own."""

    def __init__(
        self,
        checkout: Checkout,
        config: Mapping[str, Any],
        directory: Path,
        environment: Mapping[str, str],
        command: Sequence[str] = (),
    ) -> None:
        """Starts it. ``directory`` is the TMPDIR in ``environment``; the config file and the output are put there.

        ``command``: the ``banyan`` command; ``checkout.command`` if empty.
        """
        self.model: str = config["applications"][0]["args"]["generator"]["served_name"]
        self._name, self._directory = checkout.name, directory
        self.output = directory / "output.log"
        file = directory / "serve_config.yaml"
        file.write_text(yaml.safe_dump(dict(config), sort_keys=False), encoding="utf-8")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [*(command or checkout.command), "serve", "--config", str(file), "--port", str(port)],
                cwd=checkout.root,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._root = psutil.Process(self._process.pid)
        self._last_seen: list[psutil.Process] = []

    @property
    def pid(self) -> int:
        """Process id of the command."""
        return self._process.pid

    def processes(self) -> list[psutil.Process]:
        """The command's process, processes that detached from it, such as LMCache's servers, and the descendants of all
        of them."""
        # Detached processes are known by their TMPDIR. Ray's workers are not: they write their title over it.
        found: set[psutil.Process] = set()
        for each in [self._root, *(each for each in psutil.process_iter() if self._is_mine(each))]:
            with suppress(psutil.NoSuchProcess):
                found |= {each, *each.children(recursive=True)}
        return list(found)

    def check_running(self) -> None:
        """
        Raises:
            StartError: the process has ended.
        """
        if (status := self._process.poll()) is not None:
            raise StartError(f"{self._name} ended with status {status}:\n{self._tail()}")

    def wait_healthy(self, deadline: float) -> None:
        """Returns once ``/health`` answers 200.

        Raises:
            StartError: the process ended, or it was not healthy at ``deadline`` (monotonic time).
        """
        with httpx.Client(base_url=self.url, trust_env=False, timeout=HEALTH_S) as http:
            while time.monotonic() < deadline:
                self.check_running()
                with suppress(httpx.HTTPError):
                    if http.get("/health").status_code == httpx.codes.OK:
                        return
                time.sleep(POLL_S)
        raise StartError(f"{self._name} was not healthy within {START_S:g} s:\n{self._tail()}")

    def begin_shutdown(self) -> None:
        """Sends SIGTERM to the command, which then ends its cluster."""
        self._last_seen = self.processes()
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Waits for the command, then kills every process that it has left."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(SHUTDOWN_S)
        with suppress(ProcessLookupError):
            os.killpg(self._root.pid, signal.SIGKILL)
        left = {*self._last_seen, *self.processes()}
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=KILL_S)

    def _is_mine(self, process: psutil.Process) -> bool:
        try:
            if any(each.startswith(f"{self._directory}/") for each in process.cmdline()):
                return True  # such as the engines' template, whose environment cannot be read
            return process.environ().get("TMPDIR") == str(self._directory)
        except (psutil.Error, OSError):
            return False

    def _tail(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")[-TAIL_CHARACTERS:]


@contextmanager
def applications(
    checkouts: Sequence[Checkout], models: ModelPair, directory: Path, inherited: Mapping[str, str]
) -> Iterator[dict[str, Application]]:
    """One healthy application for each checkout, by its name; all are started at once, and all are gone at the end.

    Raises:
        StartError: one of them could not be started.
    """
    omitted = set[str]().union(*(checkout.variables for checkout in checkouts))
    deadline = time.monotonic() + START_S
    running: dict[str, Application] = {}
    try:
        for checkout in checkouts:
            own = directory / checkout.name
            own.mkdir(parents=True)
            environment = checkout.environment(inherited, omitted, own)
            running[checkout.name] = Application(checkout, config_for(checkout, models), own, environment)
        for application in running.values():
            application.wait_healthy(deadline)
        yield running
    finally:
        for application in running.values():
            application.begin_shutdown()
        for application in running.values():
            application.end()
