"""Runs an application in the foreground: started as ``serve run`` does, without leftover processes."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import httpx

from cluster.launch.config_file import app_config
from cluster.launch.errors import LaunchError
from cluster.launch.processes import no_process_left
from cluster.launch.token import ensure_token
from deployments.engines.environment import can_compile, has_compiled
from deployments.engines.settings import EngineSettings
from deployments.engines.template import begin_templates
from deployments.startup.environment import set_environment

START_S = 600.0
SHUTDOWN_S = 60.0
HEALTH_S = 30.0
POLL_S = 0.25
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
REACHABLE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Loopback address for each address that means all interfaces."""

COMPILING = " (a first start here: engines compile for about a minute)"

OnProgress = Callable[[str], None]


class Running(NamedTuple):
    """A healthy application."""

    url: str
    dashboard_url: str | None
    logs: str
    seconds: float
    """Seconds from the start to the first healthy answer."""
    token_file: Path | None = None
    """File with the token that the dashboard and Ray's commands require."""


def free_port() -> int:
    """A port of the loopback interface that nothing listens on at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def url_of(host: str, port: int, root_path: str = "", scheme: str = "http") -> str:
    """The URL at which this machine reaches an endpoint that listens on ``host``."""
    reachable = REACHABLE.get(host, host)
    return f"{scheme}://{f'[{reachable}]' if ':' in reachable else reachable}:{port}{root_path}"


@contextmanager
def serving(
    config: dict[str, Any], on_progress: OnProgress, dashboard: bool = True, object_store_bytes: int | None = None
) -> Iterator[Running]:
    """Runs the application of a Serve config: healthy inside the block, stopped after it.

    Joins the cluster of ``RAY_ADDRESS`` if that is set, and leaves it running; else starts a cluster of its own.
    SIGTERM and SIGHUP end the block as Ctrl-C does. During shutdown all three are ignored.

    Raises:
        LaunchError: the port is taken, the application failed to start or was not healthy in time.
    """
    began = time.monotonic()
    set_environment()
    token = ensure_token()
    on_progress("loading Ray")
    from cluster.launch import ray_runtime  # imported here: takes seconds

    parsed = ray_runtime.parse(config)
    host, port = parsed.http_options.host, parsed.http_options.port
    if not os.environ.get("RAY_ADDRESS"):
        _check_port(host, port)
        for name in ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs"):
            if (file := getattr(parsed.http_options, name)) and not os.access(file, os.R_OK):
                raise LaunchError(f"http_options.{name}: {file} cannot be read")
    scheme = "https" if parsed.http_options.ssl_certfile else "http"
    url = url_of(host, port, parsed.http_options.root_path, scheme)
    with _interruptible() as hold, no_process_left() as processes:
        try:
            engines = {} if os.environ.get("RAY_ADDRESS") else _engines(config)  # those on this machine
            begin_templates(engines.values())  # they import vLLM while Ray starts, which leaves the processors idle
            on_progress("starting Ray")
            cluster = ray_runtime.start(dashboard, object_store_bytes)
            hint = COMPILING if engines and can_compile() and not has_compiled() else ""
            ray_runtime.deploy(
                parsed, began + START_S, cluster.logs, lambda waiting: on_progress(f"starting {waiting}{hint}")
            )
            on_progress("waiting for the first healthy answer")
            _wait_healthy(url, began + START_S, cluster.logs)
            yield Running(url, cluster.dashboard_url, cluster.logs, time.monotonic() - began, token)
        finally:
            hold()
            on_progress("stopping")
            processes.look()
            _within(SHUTDOWN_S, lambda: ray_runtime.stop(before_ray_ends=processes.look))


def _engines(config: dict[str, Any]) -> Mapping[str, EngineSettings]:
    """The engines of the application."""
    with suppress(LaunchError):  # another application than Banyan's
        return app_config(config).engines
    return {}


def _check_port(host: str, port: int) -> None:
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
    except (OSError, OverflowError) as error:  # also where this machine has no IPv6
        reason = getattr(error, "strerror", None) or str(error)
        raise LaunchError(
            f"cannot listen on {host}, port {port} ({reason}); choose another with --host or --port"
        ) from error


def _wait_healthy(url: str, deadline: float, logs: str) -> None:
    last = "nothing"
    # The certificate is made out to the name by which clients reach the endpoint. /health needs no key.
    with httpx.Client(trust_env=False, timeout=HEALTH_S, verify=False) as client:
        while time.monotonic() < deadline:
            try:
                response = client.get(f"{url}/health")
            except httpx.HTTPError as error:
                last = str(error) or type(error).__name__
            else:
                if response.status_code == httpx.codes.OK:
                    return
                last = f"HTTP {response.status_code}"
            time.sleep(POLL_S)
    raise LaunchError(f"not healthy within {START_S:g} s: {url}/health returned {last}; logs: {logs}")


def _within(seconds: float, work: Callable[[], None]) -> None:
    """Runs ``work`` and waits for it at most ``seconds``: a broken cluster must not keep the command alive."""
    thread = threading.Thread(target=work, daemon=True, name="shutdown")
    thread.start()
    thread.join(seconds)


@contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """Turns every stopping signal into a KeyboardInterrupt. Yields a function that makes this process ignore them."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def hold() -> None:
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)

    before = {number: signal.signal(number, interrupt) for number in STOPPING}
    try:
        yield hold
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
