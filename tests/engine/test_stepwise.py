"""Steps on a real engine whose model spells the delimiter in every way that its vocabulary allows."""

import math
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from deployments.config import GeneratorSettings
from deployments.engines.generation import GenerationEngine
from deployments.engines.step_splitter import StepSplitter
from search.ports import Branch, Child, ExpandItem, ExpandRequest, Lane, Sampling, StopCondition, branch_seed
from search.tree import NodeId, Step, StepEnd
from tests.engine.conftest import SETTLE_S, quiet, stop
from tests.engine.markov_model import save_markov_model
from tests.engine.vocabularies import EOS, byte_level, token_id, token_ids

pytestmark = pytest.mark.asyncio(loop_scope="session")

DELIMITER = "\n\n"
MINUTES = 600.0
TOKENIZER = byte_level(["\n\n", ".\n", ".\n\n", "\n ", "ab"])
EOS_IDS = frozenset({token_id(TOKENIZER, EOS)})
AFTER_A_NEWLINE = {"\n": 0.4, "\n\n": 0.1, "\n ": 0.1, "a": 0.3, EOS: 0.1}
CHANCES = {
    "a": {"ab": 0.3, ".": 0.2, ".\n": 0.2, ".\n\n": 0.1, "\n": 0.2},
    "ab": {"a": 0.5, ".\n": 0.3, "\n\n": 0.2},
    ".": {"\n": 0.5, "a": 0.5},
    ".\n": AFTER_A_NEWLINE,
    ".\n\n": AFTER_A_NEWLINE,
    "\n": AFTER_A_NEWLINE,
    "\n\n": AFTER_A_NEWLINE,
    "\n ": {"\n": 0.5, "a": 0.5},
    "z": {"\n": 1.0 - 1e-9},  # and newlines follow newlines: greedy decoding then writes them without end
}


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_speller(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GenerationEngine]:
    directory = tmp_path_factory.mktemp("speller")
    save_markov_model(directory, TOKENIZER, CHANCES)
    engine = GenerationEngine(GeneratorSettings(model=str(directory), max_model_len=512))
    with quiet():
        await engine.start()
    yield engine
    await stop(engine)


@pytest_asyncio.fixture(loop_scope="session")
async def speller(shared_speller: GenerationEngine) -> AsyncIterator[GenerationEngine]:
    """The shared engine; every test must leave it idle."""
    yield shared_speller
    assert await shared_speller.check_integrity(SETTLE_S) == []


def wanted(
    parent: NodeId, prefix: Sequence[int], indices: Sequence[int], *, max_tokens: int = 60, temperature: float = 1.0
) -> ExpandRequest:
    branches = tuple(Branch(index, branch_seed(3, parent, index), max_tokens) for index in indices)
    expansion = ExpandItem(parent, tuple(prefix), branches)
    return ExpandRequest(
        "search", (expansion,), Sampling(temperature), StopCondition.STEP, Lane.DEMAND, MINUTES, logprobs=True
    )


async def children(engine: GenerationEngine, request: ExpandRequest) -> list[Child]:
    written = [child async for group in engine.expand(request) for child in group.children]
    return sorted(written, key=lambda child: child.index)


async def test_every_step_has_text_and_no_delimiter_before_its_end(speller: GenerationEngine) -> None:
    before = speller.stats()
    written = await children(speller, wanted((), token_ids(TOKENIZER, "a", "\n"), range(200)))
    assert [child.index for child in written] == list(range(200))
    steps = [child.steps[0] for child in written]
    for step in steps:
        assert DELIMITER not in step.text.strip()
        if step.end is StepEnd.DELIMITER:
            assert step.text.strip()
            assert step.text.rstrip(" ").endswith(DELIMITER)
    by_pieces = token_ids(TOKENIZER, ".\n", "\n")
    assert any(list(step.token_ids[-2:]) == by_pieces for step in steps)
    assert any(step.text.startswith(DELIMITER) and step.text.strip() for step in steps)
    after = speller.stats()
    generated = after["generated_tokens"] - before["generated_tokens"]
    assert generated == sum(len(step.token_ids) for step in steps)
    assert generated == after["written_tokens"] - before["written_tokens"]


async def test_a_path_grown_step_by_step_splits_into_the_same_steps(speller: GenerationEngine) -> None:
    splitter = StepSplitter(TOKENIZER, DELIMITER, EOS_IDS)
    prompt = token_ids(TOKENIZER, "a", "\n")
    for path in range(30):
        steps: list[Step] = []
        while not steps or (steps[-1].end is StepEnd.DELIMITER and len(steps) < 6):
            ids = [token for step in steps for token in step.token_ids]
            [child] = await children(speller, wanted((path, len(steps)), [*prompt, *ids], [0]))
            steps.append(child.steps[0])
        ids = [token for step in steps for token in step.token_ids]
        split = splitter.split(prompt, ids, cut_off=steps[-1].end is StepEnd.LENGTH)
        assert split == tuple(step._replace(logprob=None, token_logprobs=None) for step in steps)


async def test_a_step_over_several_requests_is_the_same_with_its_own_logprob(speller: GenerationEngine) -> None:
    prompt = token_ids(TOKENIZER, "a", "\n")
    everyone = await children(speller, wanted((), prompt, range(100)))
    continued = [child for child in everyone if child.steps[0].text.startswith(DELIMITER)]
    assert len(continued) > 5
    for child in continued[:5]:
        assert await children(speller, wanted((), prompt, [child.index])) == [child._replace(cached_tokens=0)]
    for child in everyone:
        [step] = child.steps
        following = [TOKENIZER.decode([token]) for token in step.token_ids]
        chances = (CHANCES[last][text] for last, text in zip(["\n", *following], following, strict=False))
        assert step.logprob == pytest.approx(math.fsum(map(math.log, chances)), abs=1e-3)


async def test_endless_newlines_are_truncated_at_the_limit(speller: GenerationEngine) -> None:
    before = speller.stats()["branches_begun"]
    request = wanted((), token_ids(TOKENIZER, "a", "z"), [0], max_tokens=25, temperature=0.0)
    [child] = await children(speller, request)
    assert child.steps[0]._replace(logprob=None, token_logprobs=None) == Step(
        tuple(token_ids(TOKENIZER, *"\n" * 25)), "\n" * 25, StepEnd.LENGTH
    )
    assert 1 < speller.stats()["branches_begun"] - before <= 25
