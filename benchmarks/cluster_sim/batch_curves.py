"""What a step of the real engines costs, by the size of its batch: CPU seconds, measured on this machine.

The generator writes whole solutions of unknown problems, cut off at two lengths: what the longer ones take more is
decoding, by batch size; what a longer prompt takes more is reading. What is left belongs to the request. The reward
model scores one new step of many paths at a time, of short and of long questions.
"""

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from scipy.optimize import nnls

from benchmarks.cluster_sim.pace import Pace
from benchmarks.cluster_sim.pace import measured as measured_pace
from benchmarks.cluster_sim.workload import recorded
from benchmarks.engines import Engines, engines_of, solve_all
from benchmarks.processes import CpuClock
from deployments.config import AppConfig
from deployments.embedded.problems import Split, draw_problems
from deployments.engines.settings import EngineSettings
from search.ports import Branch, ExpandItem, ExpandRequest, Lane, Sampling, ScoreItem, ScoreRequest, StopCondition
from search.settings import parse_search

BATCHES = (1, 2, 4, 8, 16, 32, 64)
SHORT, LONG = 4, 24
"""Tokens that are written; solutions have about 70."""
EARLIER = 4
"""Questions and answers before the question of a long prompt."""
SEARCH = {"strategy": "beam_search", "n": 16, "m": 4}
TURNS = 3
SEED = 71
console = Console(stderr=True)


class Spent(NamedTuple):
    """What a call of one kind takes: CPU seconds, and of what; medians of several turns."""

    batch: int
    engine_s: float
    """Of the engine's process."""
    replica_s: float
    """Of the process that calls it, where a replica's code runs."""
    computed: float
    """Prompt tokens that no cache had."""


Call = Callable[[int], Awaitable[None]]


async def spent(
    calls: Mapping[int, Call], stats: Callable[[], Mapping[str, int]], seconds: float, pace: Pace
) -> list[Spent]:
    """Calls by batch, in turns; of each one after the other for so long, every one with a number of its own."""
    turns: dict[int, list[tuple[float, ...]]] = {batch: [] for batch in calls}
    numbers = itertools.count()
    for turn in range(-1, TURNS):
        for batch, call in calls.items():
            fast = pace.now()
            before, clock, made, began = stats(), CpuClock(), 0, time.perf_counter()
            while made < 3 or (turn >= 0 and time.perf_counter() < began + seconds):
                await call(next(numbers))
                made += 1
            took, cpu, after = time.perf_counter() - began, clock.spent(), stats()
            worth = fast * pace.on_average((sum(cpu.values()) + clock.elsewhere()) / took)
            gained = {name: after[name] - before[name] for name in after}
            figures = (
                worth * cpu.get("engine of benchmark", 0.0),
                worth * cpu.get("benchmark", 0.0),
                gained["prompt_tokens"] - gained["prefix_hits"],
            )
            if turn >= 0:  # the one before warms up
                turns[batch].append(tuple(figure / made for figure in figures))
    return [
        Spent(batch, *(statistics.median(column) for column in zip(*of, strict=True))) for batch, of in turns.items()
    ]


def writing(engines: Engines, branches: int, tokens: int, earlier: int) -> Call:
    """A call for so many branches below an unknown question, with so many questions before it."""
    drawn = draw_problems(Split.TEST, SEED + 1000 * branches + 100 * earlier + tokens)

    async def call(number: int) -> None:
        before: list[dict[str, str]] = []
        for _ in range(earlier):
            problem = next(drawn)
            before += [
                {"role": "user", "content": problem.text},
                {"role": "assistant", "content": f"The answer is {problem.answer}."},
            ]
        prompt = engines.generator.encode_chat([*before, {"role": "user", "content": next(drawn).text}])
        wanted = tuple(Branch(index, 1_000_003 * number + index + 7, tokens) for index in range(branches))
        request = ExpandRequest(
            f"curve-{branches}-{tokens}-{earlier}-{number}",
            (ExpandItem((), tuple(prompt), wanted),),
            Sampling(),
            StopCondition.SOLUTION,
            Lane.DEMAND,
            60.0,
        )
        async for _ in engines.generator.expand(request):
            pass

    return call


def scoring(engines: Engines, items: int, questions: int) -> Call:
    """A call for so many paths, each with a first step of its own, below an unknown question of so many parts."""
    drawn = draw_problems(Split.TEST, SEED + 1000 * items + questions)
    luck = random.Random(SEED + items)

    async def call(number: int) -> None:
        question = " ".join(next(drawn).text for _ in range(questions))
        steps = [f"{luck.randrange(1000)} + {luck.randrange(1000)} = {luck.randrange(2000)}\n\n" for _ in range(items)]
        request = ScoreRequest(
            f"curve-{items}-{questions}-{number}", question, tuple(ScoreItem((step,)) for step in steps), 60.0
        )
        await engines.scorer.score(request)

    return call


async def generator_curve(engines: Engines, seconds: float, pace: Pace) -> dict[str, Any]:
    """Seconds of the engine and of the replica: a decoding step by batch, a token that is read, a request."""
    stats = engines.generator.stats
    short, long, reading = [
        await spent({batch: writing(engines, batch, tokens, earlier) for batch in BATCHES}, stats, seconds, pace)
        for tokens, earlier in ((SHORT, 0), (LONG, 0), (SHORT, EARLIER))
    ]
    found: dict[str, Any] = {}
    for side in ("engine_s", "replica_s"):
        step = [
            (getattr(more, side) - getattr(less, side)) / (LONG - SHORT) for less, more in zip(short, long, strict=True)
        ]
        token = statistics.median(
            (getattr(more, side) - getattr(less, side)) / (more.computed - less.computed)
            for less, more in zip(short, reading, strict=True)
        )
        left = np.array(
            [getattr(run, side) - SHORT * each - run.computed * token for run, each in zip(short, step, strict=True)]
        )
        rows = np.array([[1.0, run.batch] for run in short])
        (call, request), _ = nnls(rows, left)
        found[side.removesuffix("_s")] = {
            "step_s": {batch: round(max(each, 1e-6), 7) for batch, each in zip(BATCHES, step, strict=True)},
            "token_s": round(max(token, 0.0), 9),
            "request_s": round(float(request), 7),
            "call_s": round(float(call), 7),
        }
    return {**found, "measured": [run._asdict() for run in (*short, *long, *reading)]}


async def scorer_curve(engines: Engines, seconds: float, pace: Pace) -> dict[str, Any]:
    """The same of the reward model, whose step is a pass over all items of a batch."""
    stats = engines.scorer.stats
    runs = [
        run
        for questions in (1, 5)
        for run in await spent({items: scoring(engines, items, questions) for items in BATCHES}, stats, seconds, pace)
    ]
    found: dict[str, Any] = {}
    for side in ("engine_s", "replica_s"):
        # Relative errors: a small batch counts as much as a large one.
        cost = np.array([getattr(run, side) for run in runs])
        rows = np.array([[1.0, run.batch, run.computed] for run in runs])
        (step, item, token), _ = nnls(rows / cost[:, None], np.ones(len(runs)))
        found[side.removesuffix("_s")] = {
            "step_s": {1: round(float(step), 7)},
            "token_s": round(float(token), 9),
            "request_s": round(float(item), 7),
            "call_s": 0.0,
        }
    return {**found, "measured": [run._asdict() for run in runs]}


def measured(config: AppConfig, problems: int, seconds: float) -> dict[str, Any]:
    """All of it, and the steps of so many beam searches, for the simulation's searches to be made of."""

    pace = measured_pace(seconds)

    async def measure() -> dict[str, Any]:
        async with engines_of(config) as engines:
            trees = await _trees(engines, problems)
            found = {
                "generator": await generator_curve(engines, seconds, pace),
                "prm": await scorer_curve(engines, seconds, pace),
                "engines": _facts(engines, config),
            }
            return {**found, "pace": pace.model_dump(), "search": SEARCH, "problems": trees}

    return asyncio.run(measure())


def _facts(engines: Engines, config: AppConfig) -> dict[str, dict[str, int]]:
    assert isinstance(config.prm, EngineSettings)
    facts = {}
    for role, engine, settings in (
        ("generator", engines.generator, config.generator),
        ("prm", engines.scorer, config.prm),
    ):
        facts[role] = {
            "blocks": engine.stats()["total_blocks"] - 1,  # one is vLLM's own
            "block_size": settings.expected_block_size,
            "max_num_seqs": settings.max_num_seqs,
        }
    return facts


async def _trees(engines: Engines, number: int) -> list[dict[str, Any]]:
    drawn: Iterator[Any] = draw_problems(Split.VALIDATION, SEED)
    problems: Sequence[Any] = [next(drawn) for _ in range(number)]

    async def solve(problem: Any, seed: int) -> dict[str, Any]:
        settings = parse_search({**SEARCH, "seed": seed})
        outcome = await engines.search(problem.text, settings, f"tree-{seed}")
        return recorded(outcome, len(engines.prompt(problem.text)))

    trees, took = await solve_all(solve, problems, 16, SEED)
    console.print(f"{number} searches recorded in {took:.1f} s")
    return trees
