"""Beam search with all beams in lock step: search-and-learn's semantics, without its faults.

Every iteration writes one step per beam, then scores all beams, then prunes (Beeching et al. 2024, "Scaling test-time
compute"). Several problems go in lock step together: one generator call writes the steps of all of them, one call
scores all their beams. Written against two callables, so that it needs no engine.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle, islice
from typing import NamedTuple

from search.answers.canonical import canonical
from search.answers.extraction import boxed_answer, extract_answer
from search.answers.quantities import number_forms
from search.answers.readings import Readings, grouped, of_forms, of_text
from search.ports import branch_seed
from search.tree import NodeId

SCORE_DIGITS = 6
"""Number of digits of a score that count: beams of the same text tie, although rounding differs between batches."""


class BeamSettings(NamedTuple):
    """Settings of one beam search; the defaults are those of Banyan's own."""

    n: int = 16
    """Beams; a multiple of ``m``."""
    m: int = 4
    """Beam width: the best ``n // m`` beams go on."""
    iterations: int = 40
    """Most steps of a beam."""
    temperature: float = 0.8
    step_tokens: int = 256
    """Most tokens of a step."""


class Beam(NamedTuple):
    """A path of steps below the prompt."""

    path: NodeId = ()
    """At each level the number of the step below its parent, as in Banyan's trees: seeds follow from it."""
    steps: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    """The tokens of all steps."""
    score: float = 0.0
    """The reward of the last step (aggregation ``last``)."""
    terminal: bool = False
    """Whether nothing can be written below it."""

    @property
    def text(self) -> str:
        return "".join(self.steps)


class StepRequest(NamedTuple):
    """One step to write below a beam."""

    token_ids: tuple[int, ...]
    """The prompt's and the beam's tokens."""
    max_tokens: int
    seed: int


class WrittenStep(NamedTuple):
    """A step as the generator returns it."""

    text: str
    token_ids: tuple[int, ...]
    ended: bool
    """Whether the sequence or the token limit ended it, and not the step delimiter."""


class ScoreRequest(NamedTuple):
    """A beam to score."""

    question: str
    steps: tuple[str, ...]


class ScoredBeam(NamedTuple):
    """The scores of a beam as the process reward model returns them."""

    rewards: Sequence[float]
    """One for each step."""
    tokens: int
    """Tokens that the reward model read."""


WriteSteps = Callable[[Sequence[StepRequest]], Sequence[WrittenStep]]
"""One generator call: a step for each request."""
ScoreBeams = Callable[[Sequence[ScoreRequest]], Sequence[ScoredBeam]]
"""One call to the process reward model."""


class BeamSearch:
    """The beams of one problem: what to write next, and what became of it."""

    def __init__(
        self, settings: BeamSettings, question: str, prompt: Sequence[int], path_tokens: int, seed: int
    ) -> None:
        """
        Args:
            prompt: token ids of the question with the chat template applied.
            path_tokens: most tokens of a beam.
        """
        self._settings, self._question, self._prompt = settings, question, tuple(prompt)
        self._path_tokens, self._seed = path_tokens, seed
        self._beams = [Beam()] * settings.n
        self.pool: list[Beam] = []
        """At most ``n`` completed beams, in order of completion."""
        self.iterations = self.steps = 0
        self.tokens = 0
        """Generated tokens, those of pruned beams included."""
        self.prm_tokens = 0
        """Tokens that the reward model read."""

    @property
    def active(self) -> bool:
        """Whether it goes on: not once ``n`` beams have completed, no beam is left, or the iterations are used."""
        settings = self._settings
        return bool(self._beams) and len(self.pool) < settings.n and self.iterations < settings.iterations

    def requests(self) -> list[StepRequest]:
        """The steps of the next iteration, one for each beam. Beams that are copies differ from here on."""
        copies: Counter[NodeId] = Counter()
        requests = []
        for position, beam in enumerate(self._beams):
            index = copies[beam.path]
            copies[beam.path] += 1
            limit = min(self._settings.step_tokens, self._path_tokens - len(beam.token_ids))
            seed = branch_seed(self._seed, beam.path, index)
            requests.append(StepRequest(self._prompt + beam.token_ids, limit, seed))
            self._beams[position] = beam._replace(path=(*beam.path, index))
        return requests

    def written(self, steps: Sequence[WrittenStep]) -> list[ScoreRequest]:
        """Takes the steps that were requested, and returns the beams to score."""
        self.iterations += 1
        self.steps += len(steps)
        self.tokens += sum(len(step.token_ids) for step in steps)
        last = self.iterations == self._settings.iterations
        self._beams = [
            extended(beam, step, self._path_tokens, last) for beam, step in zip(self._beams, steps, strict=True)
        ]
        return [ScoreRequest(self._question, beam.steps) for beam in self._beams]

    def scored(self, scores: Sequence[ScoredBeam]) -> None:
        """Takes the scores that were requested, and prunes."""
        self.prm_tokens += sum(score.tokens for score in scores)
        beams = [beam._replace(score=score.rewards[-1]) for beam, score in zip(self._beams, scores, strict=True)]
        n, m = self._settings.n, self._settings.m
        # If more beams complete than the pool has room for, the best of this iteration are taken.
        self.pool += best(beam for beam in beams if beam.terminal)[: n - len(self.pool)]
        self._beams = copied(best(beam for beam in beams if not beam.terminal)[: n // m], n)


def search_in_lock_step(searches: Sequence[BeamSearch], in_flight: int, write: WriteSteps, score: ScoreBeams) -> None:
    """Runs searches to their ends, ``in_flight`` at a time: each iteration of all of them is one call to each engine.
    Where a search ends the next one takes its place in the iteration after."""
    waiting = list(reversed(searches))
    running: list[BeamSearch] = []
    while True:
        running = [search for search in running if search.active]
        running += [waiting.pop() for _ in range(min(in_flight - len(running), len(waiting)))]
        if not running:
            return
        asked = [search.requests() for search in running]
        steps = iter(write([request for each in asked for request in each]))
        beams = [search.written(list(islice(steps, len(each)))) for search, each in zip(running, asked, strict=True)]
        scores = iter(score([beam for each in beams for beam in each]))
        for search, each in zip(running, beams, strict=True):
            search.scored(list(islice(scores, len(each))))


def extended(beam: Beam, step: WrittenStep, path_tokens: int, last: bool) -> Beam:
    """``beam`` with one more step, not scored yet. ``last``: whether this was the last iteration."""
    token_ids = beam.token_ids + step.token_ids
    # A step without tokens would be written again in every iteration.
    ended = last or step.ended or not step.token_ids or len(token_ids) >= path_tokens
    terminal = ended or boxed_answer(step.text) is not None
    return Beam(beam.path, (*beam.steps, step.text), token_ids, 0.0, terminal)


def best(beams: Iterable[Beam]) -> list[Beam]:
    """Beams by falling score; of equal ones the first by path goes first."""
    return sorted(beams, key=lambda beam: (-round(beam.score, SCORE_DIGITS), beam.path))


def copied(beams: Sequence[Beam], n: int) -> list[Beam]:
    """``beams`` repeated in turn up to ``n``; none if there are none."""
    return list(islice(cycle(beams), n))


def weighted_vote(pool: Sequence[Beam]) -> str | None:
    """Answer with the largest sum of beam scores, as its best beam writes it; of equal ones the first by path. None if
    no beam has an answer."""
    by_path = sorted(pool, key=lambda beam: beam.path)
    answers = [(answer, beam.score) for beam in by_path if (answer := extract_answer(beam.text)) is not None]
    if not answers:
        return None
    groups = grouped([_readings(answer) for answer, _ in answers])
    winner = max(groups, key=lambda members: sum(answers[member][1] for member in members))
    return answers[max(winner, key=lambda member: answers[member][1])][0]


def is_right(answer: str | None, expected: str) -> bool:
    """Whether an answer equals the expected one, numbers by value and everything else by text."""
    return answer is not None and len(grouped([_readings(answer), _readings(expected)])) == 1


def _readings(answer: str) -> Readings:
    return of_forms(number_forms(answer)) or of_text(canonical(answer))
