"""The opponent of `benchmarks.lock_step`: its searches give Banyan's trees, alone and many in lock step."""

import asyncio
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from search_fakes import PROMPT, Bench, reward_of, write_step

from benchmarks.lock_step.beam_search import (
    BeamSearch,
    BeamSettings,
    ScoredBeam,
    ScoreRequest,
    StepRequest,
    WrittenStep,
    search_in_lock_step,
    weighted_vote,
)
from search.run.report import SearchOutcome
from search.settings import parse_search
from search.strategies.base import Strategy
from search.tree import StepEnd

CONTEXT = 60
STEP_TOKENS = 8
QUESTION = "What is it?"


class FakeEngines:
    """The generator and the scorer of the fakes, as lock step calls them."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        """The number of requests of each call to either."""

    def write(self, requests: Sequence[StepRequest]) -> list[WrittenStep]:
        self.calls.append(len(requests))
        steps = [write_step(each.seed, each.token_ids, each.max_tokens) for each in requests]
        return [WrittenStep(step.text, step.token_ids, step.end is not StepEnd.DELIMITER) for step in steps]

    def score(self, beams: Sequence[ScoreRequest]) -> list[ScoredBeam]:
        self.calls.append(len(beams))
        rewards = [[reward_of(beam.steps[:end]) for end in range(1, len(beam.steps) + 1)] for beam in beams]
        return [ScoredBeam(each, 10 * len(each)) for each in rewards]


def in_lock_step(beams: BeamSettings, seeds: Sequence[int], in_flight: int) -> tuple[list[BeamSearch], FakeEngines]:
    engines = FakeEngines()
    searches = [BeamSearch(beams, QUESTION, PROMPT, CONTEXT - len(PROMPT), seed) for seed in seeds]
    search_in_lock_step(searches, in_flight, engines.write, engines.score)
    return searches, engines


def banyans(beams: BeamSettings, seed: int) -> tuple[Strategy, SearchOutcome]:
    wanted = {"strategy": "beam_search", "n": beams.n, "m": beams.m, "max_depth": beams.iterations, "seed": seed}
    options = {"merge_siblings": False, "max_step_tokens": beams.step_tokens}

    async def main() -> SearchOutcome:
        return await Bench().search(wanted | options, context_tokens=CONTEXT)

    return parse_search(wanted | options).strategy, asyncio.run(main())


SEARCHES = st.builds(
    lambda kept, m, iterations: BeamSettings(kept * m, m, iterations, 0.8, STEP_TOKENS),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 8),
)


@settings(max_examples=40, deadline=None)
@given(beams=SEARCHES, seed=st.integers(0, 1 << 30))
def test_it_grows_banyans_tree(beams: BeamSettings, seed: int) -> None:
    [found], _ = in_lock_step(beams, [seed], 1)
    strategy, outcome = banyans(beams, seed)
    assert (found.steps, found.tokens) == (outcome.cost.nodes, outcome.cost.generated_tokens)
    candidates = strategy.candidates(outcome.tree)
    assert {(beam.path, beam.text, beam.score) for beam in found.pool} == {
        (node.id, node.text, node.reward) for node in candidates
    }
    assert weighted_vote(found.pool) == outcome.selection.answer


@settings(max_examples=40, deadline=None)
@given(beams=SEARCHES, seeds=st.lists(st.integers(0, 1 << 30), min_size=1, max_size=9), in_flight=st.integers(1, 10))
def test_many_in_lock_step_are_as_each_alone(beams: BeamSettings, seeds: list[int], in_flight: int) -> None:
    together, engines = in_lock_step(beams, seeds, in_flight)
    alone = [in_lock_step(beams, [seed], 1) for seed in seeds]

    def result(search: BeamSearch) -> tuple[object, ...]:
        return search.pool, search.iterations, search.steps, search.tokens, search.prm_tokens

    assert [result(search) for search in together] == [result(search) for [search], _ in alone]
    assert max(engines.calls) <= in_flight * beams.n
    assert sum(engines.calls) == sum(sum(own.calls) for _, own in alone)


def test_each_iteration_is_one_call_to_each_engine_and_places_are_taken_again() -> None:
    beams = BeamSettings(4, 2, 6, 0.8, STEP_TOKENS)
    lengths = [in_lock_step(beams, [seed], 1)[0][0].iterations for seed in range(8)]
    assert len(set(lengths)) > 1
    _, engines = in_lock_step(beams, list(range(8)), 8)
    assert len(engines.calls) == 2 * max(lengths)
    # Two places: each search begins in the iteration after the one in which an earlier one ended.
    ends = [0, 0]
    for length in lengths:
        ends[ends.index(min(ends))] += length
    _, engines = in_lock_step(beams, list(range(8)), 2)
    assert len(engines.calls) == 2 * max(ends)
