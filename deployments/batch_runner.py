"""The batch runner's deployment: a process of its own, so that no search waits for a disk."""

import asyncio
from typing import Any, Protocol

from ray import serve

from deployments.store import Store, StoreSettings
from search.tools.import_path import imported_function


class BatchJobs(Protocol):
    """The batches of an application, as the runner's replica sees them."""

    @property
    def running(self) -> int:
        """Number of batches that run."""

    @property
    def waiting(self) -> int:
        """Number of batches that wait."""

    async def run(self) -> None:
        """Runs batches until it is cancelled."""


class BatchRunnerReplica:
    """Runs the batches that clients leave in the application's store."""

    async def __init__(  # type: ignore[misc]
        self, settings: StoreSettings, store_id: str, seconds: float, jobs: str
    ) -> None:
        """``store_id``: id of the store's directory where the application was built. ``seconds``: longest wall-clock
        limit that a controller may have for a request. ``jobs``: import path of the function that is called with the
        store, the application's name, ``seconds`` and the number of requests of a batch in flight, and returns what
        runs the batches. Those who run batches are clients of an application, so the deployments do not import them.

        Raises:
            ValueError: the settings name no store, or ``jobs`` cannot be imported.
            OtherStore: this node has another directory.
            OSError: the directory cannot be used.
        """
        store = Store.of(settings)
        if store is None:
            raise ValueError("store.path is not set")
        await asyncio.to_thread(store.prepare, store_id)
        application = serve.get_replica_context().app_name
        self._jobs: BatchJobs = imported_function(jobs)(store, application, seconds, settings.batch_requests)
        self._running = asyncio.create_task(self._jobs.run())

    async def check_health(self) -> None:
        """Called by Serve every few seconds.

        Raises:
            RuntimeError: the batch loop has ended; Serve then starts another replica.
        """
        if self._running.done():
            raise RuntimeError("the batch runner has ended") from self._running.exception()

    async def status(self) -> dict[str, Any]:
        """Number of running and of waiting batches."""
        return {"running": self._jobs.running, "waiting": self._jobs.waiting}


BatchRunner = serve.deployment(
    name="BatchRunner",
    num_replicas=1,
    ray_actor_options={"num_cpus": 0},
    health_check_period_s=5.0,
    health_check_timeout_s=20.0,
    graceful_shutdown_timeout_s=2.0,
    graceful_shutdown_wait_loop_s=0.2,
)(BatchRunnerReplica)
"""Bind it with the arguments of `BatchRunnerReplica`. It has one replica; if there are two for a while, as in an
update, the batches' leases keep them apart."""
