"""One KV cache server per node, owned by the application.

The generator deployment declares ``cache_actors(settings)``. Serve's controller then runs one ``CacheSupervisor`` for
it: up before the first replica, replaced when it dies, killed after the last replica when the application is deleted.
The supervisor starts one ``NodeCache`` on every node that asks; those are ordinary actors, so Ray ends them with their
owner. A ``NodeCache`` holds a ``CacheKeeper``, and the server's guard process ends the server with it.

A replica's part: ``attach_node_cache`` before it builds its engine, ``keep_node_cache`` in ``check_health``. The
latter is how a new supervisor learns, after the death of the old one, which port the engines on a node rely on.

The actor classes are sent to workers by value; whatever they return or raise is therefore defined in ``kvstore``.
"""

import asyncio
import logging
import time
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve.config import DeploymentActorConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kvstore.cache_server import CacheAddress, CacheKeeper, CacheServerError
from kvstore.settings import CacheSettings

logger = logging.getLogger(__name__)

SUPERVISOR = "cache_supervisor"
_KEEP_TIMEOUT_S = 5.0
_RETRY_PAUSE_S = 0.5


class NodeCache:
    """The cache server of one node. Calls of ``state`` are answered while the server is starting."""

    def __init__(self, settings: dict[str, Any], address: CacheAddress | None) -> None:
        self._keeper = CacheKeeper(CacheSettings.model_validate(settings), address)

    def start(self) -> CacheAddress:
        """Start the server and keep it running. Raises ``CacheServerError``."""
        return self._keeper.start()

    def state(self) -> dict[str, Any]:
        """``pid`` (None between two lives), ``address`` and the number of ``restarts``."""
        server = self._keeper.server
        return {"pid": server.pid, "address": server.address, "restarts": self._keeper.restarts}


class CacheSupervisor:
    """Knows the cache server of every node of the application; starts those that are missing."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._nodes: dict[str, Any] = {}
        self._addresses: dict[str, CacheAddress] = {}
        self._starting: dict[str, asyncio.Task[CacheAddress]] = {}

    async def ensure(self, node_id: str, address: CacheAddress | None = None) -> CacheAddress:
        """The node's server, started if there is none: at ``address`` if given, where engines expect it.

        Callers that give up waiting do not stop the start. Raises ``CacheServerError``.
        """
        if node_id not in self._starting:
            task = asyncio.create_task(self._start(node_id, address))
            self._starting[node_id] = task
            task.add_done_callback(lambda _: self._starting.pop(node_id, None))
        return await asyncio.shield(self._starting[node_id])

    async def states(self) -> dict[str, dict[str, Any]]:
        """``NodeCache.state`` of every node, by node id; a node that does not answer is left out."""
        handles = dict(self._nodes)
        replies = await asyncio.gather(*(handle.state.remote() for handle in handles.values()), return_exceptions=True)
        return {node: reply for node, reply in zip(handles, replies, strict=True) if isinstance(reply, dict)}

    async def _start(self, node_id: str, address: CacheAddress | None) -> CacheAddress:
        handle = self._nodes.get(node_id)
        if handle is not None:
            try:
                await handle.state.remote()
                return self._addresses[node_id]
            except RayActorError:
                del self._nodes[node_id]
        actor: Any = ray.remote(NodeCache).options(
            num_cpus=0,
            max_concurrency=4,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        handle = actor.remote(self._settings, self._addresses.get(node_id) or address)
        self._addresses[node_id] = await handle.start.remote()
        self._nodes[node_id] = handle
        return self._addresses[node_id]


def cache_actors(settings: CacheSettings) -> list[dict[Any, Any] | DeploymentActorConfig]:
    """The ``deployment_actors`` of the generator deployment; none when the cache is disabled."""
    if not settings.enabled:
        return []
    return [
        DeploymentActorConfig(
            name=SUPERVISOR,
            actor_class=ray.remote(CacheSupervisor),
            init_kwargs={"settings": settings.model_dump(mode="json")},
            actor_options={"num_cpus": 0},
        )
    ]


async def attach_node_cache(settings: CacheSettings) -> CacheAddress | None:
    """The running, healthy cache server of this replica's node; None when the cache is disabled.

    To be awaited in a replica's constructor, before the engine is built: an engine without its server fails to start.

    Raises:
        CacheServerError: there is none within ``settings.start_timeout_s`` plus ten seconds and two heartbeats, with
            the last reason.
    """
    if not settings.enabled:
        return None
    deadline = time.monotonic() + settings.start_timeout_s + 2 * settings.heartbeat_interval_s + 10.0
    while True:
        try:
            return await _ensure(None, deadline - time.monotonic())
        except (ValueError, RayActorError, TimeoutError) as error:
            # The supervisor is being replaced, or hangs.
            if time.monotonic() + _RETRY_PAUSE_S > deadline:
                raise CacheServerError(f"this node has no cache server: {error}") from error
            await asyncio.sleep(_RETRY_PAUSE_S)
        except RayError as error:
            raise CacheServerError(f"this node has no cache server: {error}") from error


async def keep_node_cache(address: CacheAddress | None) -> bool:
    """See to it that the server at ``address`` runs; for ``check_health``. True when it does, or none is used.

    Never raises and never takes longer than five seconds: the loss of a cache costs time, not a replica.
    """
    if address is None:
        return True
    try:
        return await _ensure(address, _KEEP_TIMEOUT_S) == address
    except (ValueError, RayError, TimeoutError, CacheServerError) as error:
        logger.warning("the node's cache server is not there yet: %s", error)
        return False


async def _ensure(address: CacheAddress | None, timeout_s: float) -> CacheAddress:
    node_id = ray.get_runtime_context().get_node_id()
    async with asyncio.timeout(max(0.0, timeout_s)):
        # Blocks while Ray's own head is away, which must not stop a replica's event loop.
        supervisor = await asyncio.to_thread(serve.get_deployment_actor, SUPERVISOR)
        reply: CacheAddress = await supervisor.ensure.remote(node_id, address)
        return reply
