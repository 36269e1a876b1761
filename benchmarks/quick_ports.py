"""A generator and a scorer that cost next to nothing, for searches of tens of thousands of steps.

Their output follows from the seeds alone. Their own CPU time is counted separately, so that it can be subtracted.
"""

import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager

from search.ports import Branch, Child, ChildGroup, ExpandItem, ExpandRequest, ScoreRequest, StopCondition
from search.tree import Step, StepEnd

GROUP = 64
"""Children per group: all that an engine with the default ``max_num_seqs`` can finish at once."""
MIN_TOKENS, MAX_TOKENS = 4, 8
"""Fewest and most tokens of a step."""
VOCABULARY = 50_000
STEPS_PER_END = 256
"""One step in this many ends its path."""
ANSWERS = 200


class OwnTime:
    """CPU seconds that the thread spent on the fakes, without the garbage collections in between."""

    def __init__(self, collecting: Callable[[], float] = lambda: 0.0) -> None:
        self.seconds = 0.0
        self._collecting = collecting

    @contextmanager
    def counted(self) -> Iterator[None]:
        before = time.thread_time() - self._collecting()
        try:
            yield
        finally:
            self.seconds += time.thread_time() - self._collecting() - before


class QuickGenerator:
    """Writes steps of a few tokens. ``repeated``: share of siblings that repeat another's text. ``length``: steps of a
    whole solution."""

    def __init__(self, own: OwnTime, repeated: float, length: int) -> None:
        self._own = own
        self._repeated = repeated
        self._length = length

    async def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
        with self._own.counted():
            branches = [(item, branch) for item in request.expansions for branch in item.branches]
        whole = request.stop_condition is StopCondition.SOLUTION
        for start in range(0, len(branches), GROUP):
            with self._own.counted():
                group = tuple(
                    self._child(item, branch, whole, request.logprobs)
                    for item, branch in branches[start : start + GROUP]
                )
            yield ChildGroup(group)

    def _child(self, item: ExpandItem, branch: Branch, whole: bool, logprobs: bool) -> Child:
        seed = self._text_seed(item, branch)
        length = self._length if whole else 1
        steps = tuple(_step(seed ^ place, whole and place == length - 1, whole) for place in range(length))
        if logprobs:
            steps = tuple(step._replace(logprob=-0.25 * len(step.token_ids)) for step in steps)
        return Child(item.parent, branch.index, steps, cached_tokens=len(item.prefix))

    def _text_seed(self, item: ExpandItem, branch: Branch) -> int:
        """Seed of the branch's text: one of so few texts that the wanted share of siblings repeats another's."""
        if not self._repeated:
            return branch.seed
        # A branch requested alone has siblings from earlier requests: a small set of texts makes it repeat theirs.
        texts = round((1.0 - self._repeated) * max(len(item.branches), 8))
        return zlib.crc32(repr(item.parent).encode()) << 20 | branch.seed % max(1, texts)


def _step(seed: int, ends: bool, whole: bool) -> Step:
    """The step of a seed. A whole solution ends at its last step, any other path at random."""
    mixed = (seed * 0x9E3779B97F4A7C15 + 0x7F4A7C15) & 0xFFFF_FFFF_FFFF
    mixed ^= mixed >> 17
    tokens = tuple(
        (mixed + 7919 * place) % VOCABULARY for place in range(MIN_TOKENS + mixed % (MAX_TOKENS - MIN_TOKENS + 1))
    )
    if ends or (not whole and mixed // 8 % STEPS_PER_END == 0):
        number = mixed // 4096 % ANSWERS
        answer = f"\\frac{{{number}}}{{7}}" if number % 8 == 0 else str(number)
        return Step(tokens, f"so the answer is \\boxed{{{answer}}} ({mixed:x})", StepEnd.END_OF_SEQUENCE)
    return Step(tokens, f"then {mixed:x} follows from what was said\n\n", StepEnd.DELIMITER)


class QuickScorer:
    """Rewards by the text of a step."""

    name = "quick-prm"

    def __init__(self, own: OwnTime) -> None:
        self._own = own

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        with self._own.counted():
            return [[_reward(text) for text in item.steps[-item.unscored :]] for item in request.items]


def _reward(text: str) -> float:
    """From 0.25 to 0.75: with rewards further apart, a few paths would soon get all that is resampled."""
    return 0.25 + (zlib.crc32(text.encode()) & 0xFFFF) / 0x1FFFE
