"""What it gains that independent parts of a search do not wait for each other: DVTS, alone.

    python -m benchmarks.regions embedded
    python -m benchmarks.regions published --model DIRECTORY --problems test.jsonl

For each problem the two sides take turns: ``levels``, where a search goes on only when nothing of it is in flight, and
``parts``. The side that goes first alternates. Both run in this process, on one generator engine, under cache salts of
their own. ``published`` is a model whose steps differ in length: Qwen2.5-Coder-0.5B-Instruct (`scripts/models`
fetches it) on problems of GSM8K, one JSON object with a ``question`` a line. No reward model that reads its texts fits
beside it, so rewards are hashes of the texts: they prefer neither short steps nor long ones, and take no time.
"""

import asyncio
import hashlib
import json
import math
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from unittest import mock

import typer
from rich.console import Console

from benchmarks.engines import engines_of
from benchmarks.ratios import Ratio, ratio_with_interval
from benchmarks.record import claim, show_claims, write_result
from benchmarks.same_trees import COMPARED
from deployments.config import AppConfig
from deployments.embedded.problems import Split, draw_problems
from deployments.engines.settings import GeneratorSettings
from deployments.startup.environment import set_environment
from search.answers.equivalence import AnswerMatcher
from search.ports import ScoreRequest
from search.run import runner
from search.run.environment import SearchEnvironment
from search.run.report import SearchOutcome
from search.settings import parse_search
from search.snapshot import tree_as_json

SEED = 1
SIDES = {"levels": math.inf, "parts": runner.ASK_WAIT_S}
"""`search.run.runner.ASK_WAIT_S` of each side."""
INSTRUCTION = "\nPlease reason step by step, and put your final answer within \\boxed{}."
FIGURES = ("engine_steps", "engine_step_requests", "ahead_begun", "ahead_adopted")
console = Console(stderr=True)


class Pair(StrEnum):
    EMBEDDED = "embedded"
    PUBLISHED = "published"


ASKED = {Pair.EMBEDDED: 1.03, Pair.PUBLISHED: 0.85}
"""Bound of the time of ``parts`` over that of ``levels``. Steps of the embedded models are of equal length."""
PROBLEMS = {Pair.EMBEDDED: 4, Pair.PUBLISHED: 1}
"""Problems in each turn, one after the other."""


class HashScorer:
    """Rewards that depend on the text of a step alone."""

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        return [[_reward(text) for text in item.steps[-item.unscored :]] for item in request.items]


def _reward(text: str) -> float:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") / (1 << 32)


class Turn(NamedTuple):
    """Some problems on one side."""

    seconds: float
    trees: list[list[list[Any]]]
    expand_calls: int
    tokens: int
    engine: dict[str, int]
    """Increase of the engine's counters."""


class Bench(NamedTuple):
    """An engine, and what searches need beside it."""

    generator: Any
    environment: SearchEnvironment
    search: dict[str, Any]

    async def turn(self, side: str, questions: Sequence[str], seed: int) -> Turn:
        before = self.generator.stats()
        began = time.perf_counter()
        with mock.patch.object(runner, "ASK_WAIT_S", SIDES[side]):
            outcomes = [await self._solve(side, question, seed) for question in questions]
        seconds = time.perf_counter() - began
        after = self.generator.stats()
        return Turn(
            seconds,
            [_compared(outcome) for outcome in outcomes],
            sum(outcome.cost.expand_calls for outcome in outcomes),
            sum(outcome.cost.generated_tokens for outcome in outcomes),
            {name: after[name] - before[name] for name in FIGURES},
        )

    async def _solve(self, side: str, question: str, seed: int) -> SearchOutcome:
        prompt = list(self.generator.encode_chat([{"role": "user", "content": question}]))
        name = f"{side} {time.monotonic_ns()}"
        settings = parse_search(self.search | {"seed": seed})
        return await runner.run_search(question, prompt, settings, self.environment, search_id=name, cache_salt=name)


def _compared(outcome: SearchOutcome) -> list[list[Any]]:
    """What must be equal: the nodes in the order of their ids."""
    return [[node[name] for name in COMPARED] for node in tree_as_json(outcome.tree)["nodes"]]


@asynccontextmanager
async def embedded(n: int) -> AsyncIterator[Bench]:
    async with engines_of(AppConfig.model_validate({"cache": {"enabled": False}})) as engines:
        yield Bench(engines.generator, engines.environment, {"strategy": "dvts", "n": n, "m": 4})


@asynccontextmanager
async def published(model: Path, dtype: str, n: int, depth: int) -> AsyncIterator[Bench]:
    from deployments.engines.generation import GenerationEngine

    settings = GeneratorSettings.model_validate(
        {
            "model": str(model),
            "dtype": dtype,
            "max_model_len": 1024,
            "cpu_threads": 2,
            "kv_cache_memory_bytes": 1_500_000_000,
        }
    )
    generator, matcher = GenerationEngine(settings), AnswerMatcher()
    await asyncio.gather(generator.start(), matcher.start())
    try:
        environment = SearchEnvironment(generator, HashScorer(), settings.max_model_len, matcher)
        yield Bench(generator, environment, {"strategy": "dvts", "n": n, "m": 4, "max_depth": depth})
    finally:
        matcher.close()
        generator.shutdown()


def gsm8k(path: Path) -> Iterator[str]:
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)["question"] + INSTRUCTION


async def measure(bench: Bench, questions: Iterator[str], count: int, rounds: int) -> list[dict[str, Turn]]:
    small = bench._replace(search=bench.search | {"n": 8, "max_depth": 2})
    for side in SIDES:
        await small.turn(side, list(islice(questions, 1)), SEED)
    measured: list[dict[str, Turn]] = []
    for number in range(rounds):
        some = list(islice(questions, count))
        order = list(SIDES) if number % 2 == 0 else list(SIDES)[::-1]
        measured.append({side: await bench.turn(side, some, SEED + number) for side in order})
        times = ", ".join(f"{side} {measured[-1][side].seconds:.2f} s" for side in SIDES)
        console.print(f"round {number + 1}/{rounds}: {times}, {_equal(measured[-1])} of {count} trees equal")
    return measured


def _equal(turns: dict[str, Turn]) -> int:
    levels, parts = (turns[side].trees for side in SIDES)
    return sum(tree == twin for tree, twin in zip(levels, parts, strict=True))


def _figures(turns: Sequence[Turn]) -> dict[str, Any]:
    summed = {name: sum(turn.engine[name] for turn in turns) for name in FIGURES}
    return {
        "seconds": [round(turn.seconds, 3) for turn in turns],
        "expand_calls": [turn.expand_calls for turn in turns],
        "generated_tokens": [turn.tokens for turn in turns],
        "mean_batch": round(summed["engine_step_requests"] / max(summed["engine_steps"], 1), 2),
        **summed,
    }


def main(
    pair: Pair,
    model: Annotated[Path | None, typer.Option(resolve_path=True, help="Directory of the published model.")] = None,
    problems: Annotated[Path | None, typer.Option(help="Questions for it, JSON lines.")] = None,
    rounds: Annotated[int, typer.Option(min=2, max=50)] = 3,
    n: Annotated[int, typer.Option(min=8, max=256)] = 64,
    dtype: Annotated[
        str, typer.Option(help="In 16 bits a token can depend on the batch: trees then differ.")
    ] = "float32",
    depth: Annotated[int, typer.Option(min=1, max=40, help="Most steps of a path of the published model.")] = 40,
) -> None:
    set_environment()  # before vLLM is imported

    async def run() -> tuple[dict[str, Any], list[dict[str, Turn]]]:
        if pair is Pair.EMBEDDED:
            questions: Iterator[str] = (problem.text for problem in draw_problems(Split.VALIDATION, SEED))
            engines = embedded(n)
        elif model is None or problems is None:
            raise typer.BadParameter("published needs --model and --problems")
        else:
            questions, engines = gsm8k(problems), published(model, dtype, n, depth)
        async with engines as bench:
            return bench.search, await measure(bench, questions, PROBLEMS[pair], rounds)

    search, measured = asyncio.run(run())
    ratio: Ratio = ratio_with_interval([(each["parts"].seconds, each["levels"].seconds) for each in measured])
    equal, all_trees = sum(map(_equal, measured)), PROBLEMS[pair] * rounds
    value = round(ratio.ratio, 3)
    claims = [
        claim(f"{pair}: time, parts over levels", value, f"<= {ASKED[pair]}", value <= ASKED[pair]),
        claim(f"{pair}: equal trees", equal, all_trees, equal == all_trees),
    ]
    figures = {side: _figures([each[side] for each in measured]) for side in SIDES}
    settings = {"dtype": dtype} if pair is Pair.PUBLISHED else {}
    path = write_result(
        f"regions_{pair}", {"search": search, **settings, "ratio": ratio.as_json, "sides": figures, "claims": claims}
    )
    console.print(f"{pair}: parts over levels {ratio}")
    show_claims(console, claims)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
