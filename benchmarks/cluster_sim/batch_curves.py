"""CPU seconds of an engine step by batch size, measured on this machine.

The generator writes solutions of new problems: truncated at two lengths, after short and long prompts; and truncated
at every length with several calls at once, so that requests keep joining a running batch. The reward model scores one
new step of many paths per call, for short and for long questions. A least-squares fit over all measurements gives the
cost of a step at each batch size, of a prompt token, of a request and of a call. All kinds of calls take turns, so
that a change in the machine's speed affects all of them.
"""

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.cluster_sim.costs import fitted
from benchmarks.cluster_sim.pace import Pace
from benchmarks.cluster_sim.pace import measured as measured_pace
from benchmarks.cluster_sim.workload import recorded
from benchmarks.engines import Engines, engines_of, solve_all
from benchmarks.processes import CpuClock, at_rest
from deployments.config import AppConfig
from deployments.embedded.problems import Split, draw_problems
from deployments.engines.settings import EngineSettings
from search.ports import Branch, ExpandItem, ExpandRequest, Lane, Sampling, ScoreItem, ScoreRequest, StopCondition
from search.settings import parse_search

BATCHES = (1, 2, 4, 8, 16, 32, 64)
SHORT, LONG = 4, 48
"""Tokens written per branch. Steps have about 12, solutions 70."""
STREAM = 8
"""Branches per call where several calls run at once."""
EARLIER = 4
"""Earlier questions and answers in a long prompt."""
SEARCH = {"strategy": "beam_search", "n": 16, "m": 4}
TURNS = 5
SEED = 71
console = Console(stderr=True)


class Spent(NamedTuple):
    """Cost of one call of a kind: CPU seconds, and the work that they paid for. Medians of several turns."""

    batch: int
    engine_s: float
    """CPU seconds of the engine's process."""
    replica_s: float
    """CPU seconds of the process that calls the engine, where a replica's code runs."""
    computed: float
    """Prompt tokens that were not cached."""
    steps: float
    """Steps of the generator's engine; a reward model's engine reports none."""
    running: float
    """Mean number of requests in a step."""
    beside: bool
    """Whether other calls ran at the same time."""


Call = Callable[[int], Awaitable[None]]


class Kind(NamedTuple):
    """Calls of one kind."""

    batch: int
    """Branches or items of one call."""
    call: Call
    at_once: int = 1


Idle = Mapping[str, float]
"""CPU seconds per second of an idle process, by role."""


async def spent(
    kinds: Sequence[Kind],
    stats: Callable[[], Mapping[str, int]],
    seconds: float,
    pace: Pace,
    idle: Idle,
) -> list[Spent]:
    """Measures all kinds in turns. A kind's calls run one after the other for ``seconds``, and up to four times as long
    where several run at once. Every call has its own number."""
    turns: list[list[tuple[float, ...]]] = [[] for _ in kinds]
    numbers = itertools.count()
    for turn in range(-1, TURNS):
        for of, (_, call, at_once) in zip(turns, kinds, strict=True):
            speed = pace.now()
            before, clock, began = stats(), CpuClock(), time.perf_counter()
            until = began + seconds * min(at_once, 4) if turn >= 0 else began

            async def one_after_the_other(call: Call = call, until: float = until) -> int:
                made = 0
                while made < 3 or time.perf_counter() < until:
                    await call(next(numbers))
                    made += 1
                return made

            made = sum(await asyncio.gather(*(one_after_the_other() for _ in range(at_once))))
            took, cpu, after = time.perf_counter() - began, clock.spent(), stats()
            busy = (sum(cpu.values()) + clock.elsewhere()) / took
            worth = statistics.mean((speed, pace.now())) * pace.on_average(busy)
            gained = {name: after[name] - before[name] for name in after}
            figures = (
                *(
                    worth * (cpu.get(role, 0.0) - idle.get(role, 0.0) * took)
                    for role in ("engine of benchmark", "benchmark")
                ),
                gained["prompt_tokens"] - gained["prefix_hits"],
                gained["engine_steps"],
                gained["engine_step_requests"],
            )
            if turn >= 0:  # the one before warms up
                of.append(tuple(figure / made for figure in figures))
    found = []
    for (batch, _, at_once), of in zip(kinds, turns, strict=True):
        engine, replica, computed, steps, requests = (statistics.median(each) for each in zip(*of, strict=True))
        found.append(Spent(batch, engine, replica, computed, steps, requests / steps if steps else 0.0, at_once > 1))
    return found


def writing(engines: Engines, branches: int, lengths: Sequence[int], earlier: int = 0) -> Call:
    """Returns a call that writes ``branches`` branches of one of ``lengths`` tokens, for a new question after
    ``earlier`` questions and answers."""
    drawn = draw_problems(Split.TEST, SEED + 1000 * branches + 100 * earlier + lengths[-1])
    rng = random.Random(SEED)

    async def call(number: int) -> None:
        before: list[dict[str, str]] = []
        for _ in range(earlier):
            problem = next(drawn)
            before += [
                {"role": "user", "content": problem.text},
                {"role": "assistant", "content": f"The answer is {problem.answer}."},
            ]
        prompt = engines.generator.encode_chat([*before, {"role": "user", "content": next(drawn).text}])
        tokens = rng.choice(lengths)
        wanted = tuple(Branch(index, 1_000_003 * number + index + 7, tokens) for index in range(branches))
        request = ExpandRequest(
            f"curve-{branches}-{lengths[-1]}-{earlier}-{number}",
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
    """Returns a call that scores ``items`` paths, each with a first step of its own, for a new question of
    ``questions`` parts."""
    drawn = draw_problems(Split.TEST, SEED + 1000 * items + questions)
    rng = random.Random(SEED + items)

    async def call(number: int) -> None:
        question = " ".join(next(drawn).text for _ in range(questions))
        steps = [f"{rng.randrange(1000)} + {rng.randrange(1000)} = {rng.randrange(2000)}\n\n" for _ in range(items)]
        request = ScoreRequest(
            f"curve-{items}-{questions}-{number}", question, tuple(ScoreItem((step,)) for step in steps), 60.0
        )
        await engines.scorer.score(request)

    return call


async def generator_curve(engines: Engines, seconds: float, pace: Pace, idle: Idle) -> dict[str, Any]:
    """CPU seconds of the engine and of the replica: for a decode step by batch size, a prompt token, a request, a call,
    and a step in which requests join a running batch."""
    alone = ((SHORT, 0), (LONG, 0), (SHORT, EARLIER))
    kinds = [Kind(batch, writing(engines, batch, [tokens], earlier)) for tokens, earlier in alone for batch in BATCHES]
    lengths = range(SHORT, LONG)
    kinds += [Kind(STREAM, writing(engines, STREAM, lengths), batch // STREAM) for batch in BATCHES if batch > STREAM]
    runs = await spent(kinds, engines.generator.stats, seconds, pace, idle)
    # A step of a larger batch costs no less: the fit is of its cost beyond that of the next smaller batch.
    sizes = [(0, 1), *itertools.pairwise(BATCHES)]
    steps = [
        [run.steps * min(max((run.running - low) / (high - low), 0.0), 1.0) for low, high in sizes] for run in runs
    ]
    found: dict[str, Any] = {}
    for side in ("engine_s", "replica_s"):
        # A lone call finds the engine idle and wakes it. Calls beside each other do not; their requests join a batch.
        once = [(0.0, 1.0) if run.beside and side == "engine_s" else (1.0, 0.0) for run in runs]
        parts = [[*of, run.computed, run.batch, *each] for of, run, each in zip(steps, runs, once, strict=True)]
        *more, token, request, call, join = fitted([getattr(run, side) for run in runs], parts)
        found[side.removesuffix("_s")] = {
            "step_s": {
                batch: round(max(each, 1e-6), 7)
                for batch, each in zip(BATCHES, itertools.accumulate(more), strict=True)
            },
            "token_s": round(token, 9),
            "request_s": round(request, 7),
            "call_s": round(call, 7),
            "join_s": round(join, 7),
        }
    return {**found, "measured": [run._asdict() for run in runs]}


async def scorer_curve(engines: Engines, seconds: float, pace: Pace, idle: Idle) -> dict[str, Any]:
    """The same for the reward model, where one call is one pass over all of its items."""
    kinds = [Kind(items, scoring(engines, items, questions)) for questions in (1, 5) for items in BATCHES]
    runs = await spent(kinds, engines.scorer.stats, seconds, pace, idle)
    found: dict[str, Any] = {}
    for side in ("engine_s", "replica_s"):
        parts = [[run.computed, run.batch, 1.0] for run in runs]
        token, request, step = fitted([getattr(run, side) for run in runs], parts)
        found[side.removesuffix("_s")] = {
            "step_s": {1: round(step, 7)},
            "token_s": round(token, 9),
            "request_s": round(request, 7),
            "call_s": 0.0,
        }
    return {**found, "measured": [run._asdict() for run in runs]}


def measured(config: AppConfig, problems: int, seconds: float) -> dict[str, Any]:
    """Both curves, and the steps of ``problems`` beam searches, from which the simulation builds its searches."""

    pace = measured_pace(seconds)

    async def measure() -> dict[str, Any]:
        async with engines_of(config) as engines:
            trees = await _recorded_trees(engines, problems)
            rested = await at_rest(5 * seconds)
            idle = {role: round(spent_s, 4) for role, spent_s in rested.items() if "benchmark" in role}
            found = {
                "generator": await generator_curve(engines, seconds, pace, idle),
                "prm": await scorer_curve(engines, seconds, pace, idle),
                "engines": _engine_facts(engines, config),
            }
            return {**found, "idle": idle, "pace": pace.model_dump(), "search": SEARCH, "problems": trees}

    return asyncio.run(measure())


def _engine_facts(engines: Engines, config: AppConfig) -> dict[str, dict[str, int]]:
    assert isinstance(config.prm, EngineSettings)
    facts = {}
    for role, engine, settings in (
        ("generator", engines.generator, config.generator_engine),
        ("prm", engines.scorer, config.prm),
    ):
        facts[role] = {
            "blocks": engine.stats()["total_blocks"] - 1,  # vLLM reserves one
            "block_size": settings.expected_block_size,
            "max_num_seqs": settings.max_num_seqs,
        }
    return facts


async def _recorded_trees(engines: Engines, number: int) -> list[dict[str, Any]]:
    drawn: Iterator[Any] = draw_problems(Split.VALIDATION, SEED)
    problems: Sequence[Any] = [next(drawn) for _ in range(number)]

    async def solve(problem: Any, seed: int) -> dict[str, Any]:
        settings = parse_search({**SEARCH, "seed": seed})
        outcome = await engines.search(problem.text, settings, f"tree-{seed}")
        return recorded(outcome, len(engines.prompt(problem.text)))

    trees, took = await solve_all(solve, problems, 16, SEED)
    console.print(f"{number} searches recorded in {took:.1f} s")
    return trees
