"""Starts and stops Ray and Serve for an application in the foreground. Imports Ray, which takes seconds."""

import asyncio
import io
import logging
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from typing import Any, NamedTuple

import ray
from pydantic import ValidationError
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ApplicationStatus, HTTPOptionsSchema, ServeDeploySchema

from cluster.launch.config_file import CONTROLLER
from cluster.launch.errors import LaunchError
from cluster.launch.private_directory import private_directory

POLL_S = 0.5
GRACE_S = 15.0
"""Seconds that running searches may continue when serving ends."""
TELL_S = 5.0
"""Seconds for controllers to get the stop call, and to tell clients that their searches are unfinished."""
FAILED = frozenset({ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY})
MAX_REASON_LINES = 6
MAX_REASON_CHARACTERS = 2_000
STYLE = re.compile(r"\x1b\[[0-9;]*m")


class Cluster(NamedTuple):
    """Addresses of a cluster's dashboard and logs."""

    dashboard_url: str | None
    logs: str


def parse(config: dict[str, Any]) -> ServeDeploySchema:
    """The config as Serve understands it.

    Raises:
        LaunchError: Serve refuses it, or does not know one of the ``http_options``, which it would ignore: with a
            misspelt certificate it would serve without TLS.
    """
    if unknown := (config.get("http_options") or {}).keys() - HTTPOptionsSchema.model_fields.keys():
        allowed = ", ".join(sorted(HTTPOptionsSchema.model_fields))
        raise LaunchError(f"http_options.{min(unknown)} is unknown; allowed are {allowed}")
    try:
        return ServeDeploySchema.model_validate(config)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise LaunchError("\n".join(wrong)) from error


def start(dashboard: bool, object_store_bytes: int | None = None) -> Cluster:
    """Joins the cluster of ``RAY_ADDRESS``, or starts one that ends with this process.

    ``object_store_bytes``: shared memory for Ray's objects, if a cluster is started. None: Ray's own share of the
    machine.

    Raises:
        LaunchError: there can be no private directory for the files of the cluster.
    """
    own = not os.environ.get("RAY_ADDRESS")
    before = signal.getsignal(signal.SIGTERM)
    try:
        context: Any = ray.init(
            address="local" if own else os.environ["RAY_ADDRESS"],
            namespace="serve",
            include_dashboard=dashboard if own else None,
            object_store_memory=object_store_bytes if own else None,
            # Ray opens its session's directory to all users. It is given another one only for a cluster of our own.
            _temp_dir=str(private_directory() / "ray") if own and "RAY_TMPDIR" not in os.environ else None,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    except SystemExit as signalled:
        raise KeyboardInterrupt from signalled
    finally:
        signal.signal(signal.SIGTERM, before)  # Ray installs its own, which exits at any point
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    url = context.dashboard_url
    return Cluster(f"http://{url}" if url else None, os.path.join(context.address_info["session_dir"], "logs"))


def deploy(config: ServeDeploySchema, deadline: float, logs: str, on_progress: Callable[[str], None]) -> None:
    """Deploys the applications and waits until all are running.

    Raises:
        LaunchError: one failed, or was not running at ``deadline`` (monotonic time).
    """
    serve.start(
        proxy_location=config.proxy_location,
        http_options=config.http_options.model_dump(),
        grpc_options=config.grpc_options.model_dump(),
        logging_config=config.logging_config,
        controller_options=config.controller_options,
    )
    # As `serve run` does for a config file: this also applies the file's deployment settings.
    client = _get_global_client()
    if client is None:
        raise LaunchError("Serve did not start")
    client.deploy_apps(config)
    while time.monotonic() < deadline:
        applications = serve.status().applications
        for name, application in applications.items():
            if application.status in FAILED:
                raise LaunchError(f"application {name!r} failed to start:\n{_reason(application)}\nlogs: {logs}")
        if applications and all(each.status is ApplicationStatus.RUNNING for each in applications.values()):
            return
        waiting = [
            name
            for application in applications.values()
            for name, deployment in application.deployments.items()
            if deployment.status != "HEALTHY"
        ]
        on_progress(", ".join(waiting) or "the application")
        time.sleep(POLL_S)
    raise LaunchError(f"the application did not start in time; logs: {logs}")


def stop(before_ray_ends: Callable[[], None]) -> None:
    """Ends Serve, then Ray, if they run."""
    if not ray.is_initialized():
        return
    # Somewhat later Ray reports the controller's orderly end on stdout, as a failed task.
    with redirect_stdout(io.StringIO()):
        try:
            asyncio.run(_end_serve())
        finally:
            before_ray_ends()
            ray.shutdown()


async def _end_serve() -> None:
    """Finishes requests, then shuts Serve down. One event loop for both: it owns the handles, which shutdown closes."""
    with suppress(Exception):  # the application never ran, or its controllers are gone
        await _finish_requests()
    await serve.shutdown_async()


async def _finish_requests() -> None:
    """Lets the controllers finish running searches, which Serve's own shutdown would cut off."""
    for name in serve.status().applications:
        replies = serve.get_deployment_handle(CONTROLLER, name).broadcast("stop", GRACE_S)
        await replies.results_async(timeout_s=GRACE_S + TELL_S, return_exceptions=True)


def _reason(application: Any) -> str:
    """The end of Serve's longest message about a failed application: the error after its traceback."""
    messages = [application.message, *(each.message for each in application.deployments.values())]
    lines = STYLE.sub("", max(messages, key=len)).strip().splitlines()
    return "\n".join(lines[-MAX_REASON_LINES:])[-MAX_REASON_CHARACTERS:]
