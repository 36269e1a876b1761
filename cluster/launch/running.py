"""Finds the application on the cluster where this process runs, as a job of ``ray job submit`` does."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from cluster.launch.config_file import CONTROLLER
from cluster.launch.errors import LaunchError
from cluster.launch.token import ensure_token
from deployments.startup.environment import set_environment


@contextmanager
def joined_application() -> Iterator[str | None]:
    """Joins the cluster of ``RAY_ADDRESS`` until the end of the block. Yields the name of Banyan's application there;
    None if there is no such cluster, or no such application on it.

    Raises:
        LaunchError: the cluster cannot be joined, or several applications run there.
    """
    if not os.environ.get("RAY_ADDRESS"):
        yield None
        return
    set_environment()
    ensure_token()
    import ray  # imported here: takes seconds
    from ray import serve
    from ray.serve.schema import ApplicationStatus

    try:
        ray.init(namespace="serve", logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise LaunchError(f"cannot join the cluster {os.environ['RAY_ADDRESS']}: {error}") from error
    try:
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        names = [
            name
            for name, application in serve.status().applications.items()
            if application.status is ApplicationStatus.RUNNING and CONTROLLER in application.deployments
        ]
        if len(names) > 1:
            raise LaunchError(f"several applications run here: {', '.join(names)}; name one's endpoint with --url")
        yield names[0] if names else None
    finally:
        ray.shutdown()
