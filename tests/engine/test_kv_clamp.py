"""Branches without KV blocks wait for them: few are preempted, and the output is unchanged."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager

import pytest
import pytest_asyncio

from deployments.engines import generation as generation_module
from deployments.engines.generation import GenerationEngine
from deployments.engines.settings import GeneratorSettings
from search.answers.equivalence import AnswerMatcher
from search.errors import GeneratorError, GeneratorRefused, PathTooLarge
from search.ports import ChildGroup, ExpandRequest, ScoreRequest, StopCondition, TokenBeamRequest
from search.run.environment import SearchEnvironment
from search.run.report import SearchOutcome
from search.run.runner import run_search
from search.settings import parse_search
from search.snapshot import replay_of, restore_tree, save_tree, tree_as_json
from search.token_beam import TokenBeamSettings
from search.tree import SearchTree
from tests.engine.conftest import SETTLE_S, quiet, stop
from tests.engine.test_generation import children, prompt, rambling, token_ids, wanted

pytestmark = pytest.mark.asyncio(loop_scope="session")

BLOCK_BYTES = 65_536
"""Bytes of a block of the embedded generator."""
BLOCKS = 33
MOST = 512
"""Tokens of a sequence: half of the cache."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def small(generator_model: str) -> AsyncIterator[GenerationEngine]:
    """An engine with little KV memory."""
    settings = GeneratorSettings(
        model=generator_model,
        max_model_len=MOST,
        kv_cache_memory_bytes=BLOCKS * BLOCK_BYTES,
        max_num_seqs=64,
    )
    engine = GenerationEngine(settings)
    with quiet():
        await engine.start()
    yield engine
    await stop(engine)


def solutions(engine: GenerationEngine, number: int, search_id: str) -> ExpandRequest:
    return wanted(
        prompt(engine),
        range(number),
        search_id=search_id,
        max_tokens=300,
        stop_condition=StopCondition.SOLUTION,
    )


async def test_with_little_memory_branches_write_the_same_and_few_are_preempted(
    small: GenerationEngine, generation: GenerationEngine
) -> None:
    assert small.stats()["total_blocks"] <= BLOCKS
    requests = [solutions(small, 40, f"search {number}") for number in range(3)]

    pressed = await asyncio.gather(*(token_ids(small, request) for request in requests))

    assert pressed[0] == await token_ids(generation, requests[0])
    assert pressed[1] == pressed[2] == pressed[0]
    stats = small.stats()
    assert stats["branches_held_back"] > 0
    assert stats["preemptions"] <= 12, "a tenth"
    assert await small.check_integrity(SETTLE_S) == []
    assert stats["reserved_blocks"] == stats["waiting"] == 0


async def test_waiting_branches_are_written_while_children_are_grouped(
    small: GenerationEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second of grouping is enough for several times as many branches as fit at once; on a slow machine, several."""
    groups: list[ChildGroup] = []
    for seconds in (1.0, 4.0, 16.0):
        before = small.stats()
        monkeypatch.setattr(generation_module, "GROUP_S", seconds)
        groups = await groups_of(small, wanted(prompt(small), range(200), search_id="gathered", max_tokens=8))
        assert sum(len(group.children) for group in groups) == 200
        assert small.stats()["branches_held_back"] - before["branches_held_back"] > 50
        if len(groups) <= 3:
            break
    assert len(groups) <= 3
    assert await small.check_integrity(SETTLE_S) == []


async def test_an_abandoned_waiting_branch_frees_its_place(small: GenerationEngine) -> None:
    async with aclosing(small.expand(rambling(prompt(small), "given up"))) as groups:
        async for group in groups:
            if group.children:
                assert small.stats()["waiting"] > 0
                break

    assert len(await token_ids(small, solutions(small, 10, "after it"))) == 10
    assert await small.check_integrity(SETTLE_S) == []


async def test_a_wait_ends_at_the_deadline(small: GenerationEngine) -> None:
    with pytest.raises(GeneratorError, match=r"deadline of 0\.3 s exceeded"):
        async for _ in small.expand(rambling(prompt(small), "late", deadline_s=0.3)):
            pass

    assert await small.check_integrity(SETTLE_S) == []
    stats = small.stats()
    assert stats["reserved_blocks"] == stats["waiting"] == 0


async def test_a_waiting_call_sends_signs_of_life(small: GenerationEngine) -> None:
    """Their headroom counts the waiting branches."""
    async with aclosing(small.expand(rambling(prompt(small), "first"))) as groups:
        async for group in groups:
            if group.children:
                assert group.headroom is not None
                assert group.headroom.waiting > 0
                assert group.headroom.free_blocks < group.headroom.total_blocks
                break


async def test_with_little_memory_the_prefix_of_a_call_is_computed_once(small: GenerationEngine) -> None:
    """If searches took turns branch by branch, every prompt would be evicted before the turn of its next branch."""
    questions = [f"Start with {number}." + " Add 12." * 45 for number in range(8)]
    prompts = [prompt(small, question) for question in questions]
    assert 3 * len(min(prompts, key=len)) > BLOCKS * 16

    written = await asyncio.gather(
        *(
            children(small, wanted(token_ids, range(12), search_id=f"long {number}", max_tokens=16))
            for number, token_ids in enumerate(prompts)
        )
    )

    computed = [sum(child.cached_tokens < 128 for child in of) for of in written]
    assert [len(of) for of in written] == [12] * 8
    assert max(computed) <= 2
    assert await small.check_integrity(SETTLE_S) == []


def without_overcommit(engine: GenerationEngine) -> None:
    """Resets the overcommit, as if no request had waited yet."""
    clamp = engine._running.clamp
    assert clamp is not None
    clamp.overcommit = 0.0


@contextmanager
def shrinking(engine: GenerationEngine) -> Iterator[GenerationEngine]:
    """The same engine as if it had started with ``clamp: shrink``: the engine reads this setting at every call."""
    waits = engine._settings
    without_overcommit(engine)
    engine._settings = waits.model_copy(update={"clamp": "shrink"})
    try:
        yield engine
    finally:
        engine._settings = waits


async def groups_of(engine: GenerationEngine, request: ExpandRequest) -> list[ChildGroup]:
    return [group async for group in engine.expand(request)]


def given_back(group: ChildGroup) -> list[int]:
    """Indices of the children that the replica gives back."""
    return [child.index for child in group.children if not child.steps]


async def test_branches_without_memory_are_given_back_before_any_child(
    small: GenerationEngine, generation: GenerationEngine
) -> None:
    request = solutions(small, 40, "shrinks")
    before = small.stats()["branches_given_back"]
    with shrinking(small):
        first, *others = await groups_of(small, request)

    written = 40 - len(given_back(first))
    assert 1 <= written < 40
    assert given_back(first) == [child.index for child in first.children] == list(range(written, 40))
    assert small.stats()["branches_given_back"] == before + 40 - written
    assert not any(map(given_back, others))
    assert not any(child.waited for group in others for child in group.children)
    arrived = {(child.parent, child.index): child.steps[0].token_ids for group in others for child in group.children}
    whole = await token_ids(generation, request)
    assert arrived == {((), index): whole[(), index] for index in range(written)}
    assert await small.check_integrity(SETTLE_S) == []


async def test_a_call_without_memory_keeps_one_waiting_branch(small: GenerationEngine) -> None:
    with shrinking(small):
        async with aclosing(small.expand(rambling(prompt(small), "first"))) as groups:
            assert given_back(await anext(groups))
            second = small.expand(solutions(small, 3, "second"))
            async with aclosing(second):
                assert given_back(await anext(second)) == [1, 2]
                await groups.aclose()
                (child,) = [child async for group in second for child in group.children]
                assert (child.index, child.waited) == (0, True)

    assert await small.check_integrity(SETTLE_S) == []


async def test_with_enough_memory_all_branches_are_written(small: GenerationEngine) -> None:
    with shrinking(small):
        written = await children(small, solutions(small, 2, "fits"))
    assert [(bool(child.steps), child.waited) for child in written] == [(True, False)] * 2


async def test_children_report_that_they_waited(small: GenerationEngine) -> None:
    without_overcommit(small)
    written = await children(small, solutions(small, 40, "waits"))
    assert 0 < sum(child.waited for child in written) < 40


async def test_beams_that_skip_the_prefix_cache_reserve_their_own_prefix(small: GenerationEngine) -> None:
    """Otherwise eight beams would be promised the blocks of one prefix, and the engine would preempt some."""
    without_overcommit(small)
    before = small.stats()
    assert before["total_blocks"] < 8 * 300 // 32
    prompt_of_300 = tuple((prompt(small) * 10)[:300])
    found = []
    for skips in (True, False):
        settings = TokenBeamSettings(width=8, max_tokens=4, ignore_eos=True, skip_reading_prefix_cache=skips)
        found.append(await small.token_beam(TokenBeamRequest("own prefix", (prompt_of_300,), settings, 600.0)))
    after = small.stats()
    assert after["preemptions"] == before["preemptions"]
    assert after["branches_held_back"] > before["branches_held_back"]
    own, shared = ([each.sequence.token_ids for each in reply.prompts[0]] for reply in found)
    assert own == shared
    assert await small.check_integrity(SETTLE_S) == []


async def test_a_path_larger_than_all_kv_memory_is_refused_naming_the_setting(
    small: GenerationEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clamp = small._running.clamp
    assert clamp is not None
    # vLLM starts only with memory for its longest sequence, so a smaller capacity must be simulated.
    monkeypatch.setattr(clamp.ledger, "capacity", 1)
    with pytest.raises(
        PathTooLarge, match=r"needs \d+ KV blocks, but there are only 1; generator\.kv_cache_memory_bytes"
    ):
        await token_ids(small, solutions(small, 1, "too large"))
    monkeypatch.undo()
    assert len(await token_ids(small, solutions(small, 1, "not too large"))) == 1


async def test_another_model_is_refused(small: GenerationEngine) -> None:
    request = solutions(small, 1, "other model")
    assert len(await token_ids(small, request._replace(model=small._settings.served_name))) == 1
    with pytest.raises(GeneratorRefused, match="serves the model 'banyan-arithmetic', not 'other'"):
        await token_ids(small, request._replace(model="other"))


class TextScorer:
    """A reward for each text."""

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        return [
            [hashlib.sha256("".join(item.steps[: end + 1]).encode()).digest()[0] / 255 for end in ends]
            for item in request.items
            for ends in [range(len(item.steps) - item.unscored, len(item.steps))]
        ]


SEARCHES = [
    {"strategy": "beam_search", "n": 32, "m": 4},
    {"strategy": "mcts", "iterations": 6, "width": 16, "paths": 2},
    {"strategy": "particle_filter", "n": 24},
]


async def test_searches_continue_with_fewer_branches_and_can_be_replayed(
    small: GenerationEngine, generation: GenerationEngine
) -> None:
    async def searched(engine: GenerationEngine, number: int, tree: SearchTree) -> SearchOutcome:
        settings = parse_search(SEARCHES[number] | {"seed": number, "max_path_tokens": 300})
        environment = SearchEnvironment(engine, TextScorer(), MOST, matcher)
        return await run_search("?", prompt(engine), settings, environment, search_id=f"search {number}", tree=tree)

    matcher = AnswerMatcher()
    try:
        with shrinking(small):
            shrunk = await asyncio.gather(*(searched(small, number, SearchTree()) for number in range(len(SEARCHES))))
        assert await small.check_integrity(SETTLE_S) == []
        for number, outcome in enumerate(shrunk):
            assert outcome.cost.given_back_branches > 0
            assert outcome.cost.least_headroom < 1
            again = await searched(generation, number, replay_of(restore_tree(save_tree(outcome.tree))))
            assert tree_as_json(again.tree) == tree_as_json(outcome.tree)
            assert again.selection.answer == outcome.selection.answer
    finally:
        matcher.close()
