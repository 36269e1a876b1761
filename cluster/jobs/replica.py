"""What the deployment of the batch runner runs: a process of its own, so that no search waits for a disk."""

import asyncio
from typing import Any

from ray import serve

from cluster.client.client import Client
from cluster.client.handles import URL, HandleTransport
from cluster.jobs.batches import BatchJobs
from deployments.store import Store, StoreSettings

GRACE_S = 60.0
"""A request has so much longer than a search may take."""


class BatchRunnerReplica:
    """Asks the controllers of its own application, by their handles, as the owner of each batch."""

    async def __init__(  # type: ignore[misc]
        self, settings: StoreSettings, store_id: str, seconds: float
    ) -> None:
        """``store_id``: what the directory was known by where the application was built. ``seconds``: the longest
        wall clock of one request that a controller may be told.

        Raises:
            ValueError: nothing is kept here.
            OtherStore: the directory on this node is another.
            OSError: it cannot be used.
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
            RuntimeError: nobody does batches any more; Serve starts another replica.
        """
        if self._running.done():
            raise RuntimeError("the batch runner has ended") from self._running.exception()

    async def status(self) -> dict[str, Any]:
        """How many batches are at work, and how many wait."""
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
"""To be bound with `StoreSettings` and a request's seconds. One replica; should there be two for a while, as in an
update, the leases of the batches keep them apart."""
