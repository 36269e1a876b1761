"""What writing ahead gains, in one application whose generator switches it off and on.

    python -m benchmarks.write_ahead

For each case the two sides take turns on the same problems and seeds, in pairs, and the side that goes first
alternates. Each side has an API key of its own, so that neither finds what the other computed. A slow reward model is
one whose every call takes as long as the generator takes for a level on the side without writing ahead.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.model_pairs import PairName
from benchmarks.overload import quantile
from benchmarks.ratios import Ratio, ratio_with_interval
from benchmarks.record import claim, show_claims, write_result
from benchmarks.replicas import in_replicas
from benchmarks.served_overhead import Round, Searched, Solve, application, http_for, run_round, served
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.embedded.problems import Problem, Split, draw_problems
from deployments.startup.environment import set_environment

SEED = 1
SEARCH = {"strategy": "beam_search", "n": 16, "m": 4}
SIDES = ("off", "on")
COUNTERS = (
    "engine_steps",
    "engine_step_requests",
    "generated_tokens",
    "prompt_tokens",
    "prefix_hits",
    "ahead_begun",
    "ahead_adopted",
    "ahead_adopted_finished",
    "ahead_unused_tokens",
)
console = Console(stderr=True)


class Case(NamedTuple):
    """A load, and the bound for the ratio of the two sides under it."""

    pair: PairName
    in_flight: int
    problems: int
    """In each turn."""
    asked: float
    """The bound of the time with writing ahead over that without if searches are alone, of the throughput otherwise."""
    p95_asked: float | None = None
    """The bound of the 95th percentile of the searches' times, with over without."""
    slow: bool = False
    """Whether the reward model is as slow as the generator."""
    level: int | None = None
    """The level of all problems; every level in turn if None."""

    @property
    def name(self) -> str:
        load = "alone" if self.in_flight == 1 else f"{self.in_flight} at a time"
        return f"{self.pair}, {'slow reward model, ' if self.slow else ''}{load}"

    @property
    def lower_is_better(self) -> bool:
        return self.in_flight == 1


CASES = (
    Case(PairName.EMBEDDED, 1, 4, 0.95),
    Case(PairName.EMBEDDED, 4, 12, 0.98),
    Case(PairName.EMBEDDED, 16, 24, 0.98),
    Case(PairName.EMBEDDED, 32, 64, 0.98, p95_asked=1.03),
    Case(PairName.EMBEDDED, 1, 4, 0.78, slow=True),
    Case(PairName.EMBEDDED, 2, 8, 1.15, slow=True),
    Case(PairName.HEAVY, 1, 2, 0.88, level=2),
)


class Turn(NamedTuple):
    """All problems of a round on one side."""

    round: Round
    counters: dict[str, int]
    """Increase of the generator's counters."""
    seconds: list[float]
    """Time of each search."""


def switch(setting: float | None) -> None:
    """Sets ``generator.write_ahead`` in every generator replica; None: to what it started with."""

    def set_setting(replica: Any) -> None:
        ahead = replica._engine._running.write_ahead
        ahead.__dict__.setdefault("started_with", ahead.setting)
        ahead.setting = ahead.started_with if setting is None else setting

    in_replicas("Generator", set_setting)


def slow_down(seconds: float) -> None:
    """Has every call of the reward model take at least so long."""

    def patch(replica: Any) -> None:
        engine = replica._engine
        quick = engine.__dict__.get("quick_score") or engine.score

        async def score(request: Any) -> Any:
            rewards, _ = await asyncio.gather(quick(request), asyncio.sleep(seconds))
            return rewards

        engine.quick_score, engine.score = quick, score if seconds else quick

    in_replicas("ProcessRewardModel", patch)


def counters() -> dict[str, int]:
    """The generator's counters now."""
    figures = in_replicas("Generator", lambda replica: dict(replica._figures()))
    return {name: sum(each.get(name, 0) for each in figures) for name in COUNTERS}


def level_seconds() -> float:
    """Mean time of the generator's calls, seconds."""
    return max(in_replicas("Generator", lambda replica: float(replica._engine._running.write_ahead.call_s)))


async def measure(case: Case, sides: Mapping[str, Solve], setting: float | None, rounds: int) -> list[dict[str, Turn]]:
    stream = draw_problems(Split.VALIDATION, SEED, case.level)
    measured: list[dict[str, Turn]] = []

    async def turn(side: str, problems: Sequence[Problem]) -> Turn:
        # Not "off": calls are timed with 0, too.
        switch(setting if side == "on" else 0.0)
        before = counters()
        seconds: list[float] = []

        async def timed(problem: Problem, seed: int) -> Searched:
            began = time.perf_counter()
            found = await sides[side](problem, seed)
            seconds.append(time.perf_counter() - began)
            return found

        done = await run_round(timed, problems, case.in_flight)
        return Turn(done, {name: value - before[name] for name, value in counters().items()}, seconds)

    slow_down(0.0)
    warm_up = list(islice(stream, 2 * case.in_flight))
    for side in SIDES:
        await turn(side, warm_up)
    if case.slow:
        await turn("off", list(islice(stream, 4)))
        slow_down(level_seconds())
    for number in range(rounds):
        problems = list(islice(stream, case.problems))
        measured.append({side: await turn(side, problems) for side in (SIDES if number % 2 == 0 else SIDES[::-1])})
        console.print(f"{case.name}: {', '.join(f'{side} {measured[-1][side].round.seconds:.2f} s' for side in SIDES)}")
    slow_down(0.0)
    return measured


class Result(NamedTuple):
    """The rounds of one case."""

    case: Case
    rounds: list[dict[str, Turn]]

    @property
    def ratio(self) -> Ratio:
        """Time with writing ahead over that without if searches are alone; throughput with over without otherwise."""
        pairs = [(each["on"].round.seconds, each["off"].round.seconds) for each in self.rounds]
        return ratio_with_interval(pairs if self.case.lower_is_better else [(off, on) for on, off in pairs])

    @property
    def equal(self) -> bool:
        """Whether every search had the same answer, steps and tokens on both sides."""
        return all(each["on"].round.searches == each["off"].round.searches for each in self.rounds)

    def counters(self, side: str) -> dict[str, int]:
        return {name: sum(each[side].counters[name] for each in self.rounds) for name in COUNTERS}

    def fill(self, side: str) -> float:
        """Mean batch of the generator's engine steps."""
        summed = self.counters(side)
        return summed["engine_step_requests"] / max(summed["engine_steps"], 1)

    @property
    def p95_ratio(self) -> float:
        """95th percentile of the searches' times with writing ahead over that without."""
        on, off = (
            quantile(sorted(time for each in self.rounds for time in each[side].seconds), 0.95) for side in SIDES[::-1]
        )
        return on / off

    def claims(self) -> Iterator[dict[str, Any]]:
        value, asked = round(self.ratio.ratio, 3), self.case.asked
        if self.case.lower_is_better:
            yield claim(f"{self.case.name}: time, on over off", value, f"<= {asked}", value <= asked)
        else:
            yield claim(f"{self.case.name}: throughput, on over off", value, f">= {asked}", value >= asked)
        if (most := self.case.p95_asked) is not None:
            p95 = round(self.p95_ratio, 3)
            yield claim(f"{self.case.name}: p95 of the searches' times, on over off", p95, f"<= {most}", p95 <= most)
        yield claim(f"{self.case.name}: same answers, steps and tokens", self.equal, True, self.equal)

    @property
    def json(self) -> dict[str, Any]:
        return {
            **self.case._asdict(),
            "rounds": len(self.rounds),
            "ratio": self.ratio.as_json,
            "p95_ratio": round(self.p95_ratio, 3),
            "seconds": {side: [round(each[side].round.seconds, 3) for each in self.rounds] for side in SIDES},
            "counters": {side: self.counters(side) for side in SIDES},
            "mean_batch": {side: round(self.fill(side), 2) for side in SIDES},
        }


def table(results: Sequence[Result]) -> Table:
    shown = Table("case", "on over off", "asked for by the search", "finished by then", "tokens unused", "mean batch")
    for each in results:
        on = each.counters("on")
        asked = on["ahead_adopted"] / max(on["ahead_begun"], 1)
        finished = on["ahead_adopted_finished"] / max(on["ahead_adopted"], 1)
        unused = on["ahead_unused_tokens"] / max(on["generated_tokens"], 1)
        fill = " -> ".join(f"{each.fill(side):.1f}" for side in SIDES)
        shown.add_row(each.case.name, str(each.ratio), f"{asked:.0%}", f"{finished:.0%}", f"{unused:.0%}", fill)
    return shown


async def measured_cases(
    url: str, cases: Sequence[Case], keys: Mapping[str, str], setting: float | None, rounds: int
) -> list[Result]:
    async with AsyncExitStack() as stack:
        sides = {side: await stack.enter_async_context(served(url, SEARCH, keys[side])) for side in SIDES}
        return [Result(case, await measure(case, sides, setting, rounds)) for case in cases]


def main(
    pair: Annotated[list[PairName] | None, typer.Option(help="May be repeated; both if unset.")] = None,
    rounds: Annotated[int, typer.Option(min=2, max=50)] = 8,
    setting: Annotated[str, typer.Option(help="`auto`, or children for each sample.")] = "auto",
    only: Annotated[str, typer.Option(help="Only the cases with this text in their name.")] = "",
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    value = None if setting == "auto" else float(setting)
    results: list[Result] = []
    for each in pair or list(PairName):
        cases = [case for case in CASES if case.pair is each and only in case.name]
        if not cases:
            continue
        keys = {side: f"sk-{side}-{'0' * 24}" for side in SIDES}
        with tempfile.TemporaryDirectory() as directory:
            http = http_for(keys.values(), Path(directory) / "keys")
            models = {"generator": {"model": each.models.generator}, "prm": {"model": each.models.prm}}
            with application(AppConfig.model_validate({**models, "http": http})) as url:
                results += asyncio.run(measured_cases(url, cases, keys, value, rounds))
    claims = [found for result in results for found in result.claims()]
    cases_json = {result.case.name: result.json for result in results}
    path = write_result("write_ahead", {"search": SEARCH, "setting": setting, "cases": cases_json, "claims": claims})
    console.print(table(results))
    show_claims(console, claims)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
