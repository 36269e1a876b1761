"""The scoring engine: scores steps with a process reward model on one vLLM engine, and caches their rewards.

It owns the engine and the reward cache. How a path becomes requests, and outputs rewards, is in ``rewards``.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from itertools import groupby, islice
from typing import ClassVar, NamedTuple, TypeAlias

from cachetools import LRUCache
from vllm import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerFactory

from deployments.engines.arguments import engine_args
from deployments.engines.backlog import Backlog
from deployments.engines.counters import EngineCounters, engine_leftovers
from deployments.engines.engine_calls import EngineCall, EngineCallError, NeverFits, RequestRefused
from deployments.engines.errors import EngineStartError
from deployments.engines.lifecycle import EngineLifecycle, StartedEngine, engine_tokenizer
from deployments.engines.load_arguments import loader_args
from deployments.engines.request_queue import RequestQueue
from deployments.engines.rewards.family import Query, RewardFamily, RewardModelSettings
from kvstore.memory.clamp import KVClamp
from kvstore.memory.geometry import KVGeometry
from kvstore.memory.ledger import KVLedger, Prefix
from search.errors import ScoredPathTooLarge, ScorerError, ScorerRefused
from search.ports import ScoreItem, ScoreRequest
from search.rewards import RewardRows, ScoringCost, check_rewards

SAMPLE_QUESTION = "Start with 12. Add 30. What is the result?"
SAMPLE_RIGHT = "12 + 30 = 42\n\n"
SAMPLE_WRONG = "12 + 30 = 57\n\n"
SAMPLE_S = 120.0
"""Longest time for the rewards of the two at the start."""
SETTLE_S = 5.0
"""Longest wait for the engine to report that it is idle."""
MIN_DIFFERENCE = 1e-9
"""Rewards that differ by less are the same."""
INLINE_CHARACTERS = 32_768
"""Most characters that a call encodes on the event loop, which takes some 30 ms; and at a time in a thread."""
MAX_OPEN_BATCHES = 2
"""A call encodes no more while it has as many requests open as this many batches hold: a family that reads a path for
each step would otherwise hold them all, whose tokens are quadratic in the steps."""
_ENCODERS = ThreadPoolExecutor(2, thread_name_prefix="encoding")
PathKey = bytes
"""Key of the reward cache: a digest of cache salt, question and the steps of a path."""


class Reading(NamedTuple):
    """The first ``end`` steps of a path, which are read once, and the cache keys of the last of them, which that
    scores."""

    keys: tuple[PathKey, ...]
    path: tuple[str, ...]
    end: int


class KeyedQuery(NamedTuple):
    """A query, with the cache keys of the steps that it scores, oldest first."""

    keys: tuple[PathKey, ...]
    query: Query


Batches: TypeAlias = AsyncGenerator[Sequence[KeyedQuery], None]
"""The queries of a call as they are encoded. The next ones are asked for when the engine can take more."""


class Scored(NamedTuple):
    """Rewards from the engine, validated, and what they cost."""

    rewards: dict[PathKey, float]
    cost: ScoringCost
    partial: frozenset[PathKey] = frozenset()
    """Keys of rewards that another call might not get: they are not remembered."""


@dataclass(frozen=True)
class StartedScorer(StartedEngine):
    """A started engine and the reward family of its model."""

    family: RewardFamily
    clamp: KVClamp | None
    """None where the model has no KV cache."""
    block_size: int
    """Tokens per KV block."""

    @property
    def max_query_tokens(self) -> int:
        """Longest query, tokens."""
        return self.context - self.family.reserved_tokens

    def prefix(self, query: Query, cache_salt: str) -> Prefix | None:
        """The query's tokens as blocks. A query writes no token that takes KV memory: its last one stands for the token
        that the ledger expects behind a prefix."""
        if self.clamp is None:
            return None
        tokens = query.token_ids[:-1]
        if query.params.skip_reading_prefix_cache:
            return Prefix((), len(tokens))
        return self.clamp.prefix(tokens, cache_salt)


class ScoringEngine(EngineLifecycle[StartedScorer]):
    """One vLLM engine that scores steps; its requests are items."""

    failure = ScorerError
    requests_are = "items"
    queue_surplus: ClassVar[float] = 1.0
    """Share of a batch that the engine holds beyond its batch. A query takes one engine step, so a whole further batch
    has to be at the engine when the step ends."""
    _settings: RewardModelSettings

    def __init__(self, settings: RewardModelSettings) -> None:
        super().__init__(settings)
        self._reward_cache: LRUCache[PathKey, float] = LRUCache(settings.reward_cache_size)
        self._reward_cache_hits = 0
        self._recomputed_tokens = 0
        self._backlog = Backlog()

    def _arguments(self) -> AsyncEngineArgs:
        return scoring_args(self._settings, self._unused)

    def _derive(self, engine: AsyncLLM, geometry: KVGeometry) -> StartedScorer:
        family = self._settings.reader(self._settings, engine_tokenizer(engine, self._settings))
        counters = EngineCounters.of(engine)
        clamp = KVClamp(KVLedger.of(counters.usable_blocks, geometry)) if geometry.groups else None
        queue = RequestQueue(self._settings.max_num_seqs, clamp, self.queue_surplus)
        counters.on_step = queue.stepped
        return StartedScorer(engine, counters, queue, family, clamp, engine.vllm_config.cache_config.block_size)

    async def score(self, request: ScoreRequest, alone: bool = False) -> RewardRows:
        """Returns the rewards in [0, 1] of each item's last ``unscored`` steps; see ``search.ports.StepScorer``, and
        `EngineCall` for ``alone``.

        Raises:
            ScorerRefused: an item is malformed.
            ScoredPathTooLarge: a path and its tags do not fit into the model's context or its whole KV memory.
            ScorerError: the engine failed, missed the deadline, or gave invalid rewards.
        """
        keys = [_path_keys(request, item) for item in request.items]
        known: dict[PathKey, float] = {}
        missing: dict[PathKey, Reading] = {}
        for item, item_keys in zip(request.items, keys, strict=True):
            found = {key: reward for key in item_keys if (reward := self._reward_cache.get(key)) is not None}
            known |= found
            if len(found) == len(item_keys):
                self._reward_cache_hits += 1
                continue
            for reading in self._readings(item, item_keys):
                # Siblings often write the same step: of equal paths the one of which most steps are scored is read.
                other = missing.get(reading.keys[-1])
                if not found.keys() >= set(reading.keys) and (other is None or len(reading.keys) > len(other.keys)):
                    missing[reading.keys[-1]] = reading
        scored = Scored({}, ScoringCost())
        if missing:
            with self._backlog.call(), _search_errors():
                async with aclosing(self._encoded(request.question, list(missing.values()))) as batches:
                    scored = await self._score(request, batches, alone=alone)
            self._remember({key: reward for key, reward in scored.rewards.items() if key not in scored.partial})
            known |= scored.rewards
            self._recomputed_tokens += scored.cost.recomputed_tokens
        rows = RewardRows([known[key] for key in item_keys] for item_keys in keys)
        rows.cost = scored.cost
        return rows

    async def start(self, stat_loggers: Sequence[StatLoggerFactory] = ()) -> None:
        """Starts the engine, and scores a right and a wrong path: `notes` says what is odd about the rewards.

        Raises:
            EngineStartError: the engine did not start, its model does not suit the family, or it cannot score a path;
                nothing is left running.
        """
        await super().start(stat_loggers)
        try:
            if (odd := await self._odd_rewards()) is not None:
                self._note(odd)
            running = self._running
            await engine_leftovers(running.engine, SETTLE_S)  # the last step is counted when it has reported
            running.counters.restart()
            running.queue.restart()
        except BaseException:
            self.shutdown()
            raise

    async def _odd_rewards(self) -> str | None:
        """What is odd about the rewards of a right and a wrong path; None also where the context is too short for them.

        Raises EngineStartError when they cannot be scored.
        """
        request = ScoreRequest("start", SAMPLE_QUESTION, (), SAMPLE_S)
        steps = (SAMPLE_RIGHT, SAMPLE_WRONG)
        try:
            for step in steps:
                self._running.family.prompt_ids(SAMPLE_QUESTION, (step,))
            queries = [KeyedQuery((step.encode(),), self._quick_query(SAMPLE_QUESTION, step)) for step in steps]
            scored = await ScoringEngine._score(self, request, _one_batch(*queries), canary=True)
        except (ScorerRefused, NeverFits):  # not by the encoding, which was tried
            return None
        except (EngineCallError, ValueError) as error:
            raise EngineStartError(f"{self._settings.model!r} cannot score a path: {error}") from error
        except ScorerError as error:
            return f"at the start, of a sample: {error}"
        return odd_rewards(*scored.rewards.values())

    async def _touch(self, name: str, deadline_s: float) -> None:
        """Scores one step that was never scored before."""
        request = ScoreRequest(name, "canary", (), deadline_s)
        with _search_errors():
            query = KeyedQuery((name.encode(),), self._quick_query("canary", name))
            await ScoringEngine._score(self, request, _one_batch(query), canary=True)

    def _quick_query(self, question: str, step: str) -> Query:
        """The query of a path of one step that takes least time."""
        return self._query(question, (step,), 1)

    @property
    def pressure(self) -> float:
        """The greatest of the pressures on the batch, on KV memory, and by the backlog: a new step's expected wait for
        its reward, over the longest wait allowed."""
        clamp = self._running.clamp
        memory = 0.0 if clamp is None else clamp.pressure
        return max(super().pressure, memory, self._backlog.seconds / self._settings.scoring_delay_s)

    def forget(self) -> None:
        """Empties the reward cache; the engine's own prefix cache stays."""
        self._reward_cache.clear()

    def stats(self) -> dict[str, int]:
        """The engine's counters and the reward cache's; ``reward_cache_hits`` counts items that needed no engine. And
        the reserved KV blocks, the requests that had to wait for KV memory, and the ``recomputed_tokens`` of paths: of
        the tokens that earlier steps were scored with, in whole blocks, those that were computed again."""
        running = self._running
        clamped = {} if running.clamp is None else {"reserved_blocks": running.clamp.ledger.reserved}
        return {
            **super().stats(),
            **clamped,
            "items_held_back": running.queue.waited,
            "recomputed_tokens": self._recomputed_tokens,
            "reward_cache_hits": self._reward_cache_hits,
            "reward_cache_entries": len(self._reward_cache),
        }

    async def _score(
        self, request: ScoreRequest, batches: Batches, *, alone: bool = False, canary: bool = False
    ) -> Scored:
        """Scores the queries on the engine. Raises EngineCallError or ValueError, and the errors of ``batches``."""
        running = self._running
        rewards: dict[PathKey, float] = {}
        prompt_tokens = cached_tokens = recomputed_tokens = 0
        engine, queue = running.engine, running.queue
        async with EngineCall[KeyedQuery](engine, queue, request, alone=alone, canary=canary) as call:
            batch: Sequence[KeyedQuery] | None = ()
            while batch is not None or call.pending:
                if batch is not None and call.pending <= self.max_open:
                    batch = await anext(batches, None)
                    for label in batch or ():
                        prefix = running.prefix(label.query, request.cache_salt)
                        call.submit(label, label.query.token_ids, label.query.params, prefix=prefix)
                    continue
                for done in await call.wait():
                    label = done.label
                    cached = done.output.num_cached_tokens or 0
                    prompt_tokens += len(label.query.token_ids)
                    cached_tokens += cached
                    if running.family.missing_rows(done.output, label.query) > label.query.first:
                        again = label.query.uncached()
                        prefix = running.prefix(again, request.cache_salt)
                        call.submit(label._replace(query=again), again.token_ids, again.params, prefix=prefix)
                        continue
                    values = running.family.rewards(done.output, label.query)
                    [row] = check_rewards([values], [len(label.keys)], self._settings.model)
                    rewards |= zip(label.keys, row, strict=True)
                    # Only whole blocks are cached.
                    whole = label.query.known // running.block_size * running.block_size
                    recomputed_tokens += max(0, whole - cached)
        return Scored(rewards, ScoringCost(prompt_tokens, cached_tokens, recomputed_tokens))

    @property
    def max_open(self) -> int:
        """Most requests of a call that are open while it has more to encode."""
        return MAX_OPEN_BATCHES * self._settings.max_num_seqs

    def _remember(self, rewards: dict[PathKey, float]) -> None:
        if self._settings.reward_cache_size:
            self._reward_cache.update(rewards)

    def _readings(self, item: ScoreItem, keys: tuple[PathKey, ...]) -> Iterator[Reading]:
        """What is read of a path to score its last steps, whose keys these are. The whole path comes first."""
        end = len(item.steps)
        if not self._running.family.step_by_step:
            yield Reading(keys, item.steps, end)
            return
        for number, key in enumerate(reversed(keys)):
            yield Reading((key,), item.steps, end - number)

    async def _encoded(self, question: str, readings: Sequence[Reading]) -> Batches:
        """Encodes these paths. What takes long is encoded in a thread, in turns with other calls'.

        Raises:
            ScorerRefused: a path is malformed, or longer than the context. Of a path that is too long nothing else has
                been encoded: a family that reads it up to each of its steps takes quadratic time.
        """
        queries = (
            KeyedQuery(each.keys, self._query(question, each.path[: each.end], len(each.keys))) for each in readings
        )
        unread = self._running.family.unread
        characters = sum(
            unread(question, path) * sum(1 for _ in of) for path, of in groupby(readings, lambda each: each.path)
        )
        if characters <= INLINE_CHARACTERS:
            yield [*queries]
            return
        at_once = max(1, INLINE_CHARACTERS * len(readings) // characters)
        loop = asyncio.get_running_loop()
        while batch := await loop.run_in_executor(_ENCODERS, list, islice(queries, at_once)):
            yield batch

    def _query(self, question: str, steps: Sequence[str], unscored: int) -> Query:
        context, most = self._running.context, self._running.max_query_tokens
        # A path that is far too long is refused before it is tokenized.
        characters = len(question) + sum(map(len, steps))
        if characters > self._settings.max_characters:
            raise ScoredPathTooLarge(
                f"a path of {characters} characters has more than {context} tokens and does not fit the PRM's context; "
                f"at most {most} fit"
            )
        try:
            query = self._running.family.query(question, steps, unscored)
        except ValueError as error:
            raise ScorerRefused(f"a path cannot be encoded: {error}") from error
        if len(query.token_ids) > most:
            raise ScoredPathTooLarge(
                f"a path of {len(query.token_ids)} tokens, with what the PRM's format adds, does not fit the PRM's "
                f"context; at most {most} fit"
            )
        return query


async def _one_batch(*queries: KeyedQuery) -> Batches:
    yield queries


def scoring_args(settings: RewardModelSettings, unused: Collection[str] = ()) -> AsyncEngineArgs:
    """vLLM's arguments for a reward model's engine. ``unused``: names of weights that are not loaded.

    Raises EngineStartError when the settings allow no engine.
    """
    family = settings.reader
    model = loader_args(settings, unused, settings.lora, family.head)
    overrides = dict(settings.hf_overrides)
    if family.vllm_model:
        overrides["architectures"] = [family.vllm_model.partition(":")[2]]
    if overrides:
        model["hf_overrides"] = overrides
    return engine_args(settings, runner=family.runner, pooler=family.pooler(), model=model)


def odd_rewards(right: float, wrong: float) -> str | None:
    """What is odd about the rewards of a right and a wrong path: None if nothing is."""
    told = f"at the start a right path has the reward {right:.6g} and a wrong one {wrong:.6g}"
    if abs(right - wrong) < MIN_DIFFERENCE:
        return f"{told}: they are the same"
    if {right, wrong} <= {0.0, 1.0}:
        return f"{told}: rewards of exactly 0 and 1 suggest that the weights were not trained"
    return None


@contextmanager
def _search_errors() -> Iterator[None]:
    """Raises the errors of an engine call as ScorerErrors."""
    try:
        yield
    except NeverFits as error:
        raise ScoredPathTooLarge(f"{error}; prm.kv_cache_memory_bytes sets their number") from error
    except RequestRefused as error:
        raise ScorerRefused(str(error)) from error
    except (EngineCallError, ValueError) as error:
        raise ScorerError(str(error)) from error


def _path_keys(request: ScoreRequest, item: ScoreItem) -> tuple[PathKey, ...]:
    """The cache keys of the item's unscored steps. A step's key covers cache salt, question and all steps before it.

    Raises:
        ScorerRefused: ``unscored`` is not between 1 and the number of steps.
    """
    if not 1 <= item.unscored <= len(item.steps):
        raise ScorerRefused(f"unscored is {item.unscored} in a path of {len(item.steps)} steps")
    digest = hashlib.blake2b(_framed(request.cache_salt) + _framed(request.question), digest_size=16)
    keys: list[PathKey] = []
    for step in item.steps:
        digest.update(_framed(step.strip()))
        keys.append(digest.digest())
    return tuple(keys[-item.unscored :])


def _framed(text: str) -> bytes:
    """A text's bytes behind their length, so that no two lists of texts give the same bytes."""
    data = text.encode("utf-8", "surrogatepass")
    return len(data).to_bytes(8, "big") + data
