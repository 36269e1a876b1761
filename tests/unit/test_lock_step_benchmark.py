"""The lock-step benchmark: its beam search with a scripted generator and scorer, and the figures of its rounds."""

import json
import math
from collections.abc import Callable, Sequence

import pytest

from benchmarks.lock_step.beam_search import (
    Beam,
    BeamSearch,
    BeamSettings,
    ScoredBeam,
    ScoreRequest,
    StepRequest,
    WrittenStep,
    copied,
    is_right,
    search_in_lock_step,
    weighted_vote,
)
from benchmarks.lock_step.figures import Answered, Bounds, Figures, Round, Turn
from benchmarks.lock_step.worker import Batch, Question, Start
from benchmarks.lock_step.worker_pool import worker_environment
from benchmarks.ratios import ratio_with_interval

SETTINGS = BeamSettings(n=4, m=2, iterations=5, step_tokens=8)
PATH_TOKENS = 100


class ScriptedEngines:
    """A generator that writes ``text(iteration, beam)`` and a scorer whose rewards are the numbers in the steps."""

    def __init__(self, text: Callable[[int, int], str]) -> None:
        self.requests: list[list[StepRequest]] = []
        self.scored: list[list[tuple[str, ...]]] = []
        self._text = text

    def write(self, requests: Sequence[StepRequest]) -> list[WrittenStep]:
        iteration = len(self.requests)
        self.requests.append(list(requests))
        texts = [self._text(iteration, beam) for beam in range(len(requests))]
        return [WrittenStep(text, (iteration, beam), "<end>" in text) for beam, text in enumerate(texts)]

    def score(self, beams: Sequence[ScoreRequest]) -> list[ScoredBeam]:
        self.scored.append([beam.steps for beam in beams])
        return [ScoredBeam([float(step.split()[0]) for step in beam.steps], 0) for beam in beams]

    def search(self, settings: BeamSettings = SETTINGS, path_tokens: int = PATH_TOKENS) -> BeamSearch:
        search = BeamSearch(settings, "", (), path_tokens, 7)
        search_in_lock_step([search], 1, self.write, self.score)
        return search


def test_the_best_beams_go_on_and_are_copied_in_turn() -> None:
    engines = ScriptedEngines(lambda _, beam: f"{(0.1, 0.4, 0.2, 0.3)[beam]} go on\n\n")
    engines.search(SETTINGS._replace(iterations=2))
    assert [request.token_ids for request in engines.requests[0]] == [()] * 4
    # n // m = 2 beams continue, copied in turn: the second beam, then the fourth.
    assert [request.token_ids for request in engines.requests[1]] == [(0, 1), (0, 3), (0, 1), (0, 3)]


def test_the_scorer_reads_whole_paths_in_one_call_per_iteration() -> None:
    engines = ScriptedEngines(lambda iteration, beam: f"0.{beam + 1} step {iteration}\n\n")
    found = engines.search(SETTINGS._replace(iterations=3))
    assert [len(paths) for paths in engines.scored] == [4, 4, 4]
    assert engines.scored[2][0] == ("0.3 step 0\n\n", "0.4 step 1\n\n", "0.1 step 2\n\n")
    assert (found.iterations, found.steps, found.tokens) == (3, 12, 24)


def test_terminal_beams_go_to_the_pool_and_are_not_continued() -> None:
    texts = {(0, 1): r"0.9 \boxed{1}", (0, 2): "0.8 the end<end>"}
    engines = ScriptedEngines(lambda iteration, beam: texts.get((iteration, beam), f"0.{beam + 1} go on\n\n"))
    found = engines.search(SETTINGS._replace(iterations=2))
    assert [beam.score for beam in found.pool[:2]] == [0.9, 0.8]
    assert [request.token_ids for request in engines.requests[1]] == [(0, 3), (0, 0), (0, 3), (0, 0)]


def test_it_ends_when_n_beams_have_completed_and_keeps_no_more() -> None:
    def text(iteration: int, beam: int) -> str:
        completes = beam < (3 if iteration == 0 else 2)
        return rf"0.{beam + 1} \boxed{{{iteration}}}" if completes else "0.5 go on\n\n"

    engines = ScriptedEngines(text)
    found = engines.search()
    assert found.iterations == 2
    # Three beams of the first iteration, and the better of the two that complete in the second.
    assert [(beam.token_ids, beam.score) for beam in found.pool] == [
        ((0, 2), 0.3),
        ((0, 1), 0.2),
        ((0, 0), 0.1),
        ((0, 3, 1, 1), 0.2),
    ]


def test_it_ends_when_no_beam_is_active() -> None:
    found = ScriptedEngines(lambda *_: "0.5 the end<end>").search()
    assert (found.iterations, len(found.pool)) == (1, 4)


def test_paths_at_the_iteration_limit_are_answers() -> None:
    engines = ScriptedEngines(lambda _, beam: f"0.{beam + 1} go on\n\n")
    found = engines.search()
    assert found.iterations == SETTINGS.iterations
    assert [len(beam.steps) for beam in found.pool] == [5] * 4


def test_a_beam_ends_at_its_token_limit() -> None:
    engines = ScriptedEngines(lambda _, beam: f"0.{beam + 1} go on\n\n")
    found = engines.search(path_tokens=3)
    assert [request.max_tokens for request in engines.requests[0]] == [3] * 4
    assert [request.max_tokens for request in engines.requests[1]] == [1] * 4
    assert found.iterations == 2


def test_every_step_has_a_seed_of_its_own_and_the_same_in_every_run() -> None:
    runs = [ScriptedEngines(lambda _, beam: f"0.{beam + 1} go on\n\n") for _ in range(2)]
    seeds = []
    for engines in runs:
        engines.search()
        seeds.append([request.seed for requests in engines.requests for request in requests])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == len(seeds[0]) == 20


def test_copies_of_no_beam_are_none() -> None:
    assert copied([], 4) == []


def test_the_vote_weighs_equal_answers_by_their_scores() -> None:
    pool = [
        Beam(steps=(r"\boxed{7}",), score=0.9),
        Beam(steps=(r"\boxed{12}",), score=0.5),
        Beam(steps=(r"\boxed{12.0}",), score=0.6),
        Beam(steps=("nothing",), score=1.0),
    ]
    assert weighted_vote(pool) == "12.0"
    assert weighted_vote(pool[-1:]) is None


@pytest.mark.parametrize(("answer", "right"), [("12", True), ("12.0", True), ("-12", False), (None, False)])
def test_answers_are_compared_by_value(answer: str | None, right: bool) -> None:
    assert is_right(answer, "12") is right


def test_a_ratio_is_the_geometric_mean_with_an_interval() -> None:
    found = ratio_with_interval([(2.0, 1.0), (8.0, 1.0)])
    assert found.ratio == pytest.approx(4.0)
    # Two logarithms, one degree of freedom: t is 12.706, and the standard error is log 2.
    assert found.high == pytest.approx(4.0 * 2**12.7062, rel=1e-4)
    assert math.sqrt(found.low * found.high) == pytest.approx(4.0)


def test_a_ratio_needs_two_rounds_of_positive_numbers() -> None:
    with pytest.raises(ValueError, match="two rounds"):
        ratio_with_interval([(2.0, 1.0)])
    with pytest.raises(ValueError, match="positive"):
        ratio_with_interval([(2.0, 1.0), (0.0, 1.0)])


def turn(seconds: float, wrong: int = 0, problems: int = 10) -> Turn:
    return Turn([Answered(index >= wrong, 4, 20, 8, 100) for index in range(problems)], seconds)


def figures(wrong: int = 0) -> Figures:
    throughput = [Round(turn(100), turn(20, wrong)), Round(turn(100), turn(25, wrong))]
    alone = [Round(turn(50), turn(10, wrong)), Round(turn(50), turn(12.5, wrong))]
    return Figures(throughput, alone)


def test_ratios_are_served_over_lock_step() -> None:
    assert figures().throughput_ratio.ratio == pytest.approx(math.sqrt(20))
    assert figures().alone_ratio.ratio == pytest.approx(math.sqrt(0.2 * 0.25))
    assert figures().as_json["throughput"]["problems_per_second"] == {"lock_step": [0.1, 0.1], "served": [0.5, 0.4]}
    assert figures().as_json["sides"]["lock_step"]["engine_calls"] == 320


@pytest.mark.parametrize(
    ("wrong", "bounds", "holds"),
    [
        (0, Bounds(4.4, 0.23), [True, True, True]),
        (0, Bounds(4.5, 0.22), [False, False, True]),
        (1, Bounds(4.4, 0.23), [True, True, True]),
        (5, Bounds(4.4, 0.23), [True, True, False]),
    ],
)
def test_claims_hold_within_their_bounds(wrong: int, bounds: Bounds, holds: list[bool]) -> None:
    assert [each["holds"] for each in figures(wrong).claims("heavy", bounds)] == holds


def test_workers_run_without_banyans_allocator_settings() -> None:
    given = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "131072", "LD_PRELOAD": "lib.so", "PATH": "/bin"}
    environment = worker_environment(given, 2)
    assert environment["PATH"] == "/bin"
    assert environment["OMP_NUM_THREADS"] == "2"
    assert "MALLOC_ARENA_MAX" not in environment
    assert environment["MALLOC_MMAP_THRESHOLD_"] != "131072"
    assert "lib.so" not in environment.get("LD_PRELOAD", "")


def test_a_worker_reads_what_it_is_started_with() -> None:
    start = Start((1,), "generator", "prm", SETTINGS, 960, {"prm": {"dtype": "bfloat16"}})
    assert Start.parse(json.dumps(start)) == start
    batch = Batch((Question("1 + 1", 7), Question("2 + 2", 8)), 2)
    assert Batch.parse(json.dumps(batch)) == batch
