"""The scoring engine: scores steps with a process reward model on one vLLM engine, and remembers.

It owns the engine and the reward cache; what a reward family makes of a path is ``rewards``.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from cachetools import LRUCache
from vllm import AsyncEngineArgs, PoolingParams
from vllm.v1.engine.async_llm import AsyncLLM

from deployments.engines.arguments import engine_args
from deployments.engines.backlog import Backlog
from deployments.engines.counters import EngineCounters
from deployments.engines.engine_calls import EngineCall, EngineCallError, RequestRefused
from deployments.engines.lifecycle import EngineLifecycle, StartedEngine, engine_tokenizer
from deployments.engines.request_queue import RequestQueue
from deployments.engines.rewards.family import Query, RewardFamily, RewardModelSettings
from kvstore.memory.geometry import KVGeometry
from search.errors import ScorerError, ScorerRefused
from search.ports import ScoreItem, ScoreRequest
from search.rewards import check_rewards

MAX_CHARACTERS_PER_TOKEN = 32
"""More than any text has on average."""
PathKey = bytes
"""A digest of a question, the steps of a path, and the salt of whose caches they are."""


class _Wanted(NamedTuple):
    """Steps that the engine has to score: their keys, oldest first."""

    keys: tuple[PathKey, ...]
    query: Query


_NOTHING = _Wanted((), Query([], PoolingParams(), ()))


@dataclass(frozen=True)
class _Running(StartedEngine):
    """A started engine and the family that speaks its model's language."""

    family: RewardFamily

    @property
    def max_query_tokens(self) -> int:
        """One token less than the context where the query generates one."""
        return self.context - (self.family.runner == "generate")


class ScoringEngine(EngineLifecycle[_Running]):
    """One vLLM engine that scores steps; its requests are items."""

    failure = ScorerError
    requests_are = "items"
    _settings: RewardModelSettings

    def __init__(self, settings: RewardModelSettings) -> None:
        super().__init__(settings)
        self._reward_cache: LRUCache[PathKey, float] = LRUCache(settings.reward_cache_size)
        self._reward_cache_hits = 0
        self._backlog = Backlog()

    def _arguments(self) -> AsyncEngineArgs:
        return scoring_args(self._settings)

    def _derive(self, engine: AsyncLLM, geometry: KVGeometry) -> _Running:
        family = self._settings.reader(self._settings, engine_tokenizer(engine))
        # A query takes one step of the engine, so the next batch has to be there when that ends.
        queue = RequestQueue(self._settings.max_num_seqs, ahead=1.0)
        return _Running(engine, EngineCounters.of(engine), queue, family)

    async def score(self, request: ScoreRequest) -> list[list[float]]:
        """For each item its ``unscored`` rewards in [0, 1]; see ``search.ports.StepScorer``.

        Raises:
            ScorerRefused: an item is malformed, or longer than the model can read.
            ScorerError: the engine failed, or gave no usable rewards, or not in time.
        """
        keys = [_path_keys(request, item) for item in request.items]
        known: dict[PathKey, float] = {}
        missing: dict[PathKey, _Wanted] = {}
        for item, wanted in zip(request.items, keys, strict=True):
            found = {key: reward for key in wanted if (reward := self._reward_cache.get(key)) is not None}
            known |= found
            if len(found) == len(wanted):
                self._reward_cache_hits += 1
                continue
            rest = iter(wanted)
            for query in self._queries(request.question, item):
                own = tuple(islice(rest, len(query.tags)))
                # Siblings often write the same step; of equal paths the one with more to score counts.
                if not found.keys() >= set(own) and len(own) > len(missing.get(own[-1], _NOTHING).keys):
                    missing[own[-1]] = _Wanted(own, query)
        if missing:
            with self._backlog.call():
                scored = await self._score(request, list(missing.values()))
            self._remember(scored)
            known |= scored
        return [[known[key] for key in wanted] for wanted in keys]

    async def _touch(self, name: str, deadline_s: float) -> None:
        """Scores one step that was never scored before."""
        [query] = self._queries("canary", ScoreItem((name,)))
        await self._score(ScoreRequest(name, "canary", (), deadline_s), [_Wanted((name.encode(),), query)])

    @property
    def pressure(self) -> float:
        """The greater of its batch's and of its backlog's: how long a step that comes now would wait for its reward,
        over how long it may."""
        return max(super().pressure, self._backlog.seconds / self._settings.scoring_delay_s)

    def forget(self) -> None:
        """Empties the reward cache; the engine's own prefix cache stays."""
        self._reward_cache.clear()

    def stats(self) -> dict[str, int]:
        """The engine's counters and this one's; ``reward_cache_hits`` counts items that needed no engine."""
        return {
            **super().stats(),
            "reward_cache_hits": self._reward_cache_hits,
            "reward_cache_entries": len(self._reward_cache),
        }

    async def _score(self, request: ScoreRequest, wanted: Sequence[_Wanted]) -> dict[PathKey, float]:
        """Rewards from the engine, validated."""
        running = self._running
        rewards: dict[PathKey, float] = {}
        try:
            async with EngineCall[_Wanted](running.engine, running.queue, request) as call:
                for label in wanted:
                    call.submit(label, label.query.token_ids, label.query.params)
                while call.pending:
                    for done in await call.wait():
                        label = done.label
                        values = running.family.rewards(done.output, label.query)
                        [row] = check_rewards([values], [len(label.keys)], self._settings.model)
                        rewards |= zip(label.keys, row, strict=True)
        except RequestRefused as error:
            raise ScorerRefused(str(error)) from error
        except (EngineCallError, ValueError) as error:
            raise ScorerError(str(error)) from error
        return rewards

    def _remember(self, rewards: dict[PathKey, float]) -> None:
        if self._settings.reward_cache_size:
            self._reward_cache.update(rewards)

    def _queries(self, question: str, item: ScoreItem) -> list[Query]:
        # Known to be too long before it is tokenized, for some families once for every step.
        characters = len(question) + sum(map(len, item.steps))
        if characters > self._running.context * MAX_CHARACTERS_PER_TOKEN:
            raise ScorerRefused(
                f"a path of {characters} characters does not fit the PRM's context of {self._running.context}"
            )
        try:
            queries = self._running.family.queries(question, item.steps, item.unscored)
        except ValueError as error:
            raise ScorerRefused(f"a path cannot be encoded: {error}") from error
        longest = max(len(query.token_ids) for query in queries)
        if longest > self._running.max_query_tokens:
            raise ScorerRefused(f"a path of {longest} tokens does not fit the PRM's context of {self._running.context}")
        return queries


def scoring_args(settings: RewardModelSettings) -> AsyncEngineArgs:
    """What the engine of a reward model is started with. Raises EngineStartError when the settings allow none."""
    family = settings.reader
    architecture = family.vllm_model.partition(":")[2] if family.vllm_model else None
    return engine_args(settings, runner=family.runner, pooler=family.pooler(), architecture=architecture)


def _path_keys(request: ScoreRequest, item: ScoreItem) -> tuple[PathKey, ...]:
    """The keys of the item's unscored steps. A step's key stands for all before it too, and for whom it was scored.

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
    """Bytes that say their own length, so that no two lists of texts look alike."""
    data = text.encode("utf-8", "surrogatepass")
    return len(data).to_bytes(8, "big") + data
