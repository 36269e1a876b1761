"""One KV cache server per node, which belongs to the node and to no single replica, actor or other node.

The first generator replica on a node creates the node's ``NodeCache``: a detached actor whose name says of which
application, node and settings it is, so that Ray makes one of them whoever asks, and starts it again, on the same
ports, when its process dies. It holds a ``CacheKeeper``, and the server's guard process ends the server with it.
Nothing that happens elsewhere ends a cache server: there is no process that owns several.

It ends by itself, since nobody else would see to it: when no replica uses it and its application is gone, or the
replicas of its node use another since an update, or nobody has come back for ``idle_s``. Who uses it is known by
process id: what server and engines share is a node's memory in any case. An update that leaves the settings of the
cache as they are leaves the server as it is; engines with other weights find nothing of each other's there.

Where the operator has a server of his own on each node (``cache.host``) there is none of these.

A replica's part is ``CacheClient``: ``attach`` before it builds its engine, ``keep`` in ``check_health``. Without a
cache server it serves all the same.

The actor's class is sent to workers by value; whatever it returns or raises is therefore defined in ``kvstore``.
"""

import asyncio
import hashlib
import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.schema import ApplicationStatus
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from deployments.startup.nodes import this_node
from kvstore.server.cache_server import CacheAddress, CacheKeeper, CacheServerError, choose_address, existing_server
from kvstore.server.figures import UP, ServerFigures
from kvstore.server.processes import Processes
from kvstore.server.segments import SHM, Promise, free_bytes, remove_orphans
from kvstore.settings import CacheSettings

logger = logging.getLogger("banyan.cache")

NAMESPACE = "banyan"
"""Ray's, of the cache servers' actors."""
_LOOK_EVERY_S = 1.0
_SETTLE_S = 15.0
"""After its own restart a server is told by every replica's next health check that it is used."""
_SERVE_TIMEOUT_S = 10.0
_KILL_TIMEOUT_S = 30.0
_KEEP_TIMEOUT_S = 5.0
_RETRY_PAUSE_S = 0.5
_OTHERS_START_S = 90.0
"""So long an engine waits for what those take that start beside it."""


class NodeCache:
    """The cache server of one node. Calls of ``state`` are answered while the server is starting."""

    def __init__(self, settings: dict[str, Any], address: CacheAddress, relied_on: bool, application: str) -> None:
        """``relied_on``: engines know ``address`` already, from a predecessor of this one."""
        context = ray.get_runtime_context()
        self._settings = CacheSettings.model_validate(settings)
        self._application = application
        self._me: Any = context.current_actor
        self._keeper = CacheKeeper(
            self._settings, address, relied_on=relied_on or context.was_current_actor_reconstructed
        )
        self._users = Processes()
        threading.Thread(target=self._end_when_unused, name="cache-users", daemon=True).start()

    def attach(self, pid: int, wait: bool) -> CacheAddress:
        """Start the server, and see to it that there is one for as long as this process of the node runs.

        ``wait``: also until one that is just being restarted answers.

        Raises:
            CacheServerError: it does not start.
        """
        self._users.add(pid)
        if self._keeper.started and not wait:
            return self._keeper.server.address
        try:
            return self._keeper.start()
        except CacheServerError:
            self._users.remove(pid)
            raise

    def state(self) -> dict[str, Any]:
        """``pid`` (None between two lives), ``address``, the number of ``restarts``, and ``users``, process ids."""
        server = self._keeper.server
        return {
            "pid": server.pid,
            "address": server.address,
            "restarts": self._keeper.restarts,
            "users": sorted(self._users.living()),
        }

    def _end_when_unused(self) -> None:
        last_used = time.monotonic()
        pause = threading.Event()
        while not pause.wait(_LOOK_EVERY_S):
            if self._users.living():
                last_used = time.monotonic()
                continue
            try:
                if self._is_over(time.monotonic() - last_used):
                    break
            except Exception:  # Ray's head or Serve's controller is away: asked again
                logger.debug("cannot tell whether the cache server is wanted", exc_info=True)
        self._keeper.stop()
        with suppress(Exception):  # Ray's head is away
            ray.kill(self._me)  # Ray would take the process's mere end for an accident
            pause.wait(_KILL_TIMEOUT_S)
        os._exit(1)  # so it is started again, and looks again

    def _is_over(self, idle_s: float) -> bool:
        """Whether nobody will want this one again, which nobody has used for ``idle_s``."""
        if idle_s > self._settings.idle_s or not _is_there(self._application):
            return True
        return idle_s > _SETTLE_S and (not self._keeper.server.alive() or bool(self._successors()))

    def _successors(self) -> list[str]:
        """Names of the application's other cache servers on this node: it has changed, and so do they."""
        mine = ray.get_runtime_context().get_actor_name() or ""
        named = ray.util.list_named_actors(all_namespaces=True)
        names = [each["name"] for each in named if each["namespace"] == NAMESPACE]
        return [name for name in names if name != mine and name.rpartition(":")[0] == mine.rpartition(":")[0]]


class CacheClient:
    """What a replica has to do with the cache server of its node."""

    def __init__(self, settings: CacheSettings) -> None:
        self._settings = settings
        self._handle: Any = None
        self.address: CacheAddress | None = None
        """None before ``attach``, and where there is no server."""
        self.figures: Mapping[str, int] = {}
        """What the server said of itself when it was last seen to (`ServerFigures`); nothing where none is wanted."""
        self._server_figures = ServerFigures()
        self._promise: Promise | None = None

    async def attach(self, shared_memory: int = 0) -> CacheAddress | None:
        """The running, healthy cache server of this node; None when the cache is disabled, or there is no server.

        ``shared_memory``: what the engine will take of it, bytes, if it is a client of the cache server. An engine that
        finds less than that is killed when it writes there, so it is then none.

        To be awaited in a replica's constructor, before the engine is built: an engine whose server is not there fails
        to start. That there is none is logged; it is waited for no longer than ``settings.start_timeout_s`` plus ten
        seconds and two heartbeats, and for up to 90 seconds before where too little memory is left beside engines that
        start just now. ``engine_started`` is to be called when the engine has started, or not.

        Raises:
            CacheServerError: there is none though ``settings.required``.
        """
        settings = self._settings
        if not settings.enabled:
            return None
        if settings.host:
            await asyncio.to_thread(remove_orphans)  # as the keeper of one of ours would
        try:
            free = await self._promised(shared_memory) if shared_memory else 0
        except OSError as error:
            self._do_without(f"{SHM}: {error.strerror or error}")
            return None
        if free < shared_memory:
            self._do_without(
                f"{SHM} has {free >> 20} MiB left and this engine's KV takes {shared_memory >> 20} MiB there; it wants "
                "to be larger, or generator.kv_cache_memory_bytes smaller"
            )
            return None
        if settings.host:
            try:
                self.address = await asyncio.to_thread(existing_server, settings)
            except CacheServerError as error:
                self._do_without(error)
            return self.address
        deadline = time.monotonic() + settings.start_timeout_s + 2 * settings.heartbeat_interval_s + 10.0
        while True:
            try:
                self.address = await self._attach(deadline - time.monotonic(), wait=True)
                return self.address
            except (RayActorError, TimeoutError, ValueError) as error:
                # It ends just now, or is started again, or hangs.
                if time.monotonic() + _RETRY_PAUSE_S > deadline:
                    self._do_without(str(error) or "it does not answer")
                    return None
                await asyncio.sleep(_RETRY_PAUSE_S)
            except (RayError, CacheServerError) as error:
                self._do_without(getattr(error, "cause", error))
                return None

    async def _promised(self, size: int) -> int:
        """Shared memory that is left for an engine that takes ``size`` of it, which those that start later leave to it.
        Where it depends on what engines take that start just now, they are waited for."""
        self._promise = Promise(size)
        deadline = time.monotonic() + _OTHERS_START_S
        while True:
            before = self._promise.before()
            left = free_bytes() - before
            if left >= size or not before or time.monotonic() > deadline:
                return left
            await asyncio.sleep(_RETRY_PAUSE_S)

    def engine_started(self) -> None:
        """It has its shared memory, or will not take any."""
        if self._promise is not None:
            self._promise.end()

    async def keep(self) -> bool:
        """See to it that the server at ``address`` runs; for ``check_health``. True when it does, or none is ours.

        Never raises and takes some seconds at most: the loss of a cache costs time, not a replica.
        """
        if self.address is None:
            return True
        there = bool(self._settings.host) or await self._is_kept()
        self.figures = await asyncio.to_thread(self._server_figures.read, self.address)
        return there

    async def _is_kept(self) -> bool:
        """See to it that the node's server, which is ours, runs."""
        try:
            return await self._attach(_KEEP_TIMEOUT_S, wait=False) == self.address
        except (ValueError, RayError, TimeoutError, CacheServerError) as error:
            logger.warning("%s: the cache server is not there yet: %s", this_node(), error)
            return False

    def _do_without(self, reason: object) -> None:
        """Raises CacheServerError where a server is required."""
        self.engine_started()
        message = f"{this_node()}: no cache server for this replica: {reason}"
        if self._settings.required:
            raise CacheServerError(message)
        logger.warning("%s. It shares nothing with others until it is started again", message)
        self.figures = {UP: 0}

    async def _attach(self, timeout_s: float, *, wait: bool) -> CacheAddress:
        async with asyncio.timeout(max(0.0, timeout_s)):
            if self._handle is None:
                # Blocks while Ray's own head is away, which must not stop a replica's event loop.
                self._handle = await asyncio.to_thread(self._node_cache)
            try:
                address: CacheAddress = await self._handle.attach.remote(os.getpid(), wait)
            except RayActorError:
                self._handle = None
                raise
            return address

    def _node_cache(self) -> Any:
        """The node's actor, made where there is none."""
        node_id = ray.get_runtime_context().get_node_id()
        application = serve.get_replica_context().app_name
        actor: Any = ray.remote(NodeCache).options(
            name=cache_name(application, node_id, self._settings),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            num_cpus=0,
            max_concurrency=64,  # replicas of the node that wait for it to start
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        address = self.address or choose_address(self._settings)
        return actor.remote(self._settings.model_dump(mode="json"), address, self.address is not None, application)


def _is_there(application: str) -> bool:
    """Whether Serve has the application and is not just deleting it. Raises when Serve does not answer."""
    try:
        controller: Any = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    except ValueError:
        return False
    # Not by `serve.status`, which would ask the controller of its first call for ever.
    details: dict[str, Any] = ray.get(controller.get_serve_instance_details.remote(), timeout=_SERVE_TIMEOUT_S)
    status = details["applications"].get(application, {}).get("status", ApplicationStatus.NOT_STARTED)
    return status not in (ApplicationStatus.NOT_STARTED, ApplicationStatus.DELETING)


def cache_name(application: str, node_id: str, settings: CacheSettings) -> str:
    """Of the actor: all up to the last colon is the same for all cache servers of an application on a node."""
    digest = hashlib.sha256(settings.model_dump_json().encode()).hexdigest()
    return f"cache:{application}:{node_id}:{digest[:16]}"
