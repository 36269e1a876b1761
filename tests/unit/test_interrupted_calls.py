"""Searches over calls that break off: their trees and costs are the same as without."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.calls.handles import HandleGenerator
from deployments.calls.serve_calls import Retries
from search.ports import ChildGroup, ExpandRequest, Generator
from search.run.report import SearchOutcome
from search.snapshot import tree_as_json
from search.tree import NodeStatus
from tests.unit.handle_fakes import HandleOf
from tests.unit.search.search_fakes import Bench, FakeGenerator
from tests.unit.search.search_settings import BUDGETS, LIMITS, SEARCHES, VARIETY

SOLUTIONS = {"strategy": "best_of_n", "n": 6}
RETRIES = Retries(attempts=20, backoff_s=0.0, backoff_max_s=0.0, silence_s=30.0)


def calls(generator: FakeGenerator) -> Generator:
    return HandleGenerator(HandleOf(generator), RETRIES)


@settings(max_examples=100, deadline=None)
@given(
    wanted=SEARCHES,
    limits=LIMITS,
    budget=BUDGETS,
    interruptions=st.integers(1, 12),
    order=st.integers(1, 1 << 20),
    variety=VARIETY,
    short=st.none() | st.integers(0, 1 << 20),
)
def test_interruptions_change_neither_the_tree_nor_its_cost(
    wanted: dict[str, Any],
    limits: dict[str, Any],
    budget: dict[str, int],
    interruptions: int,
    order: int,
    variety: int | None,
    short: int | None,
) -> None:
    """Nor where the generator gives branches back: it gives back the same ones, in the first group that arrives."""

    async def search(order: int, interruptions: int) -> SearchOutcome:
        bench = Bench(order, variety=variety)
        bench.generator.interruptions, bench.generator.short_of_memory = interruptions, short
        bench.through = calls
        outcome = await bench.search(wanted | limits | {"budget": budget})
        bench.check_idle()
        return outcome

    first, second = asyncio.run(search(0, 0)), asyncio.run(search(order, interruptions))
    assert tree_as_json(first.tree) == tree_as_json(second.tree)
    assert first.selection.node.id == second.selection.node.id
    varying = {"seconds", "sample_seconds", "prm_calls", "waiting_branches"}
    assert first.cost.model_dump(exclude=varying) == second.cost.model_dump(exclude=varying)


class BreaksOff(FakeGenerator):
    """Breaks off its first call after ``children`` children; below 0, before any reply."""

    def __init__(self, children: int, short_of_memory: int | None = None) -> None:
        super().__init__()
        self._children = children
        self.short_of_memory = short_of_memory
        self.written: list[list[int]] = []

    async def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
        self.written.append([])
        if self._children < 0 and len(self.written) == 1:
            self.requests.append(request)
            raise ConnectionResetError
        async with aclosing(super().expand(request)) as groups:
            async for group in groups:
                if group.headroom:
                    yield group
                    continue
                most = self._children - len(self.written[0]) if len(self.written) == 1 else None
                written = group._replace(children=group.children[:most])
                self.written[-1] += [child.index for child in written.children]
                yield written
                if len(self.written) == 1 and len(self.written[0]) >= self._children:
                    raise ConnectionResetError


async def called(generator: BreaksOff) -> Bench:
    bench = Bench()
    bench.generator, bench.through = generator, calls
    await bench.search(SOLUTIONS)
    bench.check_idle()
    return bench


@pytest.mark.asyncio
async def test_only_missing_branches_are_requested_again_with_their_seeds() -> None:
    generator = BreaksOff(2)
    bench = await called(generator)
    first, again = generator.requests
    [wanted], [missing] = first.expansions, again.expansions
    assert missing.branches == tuple(branch for branch in wanted.branches if branch.index not in generator.written[0])
    assert (len(wanted.branches), len(missing.branches), missing.least) == (6, 4, 4)
    assert (missing.parent, missing.prefix) == (wanted.parent, wanted.prefix)
    assert len(bench.tree.with_status(NodeStatus.TERMINAL)) == 6


@pytest.mark.asyncio
async def test_given_back_branches_are_not_requested_again_and_the_rest_is_required() -> None:
    generator = BreaksOff(1, short_of_memory=4)
    bench = await called(generator)
    assert 0 < bench.tree.given_back < 5
    first, again = generator.requests
    [wanted], [missing] = first.expansions, again.expansions
    assert wanted.least == 1
    assert len(missing.branches) == missing.least == 6 - bench.tree.given_back - 1


@pytest.mark.asyncio
async def test_a_replica_that_dies_before_its_reply_has_given_nothing_back() -> None:
    generator = BreaksOff(-1, short_of_memory=4)
    bench = await called(generator)
    first, again = generator.requests
    assert [item.least for item in first.expansions] == [item.least for item in again.expansions] == [1]
    assert first.expansions == again.expansions
    assert bench.tree.given_back > 0
