"""How much of a long path is encoded, and where. The engine is left out: it is told which queries it would get."""

import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from deployments.engines.rewards import parse_prm
from deployments.engines.rewards.family import Query, RewardModelSettings
from deployments.engines.scoring import INLINE_CHARACTERS, Batches, Scored, ScoringEngine
from scripts.embedded.tokenizer import build_tokenizer
from search.errors import ScoredPathTooLarge
from search.ports import ScoreItem, ScoreRequest
from search.rewards import ScoringCost

STEP_BY_STEP = ("label_turns", "llemma_prm", "outcome", "trajectory", "eurus_rm", "generative")
SETTINGS: dict[str, Any] = {"generative": {"template": {"labels": ("+", "-")}}}
"""Labels that are tokens of the embedded models' vocabulary."""
AT_ONCE = ("step_head", "value_head", "token_class")
QUESTION = "How many?"
MINUTES = 600.0

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Unstarted(ScoringEngine):
    """Gives every step the reward 1. Remembers which queries the engine would get, and which paths were encoded."""

    def __init__(self, family: str, context: int, tokenizer: PreTrainedTokenizerBase) -> None:
        settings = parse_prm({"family": family, "model": "any", "max_model_len": context} | SETTINGS.get(family, {}))
        assert isinstance(settings, RewardModelSettings)
        super().__init__(settings)
        self.asked: list[Query] = []
        self.read: list[tuple[str, int]] = []
        """Question and number of steps of each path that was encoded."""
        self.threads: set[str] = set()
        self.family = settings.reader(settings, tokenizer)
        encode = self.family.query

        def counted(question: str, steps: Sequence[str], unscored: int) -> Query:
            self.read.append((question, len(steps)))
            self.threads.add(threading.current_thread().name)
            return encode(question, steps, unscored)

        self.family.query = counted  # type: ignore[method-assign]
        most = context - self.family.reserved_tokens
        started: Any = SimpleNamespace(family=self.family, context=context, max_query_tokens=most)
        self._started = started

    async def _score(
        self, request: ScoreRequest, batches: Batches, *, alone: bool = False, canary: bool = False
    ) -> Scored:
        queries = [query async for batch in batches for query in batch]
        self.asked += [each.query for each in queries]
        return Scored({key: 1.0 for each in queries for key in each.keys}, ScoringCost())

    async def path(self, steps: Sequence[str], question: str = QUESTION, deadline_s: float = MINUTES) -> list[float]:
        """The rewards of all steps of a path."""
        item = ScoreItem(tuple(steps), len(steps))
        [rewards] = await self.score(ScoreRequest("search", question, (item,), deadline_s))
        return rewards


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return build_tokenizer(200)


def path_of(steps: int, words: int = 40) -> list[str]:
    return [f"{number}{' and' * words}\n\n" for number in range(steps)]


@pytest.mark.parametrize("steps", [50, 100])
@pytest.mark.parametrize("family", [*STEP_BY_STEP, *AT_ONCE])
async def test_a_path_longer_than_the_context_is_encoded_once_and_refused_with_its_numbers(
    tokenizer: PreTrainedTokenizerBase, family: str, steps: int
) -> None:
    engine = Unstarted(family, 1024, tokenizer)
    most = engine._running.max_query_tokens
    with pytest.raises(ScoredPathTooLarge, match=rf"a path of \d{{4,}} tokens, .*context; at most {most} fit"):
        await engine.path(path_of(steps))
    assert engine.read == [(QUESTION, steps)]
    assert engine.asked == []


async def test_a_path_of_far_too_many_characters_is_not_encoded(tokenizer: PreTrainedTokenizerBase) -> None:
    engine = Unstarted("outcome", 64, tokenizer)
    with pytest.raises(ScoredPathTooLarge, match=r"more than 64 tokens .* at most 64 fit"):
        await engine.path(path_of(50))
    assert engine.read == []


@pytest.mark.parametrize("family", STEP_BY_STEP)
async def test_what_takes_long_is_encoded_in_a_thread_to_the_same_queries(
    tokenizer: PreTrainedTokenizerBase, family: str
) -> None:
    engine, steps = Unstarted(family, 1 << 20, tokenizer), path_of(50)
    assert await engine.path(steps) == [1.0] * 50
    assert engine.read == [(QUESTION, end) for end in range(50, 0, -1)]
    assert threading.current_thread().name not in engine.threads
    assert [query.token_ids for query in engine.asked] == [
        query.token_ids for query in reversed(engine.family.queries(QUESTION, steps, 50))
    ]
    engine.read.clear()
    await engine.path([*steps, "So 4."])
    assert engine.read == [(QUESTION, 51)], "the rewards of the others are known"


@pytest.mark.parametrize("family", [*STEP_BY_STEP, *AT_ONCE])
async def test_an_ordinary_call_is_encoded_on_the_event_loop(tokenizer: PreTrainedTokenizerBase, family: str) -> None:
    engine = Unstarted(family, 1 << 20, tokenizer)
    items = tuple(ScoreItem((*path_of(5), f"{number}\n\n")) for number in range(16))
    await engine.score(ScoreRequest("search", QUESTION, items, MINUTES))
    assert engine.threads == {threading.current_thread().name}


async def test_texts_whose_token_ids_are_known_take_no_time(tokenizer: PreTrainedTokenizerBase) -> None:
    engine, long = Unstarted("step_head", 1 << 20, tokenizer), "Add 12. " * (INLINE_CHARACTERS // 8)
    for _ in range(2):
        engine.threads.clear()
        engine.forget()
        await engine.path(path_of(5), long)
    assert engine.threads == {threading.current_thread().name}


async def test_long_paths_are_encoded_in_turns(tokenizer: PreTrainedTokenizerBase) -> None:
    engine = Unstarted("outcome", 1 << 20, tokenizer)
    await asyncio.gather(*(engine.path(path_of(100), question) for question in ("one?", "two?")))
    assert engine.read.index(("two?", 100)) < engine.read.index(("one?", 1))
