"""Votes in rounds over replicas that die and write ahead: one seed, one tree, one answer."""

import asyncio
from typing import Any

import pytest

from deployments.calls.envelope import FIRST_ATTEMPT, Envelope
from deployments.calls.handles import HandleGenerator
from deployments.calls.serve_calls import Retries
from search.ports import AheadSamples, ChildGroup, ExpandRequest, Headroom
from search.run.report import SearchOutcome
from search.snapshot import tree_as_json
from tests.unit.handle_fakes import Response
from tests.unit.search.search_fakes import Bench, FakeGenerator, search

RETRIES = Retries(attempts=50, backoff_s=0.0, backoff_max_s=0.0, silence_s=5.0)
VOTES: list[dict[str, Any]] = [
    {"strategy": "self_consistency", "n": 24, "risk": 0.1},
    {"strategy": "best_of_n", "n": 16, "risk": 0.3, "rounds": [3, 5], "selection": "majority"},
]


class Replica(FakeGenerator):
    """Begins all later solutions, if it writes ahead, and says so with the last one of a call."""

    def __init__(self, order: int, deaths: int, ahead: bool) -> None:
        super().__init__(order, variety=4)
        self.interruptions = deaths
        self._ahead = ahead
        self.given_up = 0
        """Number of calls that say that the search asks for nothing more."""

    async def expand(self, request: ExpandRequest) -> Any:
        missing = sum(len(item.branches) for item in request.expansions)
        if not missing:
            self.given_up += 1
            yield ChildGroup((), Headroom(1, 1, 0, 0), 7)
            return
        async for group in super().expand(request):
            missing -= len(group.children)
            begun = request.ahead.number if isinstance(request.ahead, AheadSamples) and not missing else 0
            yield group._replace(samples_ahead=begun if self._ahead else 0)


class Handle:
    """A deployment handle that gives its calls to the replicas in turn."""

    def __init__(self, *replicas: Replica) -> None:
        self._replicas = replicas
        self.calls = 0

    def options(self, **_: object) -> "Handle":
        return self

    def remote(self, request: ExpandRequest, envelope: Envelope = FIRST_ATTEMPT) -> Response:
        replica, number = self._replicas[self.calls % len(self._replicas)], self.calls % len(self._replicas)
        self.calls += 1
        response = Response(replica.expand(request))
        response.given_to(bytes([10, number]))
        return response


@pytest.mark.parametrize("vote", VOTES, ids=lambda vote: vote["strategy"])
@pytest.mark.parametrize(
    ("replicas", "deaths", "ahead"), [(1, 0, True), (1, 3, False), (2, 0, False), (2, 3, True)], ids=str
)
def test_the_vote_is_the_one_without_disturbance(vote: dict[str, Any], replicas: int, deaths: int, ahead: bool) -> None:
    stopped = 0
    for seed in range(4):
        wanted = vote | {"seed": seed, "max_path_tokens": 60}
        _, undisturbed = search(wanted, variety=4)
        ours = [Replica(10 * seed + number, deaths, ahead) for number in range(replicas)]
        handle = Handle(*ours)

        async def run(wanted: dict[str, Any] = wanted, handle: Handle = handle) -> SearchOutcome:
            bench = Bench(order=1)
            bench.through = lambda _: HandleGenerator(handle, RETRIES)
            outcome = await bench.search(wanted)
            bench.tree.check()
            return outcome

        outcome = asyncio.run(run())
        assert tree_as_json(outcome.tree) == tree_as_json(undisturbed.tree)
        assert outcome.selection.answer == undisturbed.selection.answer
        stopped += (left := outcome.tree.root.asked < vote["n"])
        given_up = sum(replica.given_up for replica in ours)
        assert outcome.cost.unused_tokens == 7 * given_up
        if not deaths:
            assert given_up == (left and ahead)
        assert (handle.calls > outcome.cost.expand_calls + given_up) is any(
            replica.interruptions < deaths for replica in ours
        )
    assert stopped, "no vote stopped early"
