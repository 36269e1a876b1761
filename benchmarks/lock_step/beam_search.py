"""Beam search with all beams in lock step: search-and-learn's semantics, without its faults.

Every iteration writes one step per beam, then scores all beams, then prunes (Beeching et al. 2024, "Scaling test-time
compute"). Written against two callables, so that it needs no engine.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle, islice
from typing import NamedTuple

from search.answers.canonical import canonical
from search.answers.extraction import boxed_answer, extract_answer
from search.answers.quantities import number_forms
from search.answers.readings import Readings, grouped, of_text, of_values
from search.ports import branch_seed


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
    """The beam's tokens, without the prompt."""
    max_tokens: int
    seed: int


class WrittenStep(NamedTuple):
    """A step as the generator returns it."""

    text: str
    token_ids: tuple[int, ...]
    ended: bool
    """Whether the sequence or the token limit ended it, and not the step delimiter."""


WriteSteps = Callable[[Sequence[StepRequest]], Sequence[WrittenStep]]
"""One generator call: a step for each request."""
ScorePaths = Callable[[Sequence[tuple[str, ...]]], Sequence[Sequence[float]]]
"""One call to the process reward model: for each path one reward per step."""


class SearchResult(NamedTuple):
    """Completed beams and the cost of a search."""

    pool: tuple[Beam, ...]
    """At most ``n`` completed beams, in order of completion."""
    iterations: int
    steps: int
    tokens: int
    """Generated tokens, those of pruned beams included."""


def beam_search(
    settings: BeamSettings, path_tokens: int, seed: int, write: WriteSteps, score: ScorePaths
) -> SearchResult:
    """Runs one search until ``n`` beams have completed, no beam is active, or the iterations are used.

    Args:
        path_tokens: most tokens of a beam.
    """
    beams = [Beam()] * settings.n
    pool: list[Beam] = []
    iteration = steps = tokens = 0
    while beams and len(pool) < settings.n and iteration < settings.iterations:
        requests = [
            StepRequest(
                beam.token_ids,
                min(settings.step_tokens, path_tokens - len(beam.token_ids)),
                branch_seed(seed, (iteration,), index),
            )
            for index, beam in enumerate(beams)
        ]
        written = write(requests)
        iteration += 1
        steps += len(written)
        tokens += sum(len(step.token_ids) for step in written)
        last = iteration == settings.iterations
        grown = [extended(beam, step, path_tokens, last) for beam, step in zip(beams, written, strict=True)]
        rewards = score([beam.steps for beam in grown])
        scored = [beam._replace(score=of_beam[-1]) for beam, of_beam in zip(grown, rewards, strict=True)]
        # If more beams complete than the pool has room for, the best of this iteration are taken.
        pool += best(beam for beam in scored if beam.terminal)[: settings.n - len(pool)]
        beams = copied(best(beam for beam in scored if not beam.terminal)[: settings.n // settings.m], settings.n)
    return SearchResult(tuple(pool), iteration, steps, tokens)


def extended(beam: Beam, step: WrittenStep, path_tokens: int, last: bool) -> Beam:
    """``beam`` with one more step, not scored yet. ``last``: whether this was the last iteration."""
    token_ids = beam.token_ids + step.token_ids
    # A step without tokens would be written again in every iteration.
    terminal = last or step.ended or not step.token_ids or len(token_ids) >= path_tokens
    return Beam((*beam.steps, step.text), token_ids, 0.0, terminal or boxed_answer(step.text) is not None)


def best(beams: Iterable[Beam]) -> list[Beam]:
    """Beams by falling score; ties keep their order."""
    return sorted(beams, key=lambda beam: -beam.score)


def copied(beams: Sequence[Beam], n: int) -> list[Beam]:
    """``beams`` repeated in turn up to ``n``; none if there are none."""
    return list(islice(cycle(beams), n))


def weighted_vote(pool: Sequence[Beam]) -> str | None:
    """Answer with the largest sum of beam scores, as its best beam writes it; None if no beam has an answer."""
    answers = [(answer, beam.score) for beam in pool if (answer := extract_answer(beam.text)) is not None]
    if not answers:
        return None
    groups = grouped([_readings(answer) for answer, _ in answers])
    winner = max(groups, key=lambda members: sum(answers[member][1] for member in members))
    return answers[max(winner, key=lambda member: answers[member][1])][0]


def is_right(answer: str | None, expected: str) -> bool:
    """Whether an answer equals the expected one, numbers by value and everything else by text."""
    return answer is not None and len(grouped([_readings(answer), _readings(expected)])) == 1


def _readings(answer: str) -> Readings:
    return of_values(number_forms(answer)) or of_text(canonical(answer))
