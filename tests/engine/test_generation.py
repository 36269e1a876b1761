"""Guarantees of the generation engine, on a real vLLM engine."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress

import pytest

from deployments.engines.errors import EngineStartError
from deployments.engines.generation import GenerationEngine
from deployments.engines.settings import GeneratorSettings
from scripts.embedded.tokenizer import build_tokenizer
from search.errors import GeneratorError, GeneratorRefused
from search.ports import Branch, Child, ExpandItem, ExpandRequest, Lane, Sampling, StopCondition, branch_seed
from search.tree import NodeId, Step, StepEnd

pytestmark = pytest.mark.asyncio(loop_scope="session")

QUESTION = "Start with 5. Add 37. Multiply by 3. Subtract 40. What is the result?"
MINUTES = 600.0
"""A deadline that no test should reach."""
DIGITS = "1" * 40
"""The embedded generator continues them greedily with the same digit, up to the limit."""


def prompt(engine: GenerationEngine, question: str = QUESTION) -> tuple[int, ...]:
    return tuple(engine.encode_chat([{"role": "user", "content": question}]))


def wanted(
    prefix: Sequence[int],
    indices: Sequence[int],
    *,
    search_id: str = "search",
    parent: NodeId = (),
    max_tokens: int = 40,
    temperature: float = 0.8,
    stop_condition: StopCondition = StopCondition.STEP,
    deadline_s: float = MINUTES,
) -> ExpandRequest:
    branches = tuple(Branch(index, branch_seed(7, parent, index), max_tokens) for index in indices)
    expansion = ExpandItem(parent, tuple(prefix), branches)
    return ExpandRequest(search_id, (expansion,), Sampling(temperature), stop_condition, Lane.DEMAND, deadline_s)


def rambling(prefix: Sequence[int], search_id: str = "search", deadline_s: float = MINUTES) -> ExpandRequest:
    """One branch that ends soon, and many that end at no time in a test, however slow it is: they must be aborted."""
    request = wanted(
        (*prefix, *build_tokenizer().encode(DIGITS, add_special_tokens=False)),
        range(64),
        search_id=search_id,
        max_tokens=900,
        temperature=0.0,
        stop_condition=StopCondition.SOLUTION,
        deadline_s=deadline_s,
    )
    (expansion,) = request.expansions
    first, *others = expansion.branches
    branches = (first._replace(max_tokens=20), *others)
    return request._replace(expansions=(expansion._replace(branches=branches),))


async def children(engine: GenerationEngine, request: ExpandRequest, alone: bool = False) -> list[Child]:
    return [child async for group in engine.expand(request, alone) for child in group.children]


async def token_ids(
    engine: GenerationEngine, request: ExpandRequest, alone: bool = False
) -> dict[tuple[NodeId, int], tuple[int, ...]]:
    return {(child.parent, child.index): child.steps[0].token_ids for child in await children(engine, request, alone)}


async def test_200_seeded_requests_with_aborts_write_the_same_text_three_times(
    generation: GenerationEngine,
) -> None:
    """A seeded request could kill a CPU engine under load; here it must not, and seeds alone must decide the text."""
    questions = [f"Start with {5 + i}." + " Add 12." * (3 * i) for i in range(4)]
    seeded = [wanted(prompt(generation, q), range(50), parent=(i,)) for i, q in enumerate(questions)]

    async def disturb(number: int) -> None:
        name = f"given up {number}"
        prefix = prompt(generation, f"Begin at {number}." + " Go up by 7." * number)
        late = MINUTES if number % 2 else 0.05
        request = wanted(prefix, range(10), search_id=name, parent=(9, number), max_tokens=200, deadline_s=late)
        async with aclosing(generation.expand(request)) as groups:
            with suppress(GeneratorError):
                async for _ in groups:
                    if number % 2:
                        break

    rounds = []
    for _ in range(3):
        aborted = generation.stats()["branches_aborted"]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(token_ids(generation, request)) for request in seeded]
            for number in range(8):
                group.create_task(disturb(number))
        rounds.append({name: ids for task in tasks for name, ids in task.result().items()})
        assert generation.stats()["branches_aborted"] > aborted
    assert len(rounds[0]) == 200
    assert rounds[0] == rounds[1] == rounds[2]
    assert len(set(rounds[0].values())) > 1
    for request in seeded:
        (expansion,) = request.expansions
        alone = request._replace(expansions=(expansion._replace(branches=expansion.branches[3:5]),))
        assert (await token_ids(generation, alone)).items() <= rounds[0].items()


async def test_each_branch_arrives_once_with_how_its_step_ended(generation: GenerationEngine) -> None:
    prefix = prompt(generation)
    delimiter = GeneratorSettings().step_delimiter
    arrived = await children(generation, wanted(prefix, range(64), temperature=1.5, max_tokens=200))
    assert sorted(child.index for child in arrived) == list(range(64))
    for child in arrived:
        (step,) = child.steps
        assert "<|im_end|>" not in step.text
        if step.end is StepEnd.DELIMITER:
            assert step.text.endswith(delimiter)
            assert step.text.count(delimiter) == 1
        else:
            assert delimiter not in step.text
        assert (len(step.token_ids) == 200) == (step.end is StepEnd.LENGTH)
    assert {child.steps[0].end for child in arrived} >= {StepEnd.DELIMITER}
    short = await children(generation, wanted(prefix, [0, 1, 2], temperature=0.0, max_tokens=2))
    assert [child.steps[0].end for child in short] == [StepEnd.LENGTH] * 3
    assert len({child.steps for child in short}) == 1


async def test_rambling_branches_do_not_end_by_themselves(generation: GenerationEngine) -> None:
    """Otherwise tests that abort them, or find others waiting behind them, would assert what the machine's speed
    decides."""
    request = rambling(prompt(generation))
    (expansion,) = request.expansions
    request = request._replace(expansions=(expansion._replace(branches=expansion.branches[:2]),))
    lengths = [sum(len(step.token_ids) for step in child.steps) for child in await children(generation, request)]
    assert lengths == [20, 900]


async def test_a_call_says_how_many_tokens_its_unfinished_branches_have_at_least(generation: GenerationEngine) -> None:
    request = rambling(prompt(generation))
    (expansion,) = request.expansions
    branches = tuple(branch._replace(max_tokens=20 + 40 * branch.index) for branch in expansion.branches[:8])
    request = request._replace(expansions=(expansion._replace(branches=branches),), counts_unfinished=True)
    for _ in range(5):  # where this process gets no processor meanwhile, all children come at once
        least, before_last = 0, 0
        async for group in generation.expand(request):
            for child in group.children:
                assert sum(len(step.token_ids) for step in child.steps) >= least
                before_last = least
            least = max(least, group.unfinished_tokens)
        if before_last > 20:
            break
    assert before_last > 20, "after the first one, the others had more tokens"
    assert {
        group.unfinished_tokens async for group in generation.expand(request._replace(counts_unfinished=False))
    } == {0}


async def test_a_whole_solution_equals_its_steps_one_by_one(generation: GenerationEngine) -> None:
    prefix = prompt(generation)
    limit = 300
    request = wanted(prefix, [0], temperature=0.0, max_tokens=limit, stop_condition=StopCondition.SOLUTION)
    (whole,) = await children(generation, request)
    steps: list[Step] = []
    path = list(prefix)
    while not steps or steps[-1].end is StepEnd.DELIMITER:
        left = limit - (len(path) - len(prefix))
        (child,) = await children(generation, wanted(path, [0], temperature=0.0, max_tokens=left))
        steps.append(child.steps[0])
        path += child.steps[0].token_ids
    assert whole.steps == tuple(steps)


async def test_a_prefix_is_read_from_the_cache_the_second_time(generation: GenerationEngine) -> None:
    prefix = prompt(generation, "Take 9." + " Increase by 11." * 30)
    request = wanted(prefix, [0], max_tokens=2)
    await children(generation, request)
    (child,) = await children(generation, request)
    assert child.cached_tokens >= len(prefix) - 64


async def test_prefixes_with_different_salts_are_not_shared(generation: GenerationEngine) -> None:
    prefix = prompt(generation, "Take 8." + " Increase by 12." * 30)
    request = wanted(prefix, [0], temperature=0.0, max_tokens=2)
    read = []
    for salt in ("", "mine", "yours", "mine", "yours", ""):
        (child,) = await children(generation, request._replace(cache_salt=salt))
        read.append((child.cached_tokens > 0, child.steps))
    assert read == [(again, read[0][1]) for again in (False, False, False, True, True, True)]


@pytest.mark.parametrize("how", ["closed", "cancelled", "late"])
async def test_abandoned_requests_are_aborted_at_the_engine(generation: GenerationEngine, how: str) -> None:
    """The fixture checks afterwards that no request is left and that the engine is idle."""
    before = generation.stats()
    request = rambling(prompt(generation), how, deadline_s=0.05 if how == "late" else MINUTES)
    started = asyncio.Event()

    async def consume() -> None:
        async with aclosing(generation.expand(request)) as groups:
            async for _ in groups:
                started.set()
                if how == "closed":
                    return

    task = asyncio.create_task(consume())
    if how == "cancelled":
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    elif how == "late":
        with pytest.raises(GeneratorError, match=r"deadline of 0\.05 s exceeded"):
            await task
    else:
        await task
    after = generation.stats()
    assert after["branches_alive"] == after["calls"] == 0
    ended = sum(after[name] - before[name] for name in ("branches_finished", "branches_aborted"))
    assert ended == after["branches_begun"] - before["branches_begun"]
    assert after["branches_aborted"] > before["branches_aborted"]


async def test_a_deadline_that_passes_while_the_caller_is_busy_is_told(generation: GenerationEngine) -> None:
    """Otherwise a call that was cut short would look like one with fewer children."""

    async def consume() -> None:
        async for group in generation.expand(rambling(prompt(generation), "busy", deadline_s=1.0)):
            await asyncio.sleep(1.5 if group.children else 0)

    with pytest.raises(GeneratorError, match="deadline of 1 s exceeded"):
        await consume()


async def test_every_token_is_counted_as_the_engine_counts(generation: GenerationEngine) -> None:
    before = generation.stats()
    arrived = await children(generation, wanted(prompt(generation), range(40), parent=(1,)))
    async with aclosing(generation.expand(rambling(prompt(generation)))) as groups:
        arrived += (await anext(groups)).children
    await generation.check_integrity(MINUTES)
    after = generation.stats()
    generated = after["generated_tokens"] - before["generated_tokens"]
    discarded = after["discarded_tokens"] - before["discarded_tokens"]
    assert discarded > 0
    assert generated == discarded + sum(len(step.token_ids) for child in arrived for step in child.steps)


async def test_a_path_that_fills_the_context_is_truncated_not_refused(generation: GenerationEngine) -> None:
    context = GeneratorSettings().max_model_len
    prefix = (prompt(generation) * context)[:context]
    (child,) = await children(generation, wanted(prefix, [4]))
    assert (child.index, child.steps[0].token_ids, child.steps[0].end) == (4, (), StepEnd.LENGTH)
    (child,) = await children(generation, wanted(prefix[:-1], [4]))
    assert len(child.steps[0].token_ids) == 1


async def test_children_carry_the_headroom_and_the_canary_succeeds(generation: GenerationEngine) -> None:
    groups = [group async for group in generation.expand(wanted(prompt(generation), [0], max_tokens=1))]
    (group,) = [group for group in groups if group.children]
    assert group.headroom is not None
    assert 0 < group.headroom.free_blocks <= group.headroom.total_blocks
    assert await generation.canary(MINUTES) > 0


async def test_calls_that_have_the_engine_alone_write_the_same_and_leave_it_to_the_others(
    generation: GenerationEngine,
) -> None:
    names = ["a", "alone", "b", "alone too", "c"]
    asked = {
        name: wanted(prompt(generation, f"Start with {number}. Add 1."), range(8), search_id=name)
        for number, name in enumerate(names)
    }
    together = {name: await token_ids(generation, request) for name, request in asked.items()}
    queue = generation._running.queue
    seen: set[frozenset[str]] = set()

    async def watch() -> None:
        while True:
            seen.add(queue.at_engine)
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    left = rambling(prompt(generation), "left")
    async with aclosing(generation.expand(left, alone=True)) as groups, asyncio.TaskGroup() as group:
        tasks = {
            name: group.create_task(token_ids(generation, request, alone="alone" in name))
            for name, request in asked.items()
        }
        async for _ in groups:
            assert not any(task.done() for task in tasks.values())
            break
        await groups.aclose()
    watching.cancel()
    assert {name: task.result() for name, task in tasks.items()} == together
    assert {"left"} in seen
    apart = [each for each in seen if each & {"alone", "alone too"}]
    assert all(len(each - {"left"}) == 1 for each in apart), "an abort counts until the engine has read it"


async def test_a_caller_that_takes_nothing_has_the_engine_alone_until_its_deadline_only(
    generation: GenerationEngine,
) -> None:
    for deadline_s in (3.0, 12.0, 48.0):
        sleeps = rambling(prompt(generation), "sleeps", deadline_s=deadline_s)
        async with aclosing(generation.expand(sleeps, alone=True)) as groups:
            with suppress(GeneratorError):  # where the machine is so slow that the deadline came first
                await anext(groups)
                assert len(await children(generation, wanted(prompt(generation), range(4)))) == 4
                with pytest.raises(GeneratorError):
                    await anext(groups)
                return
    pytest.fail("no child came by the deadline")


async def test_an_invalid_token_is_refused_and_the_engine_lives(generation: GenerationEngine) -> None:
    with pytest.raises(GeneratorRefused, match="refused"):
        await children(generation, wanted([10**6], [0, 1]))
    generation.check_alive()


async def test_a_missing_model_is_named_as_such() -> None:
    with pytest.raises(EngineStartError, match=r"no model at '/nowhere/at/all': there is no config\.json"):
        await GenerationEngine(GeneratorSettings(model="/nowhere/at/all")).start()
