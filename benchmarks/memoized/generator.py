"""Writes the steps of one problem: walks over next-token distributions, which are known once a prefix has been read."""

import asyncio
import math
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.memoized.paths import NOTHING, PathReader, Piece, Read, Slots
from deployments.engines.step_splitter import StepSplitter, StepStop
from search.errors import GeneratorError
from search.ports import Child, ChildGroup, ExpandRequest, Sampling, StopCondition
from search.tree import NodeId, Step, StepEnd

TAIL = 1e-9
"""Probability of the tail of a distribution that is never drawn, which keeps lists short for a model that is sure."""

Logits = NDArray[np.float32]


class Language(NamedTuple):
    """The tokenizer's side of the model: step splitter, stop tokens, context."""

    splitter: StepSplitter
    eos_ids: frozenset[int]
    string_ends: frozenset[int]
    """Tokens that may complete a delimiter which is spelled in pieces."""
    context: int


class Choices(NamedTuple):
    """The tokens that may come next, the likeliest first."""

    token_ids: list[int]
    cumulative: list[float]
    """Cumulative sampling probabilities."""
    logprobs: list[float]
    """At temperature 1, nats."""

    def draw(self, rng: Random) -> int:
        """Index of a drawn token."""
        return bisect_right(self.cumulative, rng.random() * self.cumulative[-1], hi=len(self.cumulative) - 1)


class Prefix:
    """A prefix of a solution, and the distribution of its next token once it was read."""

    __slots__ = ("_choices", "_next", "logits", "path", "piece", "reading")

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        """Its last token, after the path before it; for the empty solution, the prompt."""
        self.path: Slots = NOTHING
        self.logits: Logits | None = None
        self.reading: asyncio.Future[Read[Logits]] | None = None
        self._next: dict[int, Prefix] = {}
        self._choices: dict[Sampling, Choices] = {}

    def take(self, read: Read[Logits]) -> None:
        self.path, self.logits = read

    def next(self, token: int) -> "Prefix":
        """The prefix with one more token. This prefix must have been read."""
        found = self._next.get(token)
        if found is None:
            found = self._next[token] = Prefix(Piece(self.path, (token,)))
        return found

    def choices(self, sampling: Sampling) -> Choices:
        """The next tokens under a sampling. This prefix must have been read."""
        found = self._choices.get(sampling)
        if found is None:
            assert self.logits is not None
            found = self._choices[sampling] = choices_of(self.logits, sampling)
        return found


def choices_of(logits: Logits, sampling: Sampling) -> Choices:
    """The tokens that vLLM would sample from: after temperature, ``min_p`` and ``top_k``, the smallest set of tokens
    whose probability reaches ``top_p``. One token at temperature 0."""
    exact = logits.astype(np.float64)
    logprobs = exact - np.logaddexp.reduce(exact)
    order = np.argsort(-exact, kind="stable")
    if sampling.temperature == 0:
        order = order[:1]
        return Choices(order.tolist(), [1.0], logprobs[order].tolist())
    scaled = exact[order] / sampling.temperature
    if sampling.min_p > 0:
        scaled = scaled[scaled >= scaled[0] + np.log(sampling.min_p)]
    if sampling.top_k:
        scaled = scaled[: sampling.top_k]
    cumulative = np.cumsum(np.exp(scaled - np.logaddexp.reduce(scaled)))
    count = 1 + int(np.searchsorted(cumulative, min(sampling.top_p, 1 - TAIL)))
    return Choices(order[:count].tolist(), cumulative[:count].tolist(), logprobs[order[:count]].tolist())


@dataclass
class Walk:
    """One child while it is written."""

    parent: NodeId
    index: int
    rng: Random
    max_tokens: int
    """Limit of its tokens."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    asked: int = 0
    """Tokens written before the engine request that would write the next one. Stop strings are looked for only in what
    one request has written."""
    stopped: bool = False
    """Whether it ended at a stop or the end of the sequence, not at the token limit."""


class Walks(NamedTuple):
    """What all walks of one call share."""

    sampling: Sampling
    stop: StepStop
    stop_condition: StopCondition
    logprobs: bool


class MemoizedGenerator:
    """`search.ports.Generator` for one problem. Children of a call arrive in one group; every prefix counts as
    cached."""

    def __init__(self, language: Language, reader: PathReader[Logits], prompt: Sequence[int]) -> None:
        self._language = language
        self._reader = reader
        self._prompt = tuple(prompt)
        self._root = Prefix(Piece(NOTHING, self._prompt))
        self._split: dict[tuple[tuple[int, ...], bool, StopCondition], tuple[Step, ...]] = {}
        self.slots: list[int] = []
        """Cache slots taken for this problem."""

    async def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
        """See ``search.ports.Generator``.

        Raises:
            GeneratorError: the deadline passed.
        """
        by_steps = request.stop_condition is StopCondition.STEP
        stop = self._language.splitter.stop if by_steps else StepStop((), ())
        walks = Walks(request.sampling, stop, request.stop_condition, request.logprobs)
        starting: dict[tuple[int, ...], list[Walk]] = {}
        for expansion in request.expansions:
            tokens_left = self._language.context - len(expansion.prefix)
            starting.setdefault(expansion.prefix, []).extend(
                Walk(expansion.parent, branch.index, Random(branch.seed), min(branch.max_tokens, tokens_left))
                for branch in expansion.branches
            )
        try:
            async with asyncio.timeout(request.deadline_s):
                extended = await asyncio.gather(*(self._extend(prefix, own, walks) for prefix, own in starting.items()))
        except TimeoutError as error:
            raise GeneratorError("the deadline has passed") from error
        yield ChildGroup(tuple(child for children in extended for child in children))

    async def _extend(self, token_ids: tuple[int, ...], own: Sequence[Walk], walks: Walks) -> list[Child]:
        prompt = len(self._prompt)
        if token_ids[:prompt] != self._prompt:
            raise GeneratorError("the prefix does not begin with the problem's prompt")
        prefix = self._root
        for token in token_ids[prompt:]:
            if prefix.logits is None:
                await self._read(prefix)
            prefix = prefix.next(token)
        if together := [walk for walk in own if walk.max_tokens > 0]:
            await self._walk(prefix, together, walks)
        return [Child(walk.parent, walk.index, self._steps(walk, walks), len(token_ids)) for walk in own]

    async def _walk(self, prefix: Prefix, together: Sequence[Walk], walks: Walks) -> None:
        """Completes walks that share a prefix."""
        while True:
            if prefix.logits is None:
                await self._read(prefix)
            choices = prefix.choices(walks.sampling)
            onward: dict[int, list[Walk]] = {}
            for walk in together:
                place = choices.draw(walk.rng)
                token = choices.token_ids[place]
                walk.token_ids.append(token)
                walk.logprobs.append(choices.logprobs[place])
                if not self._has_ended(walk, walks):
                    onward.setdefault(token, []).append(walk)
            if len(onward) > 1:
                await asyncio.gather(*(self._walk(prefix.next(token), own, walks) for token, own in onward.items()))
                return
            if not onward:
                return
            [(token, together)] = onward.items()
            prefix = prefix.next(token)

    def _has_ended(self, walk: Walk, walks: Walks) -> bool:
        language = self._language
        token = walk.token_ids[-1]
        walk.stopped = (
            token in language.eos_ids
            or token in walks.stop.token_ids
            or (token in language.string_ends and self._at_string(walk, walks.stop.strings))
        )
        if walk.stopped and walks.stop_condition is StopCondition.STEP:
            # Delimiters alone are no step: an engine would continue in another request.
            [step] = self._steps(walk, walks)
            if step.end is StepEnd.DELIMITER and language.splitter.is_blank(step.text):
                walk.stopped, walk.asked = False, len(walk.token_ids)
        return walk.stopped or len(walk.token_ids) == walk.max_tokens

    def _at_string(self, walk: Walk, strings: Sequence[str]) -> bool:
        text = self._language.splitter.text(walk.token_ids[walk.asked :]) if strings else ""
        return any(string in text for string in strings)

    async def _read(self, prefix: Prefix) -> None:
        if prefix.reading is None:
            prefix.reading = self._reader.read(prefix.piece, self.slots)
        prefix.take(await asyncio.shield(prefix.reading))  # shielded: others may wait for it too

    def _steps(self, walk: Walk, walks: Walks) -> tuple[Step, ...]:
        """The steps that a walk has written."""
        key = tuple(walk.token_ids), walk.stopped, walks.stop_condition
        steps = self._split.get(key)
        if steps is None:
            token_ids, stopped, stop_condition = key
            if stop_condition is StopCondition.SOLUTION:
                steps = self._language.splitter.split(self._prompt, token_ids, not stopped)
            else:
                steps = (self._language.splitter.step(token_ids, not stopped),)
            self._split[key] = steps
        if not walks.logprobs:
            return steps
        left = iter(walk.logprobs)
        each = [tuple(islice(left, len(step.token_ids))) for step in steps]
        return tuple(
            step._replace(logprob=math.fsum(own), token_logprobs=own) for step, own in zip(steps, each, strict=True)
        )
