"""Scores steps of one problem with the embedded process reward model: each path is read once."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

from benchmarks.memoized.paths import NOTHING, PathReader, Piece, Read, Slots
from deployments.engines.rewards.step_head import StepHead
from search.errors import ScorerError
from search.ports import ScoreRequest


class ScoredPath:
    """A path and its last step's reward, once it was read. The reward of the empty path means nothing."""

    __slots__ = ("below", "path", "reading", "reward")

    def __init__(self) -> None:
        self.path: Slots = NOTHING
        self.reward: float | None = None
        self.reading: asyncio.Future[Read[float]] | None = None
        self.below: dict[str, ScoredPath] = {}
        """Longer paths, by the next step's text without surrounding whitespace, on which no reward depends."""

    def take(self, read: Read[float]) -> None:
        self.path, self.reward = read


class MemoizedScorer:
    """`search.ports.StepScorer` for one problem."""

    def __init__(self, family: StepHead, reader: PathReader[float], question: str) -> None:
        self._family = family
        self._reader = reader
        self._question = question
        self._root = ScoredPath()
        self.slots: list[int] = []
        """Cache slots taken for this problem."""

    async def score(self, request: ScoreRequest) -> list[list[float]]:
        """See ``search.ports.StepScorer``.

        Raises:
            ScorerError: the question is not this problem's, or the deadline passed.
        """
        if request.question != self._question:
            raise ScorerError("the question is another problem's")
        paths = [tuple(step.strip() for step in item.steps) for item in request.items]
        try:
            async with asyncio.timeout(request.deadline_s):
                # Siblings often write the same step.
                rewards = dict(zip(set(paths), await asyncio.gather(*map(self._rewards, set(paths))), strict=True))
        except TimeoutError as error:
            raise ScorerError("the deadline has passed") from error
        return [rewards[path][-item.unscored :] for path, item in zip(paths, request.items, strict=True)]

    async def _rewards(self, steps: Sequence[str]) -> list[float]:
        rewards: list[float] = []
        parent = self._root
        if parent.reward is None:
            await self._read(parent, NOTHING, ())
        for depth, step in enumerate(steps):
            scored = parent.below.setdefault(step, ScoredPath())
            if scored.reward is None:
                await self._read(scored, parent.path, steps[: depth + 1])
            assert scored.reward is not None
            rewards.append(scored.reward)
            parent = scored
        return rewards

    async def _read(self, scored: ScoredPath, parent: Slots, steps: Sequence[str]) -> None:
        if scored.reading is None:
            token_ids, tags = self._family.encode(self._question, steps)
            before = len(self._family.encode(self._question, ())[0])
            *_, (start, end) = pairwise((0, before, *(tag + 1 for tag in tags)))
            scored.reading = self._reader.read(Piece(parent, token_ids[start:end]), self.slots)
        scored.take(await asyncio.shield(scored.reading))  # shielded: others may wait for it too
