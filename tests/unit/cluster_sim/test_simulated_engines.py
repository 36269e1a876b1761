"""The simulated engine: every branch once, every token counted, steps as long as the curve says."""

import asyncio
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cluster_sim.costs import BatchCurve, EngineCosts
from benchmarks.cluster_sim.engines import GROUP_S, SimulatedGenerator, SimulatedScorer
from benchmarks.cluster_sim.processors import OwnCores
from benchmarks.cluster_sim.virtual_time import run
from search.errors import GeneratorError
from search.ports import (
    Branch,
    Child,
    ExpandItem,
    ExpandRequest,
    Lane,
    Sampling,
    ScoreItem,
    ScoreRequest,
    StopCondition,
)
from tests.unit.cluster_sim.simulated import ENGINE, FREE, NO_CALLS, language

LANGUAGE = language()
ONLY_STEPS = ENGINE.engine.model_copy(update=dict.fromkeys(("token_s", "request_s", "call_s", "join_s"), 0.0))


def generator(**changed: object) -> SimulatedGenerator:
    """A generator in which only steps take time."""
    costs = ENGINE.model_copy(update={"engine": ONLY_STEPS, "replica": FREE, **changed})
    return SimulatedGenerator(OwnCores(), LANGUAGE, costs, NO_CALLS)


def request(
    search_id: str, branches: int, lane: Lane = Lane.DEMAND, stop: StopCondition = StopCondition.STEP, at: float = 60.0
) -> ExpandRequest:
    wanted = tuple(Branch(index, 1000 + index, 512) for index in range(branches))
    item = ExpandItem((), LANGUAGE.prompt(search_id), wanted)
    return ExpandRequest(search_id, (item,), Sampling(), stop, lane, at)


async def written(replica: SimulatedGenerator, asked: ExpandRequest) -> list[Child]:
    return [child async for group in replica.expand(asked) for child in group.children]


@given(
    calls=st.lists(
        st.tuples(st.integers(1, 40), st.sampled_from(Lane), st.sampled_from(StopCondition)), min_size=1, max_size=8
    ),
    blocks=st.integers(12, 300),
    seqs=st.integers(1, 64),
)
@settings(max_examples=25, deadline=None)
def test_every_branch_is_written_once_and_every_token_counted(
    calls: list[tuple[int, Lane, StopCondition]], blocks: int, seqs: int
) -> None:
    """However little memory there is: branches that wait for blocks are written in the end."""

    async def main() -> None:
        replica = generator(blocks=blocks, max_num_seqs=seqs)
        asked = [request(str(number), *call) for number, call in enumerate(calls)]
        done = await asyncio.gather(*(written(replica, each) for each in asked))
        for (branches, *_), children in zip(calls, done, strict=True):
            assert sorted(child.index for child in children) == list(range(branches))
        tokens = sum(len(step.token_ids) for children in done for child in children for step in child.steps)
        assert replica.engine.generated_tokens == replica.written_tokens == tokens
        assert replica.check_integrity() == []
        assert replica.headroom.free_blocks == blocks

    run(main())


@pytest.mark.parametrize("branches", [1, 4, 34, 64])
def test_a_step_takes_as_long_as_the_curve_says(branches: int) -> None:
    curve = ONLY_STEPS

    async def main() -> tuple[float, float]:
        replica = generator()
        children = await written(replica, request("0", branches))
        lengths = sorted(len(step.token_ids) for child in children for step in child.steps)
        # Finished branches leave the batch.
        steps = (sum(length > step for length in lengths) for step in range(lengths[-1]))
        return asyncio.get_running_loop().time(), sum(curve.step(batch) for batch in steps)

    took, expected = run(main())
    assert expected <= took + 1e-9
    # The only extra time is the wait for further branches before the last group is sent.
    assert took == pytest.approx(expected, abs=2 * GROUP_S)


def test_a_request_that_joins_a_running_batch_makes_that_step_longer() -> None:
    """Two calls one after the other never join; if the second comes while the first is written, it joins once."""
    joining = BatchCurve(step_s={1: 1.0}, token_s=0, request_s=0, call_s=0, join_s=0.5)

    async def main(later_s: float) -> tuple[float, int]:
        replica = generator(engine=joining)
        calls = [asyncio.create_task(written(replica, request("0", 1)))]
        await asyncio.sleep(later_s)
        calls.append(asyncio.create_task(written(replica, request("1", 1))))
        await asyncio.gather(*calls)
        return replica.engine.program.cpu_s, replica.engine.steps

    for later_s, joins in ((1000.0, 0), (1.5, 1)):
        seconds, steps = run(main(later_s))
        assert seconds == steps + 0.5 * joins


def test_the_curve_is_linear_between_and_beyond_the_measured_sizes() -> None:
    curve = BatchCurve(step_s={1: 1.0, 4: 4.0, 8: 6.0}, token_s=0, request_s=0, call_s=0)
    assert [curve.step(batch) for batch in (1, 2, 4, 6, 8, 10)] == [1, 2, 4, 5, 6, 7]
    assert curve.times(2).step(6) == 10
    assert BatchCurve(step_s={1: 3.0}, token_s=0, request_s=0, call_s=0).step(64) == 3


def test_cached_tokens_are_not_computed_again() -> None:
    async def main() -> tuple[int, int, int]:
        replica = generator()
        [first] = await written(replica, request("0", 1))
        read = replica.engine.computed_tokens
        [again] = await written(replica, request("0", 1))
        return first.cached_tokens, again.cached_tokens, replica.engine.computed_tokens - read

    before, after, read = run(main())
    whole = (len(LANGUAGE.prompt("0")) - 1) // ENGINE.block_size * ENGINE.block_size
    assert (before, after, read) == (0, whole, len(LANGUAGE.prompt("0")) - whole)


def test_a_call_that_is_left_or_cancelled_leaves_nothing_behind() -> None:
    async def main() -> list[str]:
        replica = generator(blocks=100)

        async def leave() -> None:
            async with aclosing(replica.expand(request("0", 64))) as groups:
                async for _ in groups:
                    return

        async def cancelled() -> None:
            task = asyncio.create_task(written(replica, request("1", 64)))
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        other = asyncio.create_task(written(replica, request("2", 8)))
        await asyncio.gather(leave(), cancelled())
        assert len(await other) == 8
        await asyncio.sleep(1)
        engine = replica.engine
        assert engine.generated_tokens == replica.written_tokens + engine.discarded_tokens
        assert engine.discarded_tokens > 0
        return replica.check_integrity()

    assert run(main()) == []


def test_a_call_ends_at_its_deadline() -> None:
    async def main() -> list[str]:
        replica = generator()
        with pytest.raises(GeneratorError, match=r"deadline of 0\.005 s exceeded"):
            await written(replica, request("0", 8, at=0.005))
        await asyncio.sleep(1)
        return replica.check_integrity()

    assert run(main()) == []


def test_searches_share_an_engine_fairly() -> None:
    """A narrow search does not wait until an earlier wide one has been written."""

    async def main() -> tuple[float, float]:
        replica = generator(max_num_seqs=8)
        loop = asyncio.get_running_loop()

        async def timed(name: str, branches: int) -> float:
            await written(replica, request(name, branches))
            return loop.time()

        wide = asyncio.create_task(timed("0", 128))
        await asyncio.sleep(0.001)
        narrow = asyncio.create_task(timed("1", 4))
        return await narrow, await wide

    narrow, wide = run(main())
    assert narrow < wide / 3


def test_scoring_returns_the_rewards_of_the_steps_and_takes_one_pass() -> None:
    async def main() -> tuple[list[float], list[float], float]:
        costs = EngineCosts(engine=ONLY_STEPS, replica=FREE, blocks=100, block_size=32, max_num_seqs=64)
        replica = SimulatedScorer(OwnCores(), LANGUAGE, costs, NO_CALLS)
        children = await written(generator(), request("0", 4))
        began = asyncio.get_running_loop().time()
        items = tuple(ScoreItem((child.steps[0].text,)) for child in children)
        found = await replica.score(ScoreRequest("0", "", items, 60.0))
        expected = [LANGUAGE.reward("0", child.steps[0].text) for child in children]
        return [row[0] for row in found], expected, asyncio.get_running_loop().time() - began

    found, expected, took = run(main())
    assert found == expected
    assert took == pytest.approx(ONLY_STEPS.step(4))
