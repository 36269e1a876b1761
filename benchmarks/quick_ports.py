"""A generator and a scorer that cost next to nothing, for searches of tens of thousands of steps.

What they say follows from the seeds alone. Their own processor time is kept apart, so that it can be taken off.
"""

import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager

from search.ports import Branch, Child, ChildGroup, ExpandItem, ExpandRequest, ScoreRequest, StopCondition
from search.tree import Step, StepEnd

GROUP = 64
"""Children that arrive together: all that an engine of the default ``max_num_seqs`` can finish at a time."""
SHORTEST, LONGEST = 4, 8
"""Tokens of a step."""
VOCABULARY = 50_000
ENDING = 256
"""One step in so many ends its path."""
ANSWERS = 200


class OwnTime:
    """Processor seconds that the thread spent on the fakes, less what was spent meanwhile on collecting garbage."""

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
    """Writes steps of a few tokens. ``repeated``: the share of siblings whose texts others have already. ``length``:
    the steps of a whole solution."""

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
        """Of so few texts that the share of siblings repeats others."""
        if not self._repeated:
            return branch.seed
        # One asked for alone has siblings that were asked for before: among a few texts it finds its own.
        texts = round((1.0 - self._repeated) * max(len(item.branches), 8))
        return zlib.crc32(repr(item.parent).encode()) << 20 | branch.seed % max(1, texts)


def _step(seed: int, ends: bool, whole: bool) -> Step:
    """The step of a seed. A whole solution ends where it is told to, any other path by chance."""
    mixed = (seed * 0x9E3779B97F4A7C15 + 0x7F4A7C15) & 0xFFFF_FFFF_FFFF
    mixed ^= mixed >> 17
    tokens = tuple((mixed + 7919 * place) % VOCABULARY for place in range(SHORTEST + mixed % (LONGEST - SHORTEST + 1)))
    if ends or (not whole and mixed // 8 % ENDING == 0):
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
    """From 0.25 to 0.75: of rewards that are further apart, a few paths would soon take all that is resampled."""
    return 0.25 + (zlib.crc32(text.encode()) & 0xFFFF) / 0x1FFFE
