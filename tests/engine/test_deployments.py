"""The generator deployment in a real Serve application: what a caller gives up, or leaves behind when it
dies, ends at the engine. In the mode in which the application runs, set in conftest."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.calls.handles import release
from deployments.engines.settings import GeneratorSettings
from deployments.generator import Generator
from search.ports import Branch, ExpandItem, ExpandRequest, Lane, Sampling, StopCondition, branch_seed
from tests.engine.conftest import SETTLE_S, quiet

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(600),
    # Ray's own, about its sockets and its future defaults.
    pytest.mark.filterwarnings("default::ResourceWarning", "default::FutureWarning", "default::DeprecationWarning"),
]
WIDTH = 64
APPLICATION = "engine_tests"


def long_request() -> ExpandRequest:
    """Branches that take many seconds unless they are aborted."""
    branches = tuple(Branch(index, branch_seed(3, (), index), 900) for index in range(WIDTH))
    expansion = ExpandItem((), tuple(range(20, 60)), branches)
    return ExpandRequest("search", (expansion,), Sampling(2.0), StopCondition.SOLUTION, Lane.DEMAND, 600.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def handle(generator_model: str) -> AsyncIterator[DeploymentHandle]:
    with quiet():
        ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
        application = Generator.options(ray_actor_options={"num_cpus": 0.1}).bind(
            GeneratorSettings(model=generator_model), None
        )
        await asyncio.to_thread(serve.run, application, name=APPLICATION, route_prefix=None)
        yield serve.get_deployment_handle("Generator", APPLICATION)
        await asyncio.to_thread(serve.shutdown)
        ray.shutdown()


async def aborted_since(handle: DeploymentHandle, before: dict[str, Any]) -> int:
    """Waits until no branch is alive, which no event outside the replica tells; aborted branches since."""
    async with asyncio.timeout(SETTLE_S):
        while (now := await handle.stats.remote())["branches_alive"]:
            await asyncio.sleep(0.05)
    assert await handle.check_integrity.remote(SETTLE_S) == []
    aborted: int = now["branches_aborted"] - before["branches_aborted"]
    return aborted


@pytest.mark.parametrize("first", [True, False], ids=["after the first group", "at once"])
async def test_releasing_a_stream_aborts_its_branches(handle: DeploymentHandle, first: bool) -> None:
    before = await handle.stats.remote()
    stream = handle.options(stream=True).expand.remote(long_request())
    if first:
        await anext(stream)
    else:
        async with asyncio.timeout(SETTLE_S):
            while not (await handle.stats.remote())["branches_alive"]:
                await asyncio.sleep(0)
    release(stream)
    assert await aborted_since(handle, before) > 0


async def test_a_caller_that_dies_leaves_nothing_running(handle: DeploymentHandle) -> None:
    @ray.remote(num_cpus=0)
    class Caller:
        async def begin(self, request: ExpandRequest) -> None:
            stream = serve.get_deployment_handle("Generator", APPLICATION).options(stream=True).expand.remote(request)
            await anext(stream)
            self.stream = stream

    before = await handle.stats.remote()
    caller = Caller.remote()
    await caller.begin.remote(long_request())
    assert (await handle.stats.remote())["branches_alive"] > 0
    ray.kill(caller)
    assert await aborted_since(handle, before) > 0
