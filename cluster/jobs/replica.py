"""The batch runner's deployment: a process of its own, so that no search waits for a disk."""

import asyncio
from typing import Any

from ray import serve

from cluster.client.client import Client
from cluster.client.handles import URL, HandleTransport
from cluster.jobs.batches import BatchJobs
from deployments.store import Store, StoreSettings

GRACE_S = 60.0
"""Seconds that a request may take beyond the limit of a search."""


class BatchRunnerReplica:
    """Runs the application's batches. Sends requests through the controllers' handles, as the owner of each batch."""

    async def __init__(  # type: ignore[misc]
        self, settings: StoreSettings, store_id: str, seconds: float
    ) -> None:
        """``store_id``: id of the store's directory where the application was built. ``seconds``: longest wall-clock
        limit that a controller may have for a request.

        Raises:
            ValueError: the settings name no store.
            OtherStore: this node has another directory.
            OSError: the directory cannot be used.
        """
        store = Store.of(settings)
        if store is None:
            raise ValueError("store.path is not set")
        await asyncio.to_thread(store.prepare, store_id)
        application = serve.get_replica_context().app_name

        def connect(owner: str) -> Client:
            transport = HandleTransport(application, owner)
            in_flight = settings.batch_requests
            return Client(URL, None, seconds + GRACE_S, in_flight, transport=transport, waits_for_room=False)

        self._jobs = BatchJobs(store, connect)
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
