"""The verification engine: a scoring engine whose model writes critiques of a step before the verdicts are read.

A step takes several critiques, and for each a request that reads the label behind it. All are requests in the replica's
queue, with the clamp and the turns of every other.
"""

import asyncio
import hashlib
from array import array
from collections.abc import Sequence
from copy import copy
from statistics import fmean
from typing import ClassVar, NamedTuple

from vllm import RequestOutput, SamplingParams

from deployments.engines.engine_calls import EngineCall, Output
from deployments.engines.request_queue import EngineRequest
from deployments.engines.rewards.family import Query
from deployments.engines.rewards.generative import SPARE_TOKENS, Generative, VerifierSettings
from deployments.engines.scoring import Batches, KeyedQuery, PathKey, Scored, ScoringEngine, StartedScorer
from kvstore.memory.clamp import StepLengths
from search.ports import ScoreRequest
from search.rewards import ScoringCost, check_rewards

VERDICT_S = 5.0
"""Time before a call's deadline at which its critiques are cut off, so that their verdicts can be read."""
VERDICT_SHARE = 0.2
"""The same as a share of the call's time, where that is less."""
CUT_OFF = ("length", "abort")
"""vLLM's reasons for the end of a critique that did not come to its own end."""


class VerificationEngine(ScoringEngine):
    """One vLLM engine that writes critiques of steps and scores the steps by their verdicts.

    A reward is the mean of the verdicts of ``samples`` critiques. Each has a seed of its own that follows from the
    path: rewards depend neither on the batch nor on the replica. Shortly before a call's deadline its critiques are cut
    off. A step with a finished critique is scored by what has finished; for any other the verdict is read behind what
    was written of its critiques, or behind the prompt alone. Such a reward is partial: it is not remembered.
    """

    queue_surplus: ClassVar[float] = 0.25
    _settings: VerifierSettings

    def __init__(self, settings: VerifierSettings) -> None:
        super().__init__(settings)
        self._lengths = StepLengths()
        self._critiques = self._cut_critiques = 0

    def stats(self) -> dict[str, int]:
        """Those of a scoring engine, and the number of critiques that were written, and of those that were cut off."""
        return {**super().stats(), "critiques": self._critiques, "cut_critiques": self._cut_critiques}

    async def _score(
        self, request: ScoreRequest, batches: Batches, *, alone: bool = False, canary: bool = False
    ) -> Scored:
        running = self._running
        engine, queue = running.engine, running.queue
        async with EngineCall[_Sample](engine, queue, request, alone=alone, canary=canary) as call:
            verification = _Verification(self._settings, running, self._lengths, call, request.cache_salt)
            try:
                await verification.run(batches, self.max_open, request.deadline_s)
            finally:
                cost = verification.cost
                self._critiques += cost.critiques
                self._cut_critiques += cost.cut_critiques
        return Scored(verification.rewards, cost, frozenset(verification.partial))

    def _quick_query(self, question: str, step: str) -> Query:
        """Reads the verdict behind an empty critique."""
        family = self._running.family
        assert isinstance(family, Generative)
        return family.verdict(super()._quick_query(question, step), "")


class _Sample(NamedTuple):
    """The label of a request for a critique of a step or, with ``verdict``, for the verdict behind it."""

    of: KeyedQuery
    verdict: Query | None = None

    @property
    def key(self) -> PathKey:
        return self.of.keys[-1]


class _Verification:
    """The critiques and verdicts of one call."""

    def __init__(
        self,
        settings: VerifierSettings,
        running: StartedScorer,
        lengths: StepLengths,
        call: EngineCall[_Sample],
        cache_salt: str,
    ) -> None:
        assert isinstance(running.family, Generative)
        self._settings = settings
        self._running = running
        self._family = running.family
        self._lengths = lengths
        self._call = call
        self._cache_salt = cache_salt
        self._verdicts: dict[PathKey, list[float]] = {}
        self._asked: set[PathKey] = set()
        """Steps of which a verdict was asked for."""
        self._costs: list[ScoringCost] = []
        self.partial: set[PathKey] = set()
        """Steps of which the deadline cut off critiques."""

    @property
    def cost(self) -> ScoringCost:
        return ScoringCost.total(self._costs)

    @property
    def rewards(self) -> dict[PathKey, float]:
        """The mean verdict of each step, validated."""
        means = [[fmean(verdicts)] for verdicts in self._verdicts.values()]
        rows = check_rewards(means, [1] * len(means), self._settings.model)
        return {key: reward for key, [reward] in zip(self._verdicts, rows, strict=True)}

    def _begin(self, keyed: KeyedQuery) -> None:
        """Submits the critiques of a step, or asks for its verdict at once if the context leaves no room for one."""
        token_ids, clamp = keyed.query.token_ids, self._running.clamp
        left = self._running.max_query_tokens - SPARE_TOKENS - len(token_ids)
        if left < 1:
            self._ask(_Sample(keyed), "")
            return
        tokens = min(self._settings.max_tokens, left)
        prefix = None if clamp is None else clamp.prefix(token_ids, self._cache_salt)
        for number in range(self._settings.samples):
            params = copy(keyed.query.params)
            assert isinstance(params, SamplingParams)
            params.max_tokens = tokens
            if params.temperature > 0:
                params.seed = critique_seed(token_ids, number)
            growth = self._lengths.expected(tokens)
            self._call.submit(_Sample(keyed), token_ids, params, prefix=prefix, growth=growth)

    async def run(self, batches: Batches, max_open: int, deadline_s: float) -> None:
        """Begins all critiques, and waits for all verdicts. Raises EngineCallError, as at the deadline, and the errors
        of ``batches``.

        Args:
            max_open: most requests that are open while there is more to begin.
        """
        clock = asyncio.get_running_loop().time
        cut_at = clock() + deadline_s - min(VERDICT_S, VERDICT_SHARE * deadline_s)
        batch: Sequence[KeyedQuery] | None = ()
        cut = False
        while batch is not None or self._call.pending:
            if not cut and clock() >= cut_at:
                cut = True
                await self._cut_critiques()
            elif batch is not None and self._call.pending <= max_open:
                batch = await anext(batches, None)
                for keyed in batch or ():
                    if cut:
                        self.partial.add(keyed.keys[-1])
                        self._ask(_Sample(keyed), "")
                    else:
                        self._begin(keyed)
            else:
                for done in await self._call.wait(None if cut else max(0.0, cut_at - clock())):
                    self._take(done)

    async def _cut_critiques(self) -> None:
        for done in self._call.take():
            self._take(done)
        aborted = await self._call.cut(lambda sample: sample.verdict is None)
        without = {cut.label.key for cut in aborted} - self._asked
        for cut in aborted:
            sample, output = cut.label, cut.output
            self.partial.add(sample.key)
            if output is not None and output.outputs[0].token_ids:  # the engine had begun with it
                self._count(sample, output)
                if sample.key in without:
                    self._ask(sample, output.outputs[0].text, place=cut.place)
        for cut in aborted:
            if cut.label.key not in self._asked:
                self._ask(cut.label, "", place=cut.place)

    def _take(self, done: EngineRequest) -> None:
        sample, output = done.label, done.output
        self._count(sample, output)
        if sample.verdict is not None:
            self._verdicts.setdefault(sample.key, []).extend(self._family.rewards(output, sample.verdict))
            return
        critique = output.outputs[0]
        self._lengths.add(len(critique.token_ids))
        self._ask(sample, critique.text, critique.stop_reason, done.place)

    def _ask(self, sample: _Sample, critique: str, stopped_by: object = None, place: int | None = None) -> None:
        """Submits the request for a verdict, in the place of the critique: other critiques take long."""
        self._asked.add(sample.key)
        verdict = self._family.verdict(sample.of.query, critique, stopped_by)
        prefix = self._running.prefix(verdict, self._cache_salt)
        asked = sample._replace(verdict=verdict)
        self._call.submit(asked, verdict.token_ids, verdict.params, prefix=prefix, place=place)

    def _count(self, sample: _Sample, output: Output) -> None:
        assert isinstance(output, RequestOutput)
        cached = output.num_cached_tokens or 0
        if sample.verdict is not None:
            self._costs.append(ScoringCost(len(sample.verdict.token_ids), cached))
            return
        critique = output.outputs[0]
        self._costs.append(
            ScoringCost(
                len(sample.of.query.token_ids),
                cached,
                generated_tokens=len(critique.token_ids),
                critiques=1,
                cut_critiques=int(critique.finish_reason in CUT_OFF),
            )
        )


def critique_seed(token_ids: Sequence[int], number: int) -> int:
    """The sampling seed of critique ``number`` behind a prompt: a hash of both.

    Returns a non-negative 63-bit integer, as torch and vLLM require.
    """
    digest = hashlib.blake2b(array("q", [number, *token_ids]).tobytes(), digest_size=8)
    return int.from_bytes(digest.digest(), "big") >> 1
