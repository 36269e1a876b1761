"""One KV cache server per node, which belongs to the node and to no single replica, actor or other node.

The first generator replica on a node creates the node's ``NodeCache``: a detached actor named after its application,
node and settings. So Ray creates only one, whichever replica asks, and restarts it on the same ports when its process
dies. It holds a ``CacheKeeper``, and the server's guard process ends the server with it. A failure on another node
never ends a cache server: no process owns several.

An unused actor ends by itself, because no other process would end it: when its application is gone, when the replicas
of its node use another cache server since an update, or after ``idle_s``. Users are tracked by process id: server and
engines share a node's memory anyway. An update that does not change the cache settings does not touch the server;
engines with different weights share no KV there.

If the operator runs a server on each node (``cache.host``), there is no actor.

A replica uses ``CacheClient``: ``attach`` before it builds its engine, ``keep`` in ``check_health``. A replica without
a cache server still serves.

The actor's class is sent to workers by value, so everything that it returns or raises is defined in ``kvstore``.
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
from kvstore.server.segments import SHM, Reservation, free_bytes, remove_orphans
from kvstore.settings import CacheSettings

logger = logging.getLogger("banyan.cache")

NAMESPACE = "banyan"
"""Ray namespace of the cache servers' actors."""
_LOOK_EVERY_S = 1.0
_SETTLE_S = 15.0
"""Minimum idle seconds before the actor ends: after its restart, every replica attaches at its next health check."""
_SERVE_TIMEOUT_S = 10.0
_KILL_TIMEOUT_S = 30.0
_KEEP_TIMEOUT_S = 5.0
_RETRY_PAUSE_S = 0.5
_OTHERS_START_S = 90.0
"""Longest wait, seconds, for other starting engines to take their shared memory."""


class NodeCache:
    """Actor with the cache server of one node. It answers calls of ``state`` while the server is starting."""

    def __init__(self, settings: dict[str, Any], address: CacheAddress, relied_on: bool, application: str) -> None:
        """``relied_on``: engines know ``address`` already, from a predecessor of this actor."""
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
        """Start the server, and keep it running for as long as the process ``pid`` of this node runs.

        ``wait``: if the server is being restarted, wait until it answers.

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
        """``pid`` (None during a restart), ``address``, the number of ``restarts``, and ``users``, process ids."""
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
            except Exception:  # Ray's head or Serve's controller is unreachable: retried
                logger.debug("cannot tell whether the cache server is still needed", exc_info=True)
        self._keeper.stop()
        with suppress(Exception):  # Ray's head is unreachable
            ray.kill(self._me)  # Ray would restart the actor if its process only ended
            pause.wait(_KILL_TIMEOUT_S)
        os._exit(1)  # Ray restarts the actor, which checks again

    def _is_over(self, idle_s: float) -> bool:
        """Whether the server, unused for ``idle_s`` seconds, is no longer needed."""
        if idle_s > self._settings.idle_s or not _is_there(self._application):
            return True
        return idle_s > _SETTLE_S and (not self._keeper.server.alive() or bool(self._successors()))

    def _successors(self) -> list[str]:
        """Names of the application's other cache servers on this node; there is one after the cache settings
        changed."""
        mine = ray.get_runtime_context().get_actor_name() or ""
        named = ray.util.list_named_actors(all_namespaces=True)
        names = [each["name"] for each in named if each["namespace"] == NAMESPACE]
        return [name for name in names if name != mine and name.rpartition(":")[0] == mine.rpartition(":")[0]]


class CacheClient:
    """A replica's client for the cache server of its node."""

    def __init__(self, settings: CacheSettings) -> None:
        self._settings = settings
        self._handle: Any = None
        self.address: CacheAddress | None = None
        """None before ``attach``, and if there is no server."""
        self.figures: Mapping[str, int] = {}
        """The server's metrics at the last ``keep`` (`ServerFigures`); empty if the cache is disabled."""
        self._server_figures = ServerFigures()
        self._promise: Reservation | None = None

    async def attach(self, shared_memory: int = 0) -> CacheAddress | None:
        """The running, healthy cache server of this node; None if the cache is disabled or there is no server.

        ``shared_memory``: bytes of shared memory that the engine takes as a client of the cache server. An engine that
        finds less is killed when it writes there, so it then runs without the cache.

        To be awaited in a replica's constructor, before the engine is built: an engine whose server is missing fails to
        start. A missing server is logged. The wait for it lasts at most ``settings.start_timeout_s`` plus ten seconds
        and two heartbeats. Before that, the wait for shared memory lasts up to 90 seconds if other engines are just
        starting. Call ``engine_started`` when the engine has started or failed to.

        Raises:
            CacheServerError: there is no server, and ``settings.required``.
        """
        settings = self._settings
        if not settings.enabled:
            return None
        if settings.host:
            await asyncio.to_thread(remove_orphans)  # for Banyan's own server its keeper does this
        try:
            free = await self._promised(shared_memory) if shared_memory else 0
        except OSError as error:
            self._do_without(f"{SHM}: {error.strerror or error}")
            return None
        if free < shared_memory:
            self._do_without(
                f"{SHM} has {free >> 20} MiB left and this engine's KV takes {shared_memory >> 20} MiB there; "
                "make it larger, or generator.kv_cache_memory_bytes smaller"
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
                # The actor is ending, restarting or hanging.
                if time.monotonic() + _RETRY_PAUSE_S > deadline:
                    self._do_without(str(error) or "it does not answer")
                    return None
                await asyncio.sleep(_RETRY_PAUSE_S)
            except (RayError, CacheServerError) as error:
                self._do_without(getattr(error, "cause", error))
                return None

    async def _promised(self, size: int) -> int:
        """Promises ``size`` bytes of shared memory to this replica's engine; the bytes that are left for it. Waits for
        engines that promised theirs earlier, if there may be too few."""
        self._promise = Reservation(size)
        deadline = time.monotonic() + _OTHERS_START_S
        while True:
            before = self._promise.before()
            left = free_bytes() - before
            if left >= size or not before or time.monotonic() > deadline:
                return left
            await asyncio.sleep(_RETRY_PAUSE_S)

    def engine_started(self) -> None:
        """Ends the promise: the engine has its shared memory, or will not take any."""
        if self._promise is not None:
            self._promise.end()

    async def keep(self) -> bool:
        """Ensure that the server at ``address`` runs; for ``check_health``. True if it does, or if Banyan runs none.

        Never raises, and takes some seconds at most: the loss of a cache costs time, not a replica.
        """
        if self.address is None:
            return True
        there = bool(self._settings.host) or await self._is_kept()
        self.figures = await asyncio.to_thread(self._server_figures.read, self.address)
        return there

    async def _is_kept(self) -> bool:
        """Ensure that Banyan's own server of this node runs."""
        try:
            return await self._attach(_KEEP_TIMEOUT_S, wait=False) == self.address
        except (ValueError, RayError, TimeoutError, CacheServerError) as error:
            logger.warning("%s: the cache server is not there yet: %s", this_node(), error)
            return False

    def _do_without(self, reason: object) -> None:
        """Logs that this replica has no cache server. Raises CacheServerError if a server is required."""
        self.engine_started()
        message = f"{this_node()}: no cache server for this replica: {reason}"
        if self._settings.required:
            raise CacheServerError(message)
        logger.warning("%s. It shares no KV with other replicas until it is restarted", message)
        self.figures = {UP: 0}

    async def _attach(self, timeout_s: float, *, wait: bool) -> CacheAddress:
        async with asyncio.timeout(max(0.0, timeout_s)):
            if self._handle is None:
                # In a thread, because it blocks while Ray's head is unreachable.
                self._handle = await asyncio.to_thread(self._node_cache)
            try:
                address: CacheAddress = await self._handle.attach.remote(os.getpid(), wait)
            except RayActorError:
                self._handle = None
                raise
            return address

    def _node_cache(self) -> Any:
        """The node's actor, created if there is none."""
        node_id = ray.get_runtime_context().get_node_id()
        application = serve.get_replica_context().app_name
        actor: Any = ray.remote(NodeCache).options(
            name=cache_name(application, node_id, self._settings),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            num_cpus=0,
            max_concurrency=64,  # for the node's replicas that wait for the server to start
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        address = self.address or choose_address(self._settings)
        return actor.remote(self._settings.model_dump(mode="json"), address, self.address is not None, application)


def _is_there(application: str) -> bool:
    """Whether Serve has the application and is not deleting it. Raises if Serve does not answer."""
    try:
        controller: Any = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    except ValueError:
        return False
    # Not `serve.status`: it keeps asking the controller of its first call, even if that is gone.
    details: dict[str, Any] = ray.get(controller.get_serve_instance_details.remote(), timeout=_SERVE_TIMEOUT_S)
    status = details["applications"].get(application, {}).get("status", ApplicationStatus.NOT_STARTED)
    return status not in (ApplicationStatus.NOT_STARTED, ApplicationStatus.DELETING)


def cache_name(application: str, node_id: str, settings: CacheSettings) -> str:
    """Name of the actor. All cache servers of an application on a node have the same part before the last colon."""
    digest = hashlib.sha256(settings.model_dump_json().encode()).hexdigest()
    return f"cache:{application}:{node_id}:{digest[:16]}"
