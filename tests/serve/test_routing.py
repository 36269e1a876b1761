"""The generator that gets a call: the home of its search, or another one after a failure. Generators share computed
prefixes."""

import asyncio
from typing import Any
from uuid import uuid4

from ray import serve

from deployments.calls.dismantle import replica_of
from deployments.calls.envelope import Envelope
from deployments.calls.pool import replicas_of
from deployments.scaling.homes import PLACED
from search.ports import Branch, ExpandItem, ExpandRequest, Lane, Sampling, StopCondition
from tests.serve.application import Application, cached_by_prefix, new_prefix, until

LONG = 200


def one_branch(search_id: str, tokens: int = 1) -> ExpandRequest:
    part = ExpandItem((), new_prefix(), (Branch(0, 1, tokens),))
    return ExpandRequest(search_id, (part,), Sampling(), StopCondition.SOLUTION, Lane.DEMAND, 60.0)


async def writer(handle: Any, request: ExpandRequest, *avoid: str) -> str:
    """The replica that writes the branch."""
    response = handle.expand.remote(request, Envelope(avoid))
    async for _ in response:
        pass
    found = replica_of(response)
    assert found is not None
    return found


def test_a_search_stays_at_its_home_and_a_failed_call_goes_to_another_replica(idle: Application) -> None:
    async def asked() -> list[tuple[set[str], str, str]]:
        handle = serve.get_deployment_handle("Generator", idle.NAME).options(stream=True)
        for _ in range(PLACED):  # new replicas get new searches until they have as many as the others
            await writer(handle, one_branch(uuid4().hex))
        searches = [uuid4().hex for _ in range(8)]
        homes = [{await writer(handle, one_branch(search)) for _ in range(4)} for search in searches]
        assert len(set.union(*homes)) == 2, "each replica is the less busy one for some"
        assert replicas_of(handle) == dict.fromkeys(set.union(*homes), True)
        elsewhere = [
            await writer(handle, one_branch(search), *home) for search, home in zip(searches, homes, strict=True)
        ]
        then = [await writer(handle, one_branch(search)) for search in searches]
        return list(zip(homes, elsewhere, then, strict=True))

    found = idle.run(asked())
    assert all(len(homes) == 1 and elsewhere not in homes for homes, elsewhere, _ in found)
    assert all(then == elsewhere for _, elsewhere, then in found), "the rest of the search goes there too"


def test_calls_are_counted_until_they_end(idle: Application) -> None:
    handle: Any = None

    def at_work() -> int:
        return sum(handle._router._asyncio_router.request_router._calls.values())

    async def ask() -> None:
        nonlocal handle
        handle = serve.get_deployment_handle("Generator", idle.NAME).options(stream=True)
        requests = [one_branch(uuid4().hex, tokens=LONG) for _ in range(12)]
        responses = [handle.expand.remote(request) for request in requests]
        readers = [asyncio.ensure_future(anext(response)) for response in responses]
        seen = 0
        while not any(reader.done() for reader in readers):
            seen = max(seen, at_work())
            await asyncio.sleep(0)
        assert seen > 0
        for response in responses[:8]:
            response.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        for response in responses[8:]:
            async for _ in response:
                pass
        unary = handle.options(stream=False)
        await asyncio.gather(*(unary.silent_s.remote() for _ in range(4)), return_exceptions=True)
        await unary.broadcast("silent_s").results_async()

    idle.run(ask())
    until(lambda: at_work() == 0, "no call is counted")


def test_a_prefix_is_computed_once_for_all_replicas(idle: Application) -> None:
    def is_shared() -> bool:
        before = [replica["branches_finished"] for replica in idle.status()["generator"]]
        cached = cached_by_prefix(idle, calls=16)
        after = [replica["branches_finished"] for replica in idle.status()["generator"]]
        assert all(now > then for then, now in zip(before, after, strict=True)), "both replicas were asked"
        # The first call computes all of the prefix; without LMCache the other replica's first call would as well.
        assert cached[0] == 0
        return all(tokens >= 288 for tokens in cached[1:])

    # Where the server counted as unhealthy for a moment, nothing was stored: again, with another prefix.
    until(is_shared, "the prefix is computed once", 120.0)
