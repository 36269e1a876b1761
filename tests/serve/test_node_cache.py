"""The node's cache server: up before its replicas, restarted after a kill, and ended with its application.

Dummy replicas without engines stand in for generators; Ray, Serve and LMCache are real.
"""

import asyncio
import os
import re
import select
import signal
import sys
import tempfile
import urllib.request
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import ray
from ray.exceptions import RayActorError

with warnings.catch_warnings(action="ignore"):  # Serve's own warning about pydantic
    from ray import serve
    from ray.serve.handle import DeploymentHandle

from cluster.launch.application import free_port
from deployments.node_cache import NAMESPACE, CacheClient
from kvstore.server import segments
from kvstore.server.cache_server import CacheAddress
from kvstore.settings import CacheSettings

SETTINGS = CacheSettings(l1_size_gb=0.0625)
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),  # handles belong to the event loop of their first use
    pytest.mark.timeout(600),
    # Ray's own warnings about its sockets and its future defaults
    pytest.mark.filterwarnings("default::ResourceWarning", "default::FutureWarning", "default::DeprecationWarning"),
]
WAIT_S = 180.0
ROOT = Path(__file__).parents[2]


def application(settings: CacheSettings = SETTINGS, replicas: int = 2, shared_memory: int = 0) -> serve.Application:
    """An application that is sent to workers by value, since they cannot import this module: it uses nothing else of
    it."""

    @serve.deployment(num_replicas=replicas, ray_actor_options={"num_cpus": 0}, health_check_period_s=1)
    class Dummy:
        async def __init__(self) -> None:  # type: ignore[misc]  # Serve awaits it
            self.client = CacheClient(settings)
            self.answered_at_start = False
            if address := await self.client.attach(shared_memory):
                # An engine would connect now: the server must answer already.
                reply = await asyncio.to_thread(urllib.request.urlopen, f"{address.http}/healthcheck", timeout=10)
                self.answered_at_start = reply.status == 200

        async def check_health(self) -> None:
            await self.client.keep()

        async def report(self) -> dict[str, Any]:
            return {
                "relied_on": self.client.address,
                "answered_at_start": self.answered_at_start,
                "replica": os.getpid(),
                "figures": self.client.figures,
            }

    deployment: Any = Dummy
    bound: serve.Application = deployment.bind()
    return bound


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def handle() -> AsyncIterator[DeploymentHandle[Any]]:
    async with running_ray():
        yield await asyncio.to_thread(serve.run, application(), name="node-cache", route_prefix=None)
        await asyncio.to_thread(serve.delete, "node-cache")


@asynccontextmanager
async def running_ray() -> AsyncIterator[None]:
    """A Ray of its own, or the one that another test module has left running."""
    if ray.is_initialized():
        yield
        return
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as temp_dir,  # sockets need a short path
    ):
        patch.setenv("RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S", "0")  # there is no load balancer
        ray.init(address="local", num_cpus=2, include_dashboard=False, _temp_dir=temp_dir)
        try:
            serve.start(proxy_location="Disabled")
            yield
        finally:
            await asyncio.to_thread(serve.shutdown)
            ray.shutdown()


async def report(handle: DeploymentHandle[Any]) -> dict[str, Any]:
    """What a replica reports, and the state of the only cache server."""
    async with asyncio.timeout(WAIT_S):
        (cache,) = caches()
        state: dict[str, Any] = await cache.state.remote()
        return {**state, **await handle.report.remote()}


def caches() -> list[Any]:
    """Actors of all cache servers."""
    named = ray.util.list_named_actors(all_namespaces=True)
    found = []
    for each in named:
        if each["namespace"] == NAMESPACE:
            with suppress(ValueError):  # the actor has ended since it was listed
                found.append(ray.get_actor(**each))
    return found


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Waits until a condition holds that no process announces; fails after a limited time."""
    async with asyncio.timeout(WAIT_S):
        while not await holds():
            await asyncio.sleep(0.1)


async def await_end(*pids: int) -> None:
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            ended: tuple[list[int], Any, Any] = await asyncio.to_thread(select.select, [pidfd], [], [], WAIT_S)
            assert ended[0], f"process {pid} still runs"
        finally:
            os.close(pidfd)


def guard_of(server: int) -> int:
    return int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])


async def answers(address: CacheAddress) -> bool:
    try:
        reply = await asyncio.to_thread(urllib.request.urlopen, f"{address.http}/healthcheck", timeout=3)
    except OSError:
        return False
    with reply:
        return bool(reply.status == 200)


async def test_the_server_starts_before_the_replicas_which_share_it(handle: DeploymentHandle[Any]) -> None:
    seen: dict[int, dict[str, Any]] = {}

    async def both_seen() -> bool:
        one = await report(handle)
        seen.setdefault(one["replica"], one)
        return len(seen) == 2

    await until(both_seen)
    first, second = seen.values()
    assert first["answered_at_start"]
    assert second["answered_at_start"]
    assert first["address"] == second["address"]
    assert first["pid"] == second["pid"]


async def test_a_killed_owner_is_replaced_and_the_server_restarts_on_the_same_port(
    handle: DeploymentHandle[Any],
) -> None:
    before = await report(handle)
    (cache,) = caches()
    os.kill(await cache.__ray_call__.remote(lambda _: os.getpid()), signal.SIGKILL)
    await await_end(before["pid"])
    await until(lambda: answers(before["address"]))

    async def owned_again() -> bool:
        try:
            now = await report(handle)
        except RayActorError:  # while it is being started
            return False
        return bool(now["pid"] != before["pid"] and now["users"] == before["users"])

    await until(owned_again)
    assert (await report(handle))["address"] == before["address"]


async def test_the_server_outlives_all_its_replicas_and_is_found_by_the_next(handle: DeploymentHandle[Any]) -> None:
    before = await report(handle)
    assert len(before["users"]) == 2
    for replica in before["users"]:
        os.kill(replica, signal.SIGKILL)

    async def replaced() -> bool:
        (cache,) = caches()
        users = (await cache.state.remote())["users"]
        return len(users) == 2 and not set(users) & set(before["users"])

    await until(replaced)
    after = await report(handle)
    assert (after["pid"], after["address"]) == (before["pid"], before["address"])
    assert after["relied_on"] == before["address"]


@pytest.mark.long
async def test_an_update_starts_a_new_server_only_if_its_settings_differ(handle: DeploymentHandle[Any]) -> None:
    before = await report(handle)
    again = await asyncio.to_thread(serve.run, application(), name="node-cache", route_prefix=None)
    assert (await report(again))["pid"] == before["pid"]
    changed = SETTINGS.model_copy(update={"chunk_size": 64})
    updated = await asyncio.to_thread(serve.run, application(changed), name="node-cache", route_prefix=None)

    async def alone() -> bool:
        return len(caches()) == 1

    await until(alone)
    await await_end(before["pid"])
    after = await report(updated)
    assert after["address"] != before["address"]
    assert after["relied_on"] == after["address"]
    assert await answers(after["address"])


async def test_shared_memory_of_a_dead_engine_is_removed(handle: DeploymentHandle[Any]) -> None:
    engine = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import os; open(f'/dev/shm/lmcache_kv_{os.getpid()}_0', 'x').close()"
    )
    assert await engine.wait() == 0

    async def removed() -> bool:
        return not any(segments.creator(name) == engine.pid for name in segments.segments())

    await until(removed)
    assert (await report(handle))["pid"]


async def test_the_server_ends_with_the_application(handle: DeploymentHandle[Any]) -> None:
    state = await report(handle)
    guard = guard_of(state["pid"])
    await asyncio.to_thread(serve.delete, "node-cache")
    await await_end(state["pid"], guard)
    assert not await answers(state["address"])

    async def none() -> bool:
        return not caches()

    await until(none)


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "shared_memory"),
    [
        (SETTINGS.model_copy(update={"l2_adapters": ({"type": "nothing-of-the-kind"},)}), 0),
        (SETTINGS, 1 << 60),
    ],
    ids=["it does not start", "too little shared memory"],
)
async def test_without_a_server_replicas_serve_unless_one_is_required(
    handle: DeploymentHandle[Any], settings: CacheSettings, shared_memory: int
) -> None:
    alone = application(settings, 1, shared_memory)
    without = await asyncio.to_thread(serve.run, alone, name="without", route_prefix=None)
    try:
        async with asyncio.timeout(WAIT_S):
            assert (await without.report.remote())["relied_on"] is None
        required = application(settings.model_copy(update={"required": True}), 1, shared_memory)
        # Serve reports the reason for a first deployment: replicas that fail make it give up.
        with pytest.raises(RuntimeError):
            await asyncio.to_thread(serve.run, required, name="required", route_prefix=None)
        message = serve.status().applications["required"].deployments["Dummy"].message
        assert re.search(r"node 127\.0\.0\.1 \(\w{8}\): no cache server for this replica: ", message), message
        assert ("MiB left" if shared_memory else "nothing-of-the-kind") in message
    finally:
        for name in ("without", "required"):
            await asyncio.to_thread(serve.delete, name)

    async def none() -> bool:
        return not caches()

    await until(none)


@asynccontextmanager
async def operators_own() -> AsyncIterator[CacheSettings]:
    """Settings for a server that somebody else has started, as in LMCache's documentation."""
    port, http_port = free_port(), free_port()
    command = [str(Path(sys.executable).with_name("lmcache")), "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--http-host", "127.0.0.1", "--http-port", str(http_port)]
    sizes = ["--l1-size-gb", "0.0625", "--chunk-size", "64", "--eviction-policy", "LRU"]
    nowhere = asyncio.subprocess.DEVNULL
    server = await asyncio.create_subprocess_exec(*command, *sizes, stdout=nowhere, stderr=nowhere)
    try:
        yield CacheSettings(host="127.0.0.1", port=port, http_port=http_port, chunk_size=64)
        assert server.returncode is None, "it is left alone"
    finally:
        server.terminate()
        await server.wait()


@pytest.mark.long
async def test_an_operators_own_server_is_used_and_left_alone(handle: DeploymentHandle[Any]) -> None:
    before = caches()
    async with operators_own() as settings:
        client = CacheClient(settings)
        assert await client.attach() == CacheAddress(settings.host, settings.port, settings.http_port)
        assert await client.keep()
        assert client.figures["lmcache_up"] == 1
        other = CacheClient(settings.model_copy(update={"chunk_size": 32}))
        assert await other.attach() is None
        assert await other.keep()
        assert other.figures == {"lmcache_up": 0}
        assert len(caches()) == len(before)


CRASHING_APPLICATION = """
import asyncio, sys
sys.path[:0] = sys.argv[2:]
import ray, test_node_cache
from ray import serve
ray.init(address="local", num_cpus=2, include_dashboard=False, _temp_dir=sys.argv[1])
serve.start(proxy_location="Disabled")
handle = serve.run(test_node_cache.application(), name="crash", route_prefix=None)
async def pid():
    return (await test_node_cache.report(handle))["pid"]
print("server", asyncio.run(pid()), flush=True)
sys.stdin.read()
"""


@pytest.mark.long
async def test_the_server_ends_when_everything_is_killed() -> None:
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as temp_dir:
        driver = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", CRASHING_APPLICATION, temp_dir, str(ROOT), str(Path(__file__).parent)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            assert driver.stdout is not None
            line = b""
            while not line.startswith(b"server "):
                line = await driver.stdout.readline()
                assert line, "the application did not start"
            server = int(line.split()[1])
            guard = guard_of(server)
        finally:
            driver.kill()
            await driver.wait()
        await await_end(server, guard)


async def test_a_disabled_cache_contacts_no_server() -> None:
    client = CacheClient(CacheSettings(enabled=False))
    assert await client.attach() is None
    assert await client.keep()
