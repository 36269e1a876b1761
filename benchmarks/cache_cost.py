"""Cost of LMCache where nothing can be shared: the served application with it and without, beside each other.

    python -m benchmarks.cache_cost
    python -m benchmarks.cache_cost --replicas 2

Beam searches of problems that no side is asked twice. The expected cost is a few per cent; two starts of one
application differ by more than that, and so do two minutes on a shared machine. So both applications keep running and
take turns of a few seconds, in pairs on the same problems, and the side that goes first alternates. The other side is
idle meanwhile.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
import uvloop
from rich.console import Console

from benchmarks.kv_clamp import SEARCHES, Run, run
from benchmarks.processes import CpuClock
from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import applications
from benchmarks.telemetry_toggled import compared
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.embedded.problems import Problem, Split, draw_problems
from deployments.startup.environment import set_environment

ARMS: dict[str, dict[str, Any]] = {
    "without": {"enabled": False},
    "with": {},
}
CLIENTS = 16
SEED = 31
WARM_UP = 64
MAX_COST = 0.05
console = Console(stderr=True)


class Side:
    """The application of one arm, and the results of its turns."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.runs: list[Run] = []
        self.cpu: list[dict[str, float]] = []
        """CPU milliseconds per step, by role. What the idle side spends meanwhile is included."""

    def ask(self, problems: Sequence[Problem]) -> Run:
        return uvloop.run(run(self._url, SEARCHES["beam"], problems, CLIENTS))

    def turn(self, problems: Sequence[Problem]) -> None:
        clock = CpuClock()
        done = self.ask(problems)
        spent, steps = clock.spent(), sum(each.steps for each in done.found)
        self.runs.append(done)
        self.cpu.append({role: round(1000 * seconds / steps, 4) for role, seconds in spent.items()})

    def seconds(self) -> list[float]:
        return [each.seconds for each in self.runs]

    def cpu_ms(self) -> list[float]:
        """CPU milliseconds per step, without the benchmark's own."""
        return [sum(each.values()) - each.get("benchmark", 0.0) for each in self.cpu]


def joined(started: Sequence[dict[str, Side]], arm: str, of: Callable[[Side], list[float]]) -> list[float]:
    """An arm's figures over all starts."""
    return [value for sides in started for value in of(sides[arm])]


def config_of(arm: str, replicas: int) -> AppConfig:
    pool = {"min_replicas": replicas, "max_replicas": replicas}
    return AppConfig.model_validate({"cache": ARMS[arm], "generator": {"replicas": pool}})


def main(
    replicas: Annotated[int, typer.Option(min=1, max=4, help="Generators.")] = 1,
    problems: Annotated[int, typer.Option(min=16, max=1000, help="Problems per turn.")] = 48,
    pairs: Annotated[int, typer.Option(min=5, max=1000)] = 16,
    starts: Annotated[int, typer.Option(min=1, max=20, help="Starts of both applications, each with all pairs.")] = 2,
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    names = list(ARMS)
    drawn = draw_problems(Split.TEST, SEED)
    started: list[dict[str, Side]] = []
    for start in range(starts):
        with applications({arm: config_of(arm, replicas) for arm in names}) as urls:
            sides = {arm: Side(url) for arm, url in zip(names, urls, strict=True)}
            started.append(sides)
            warm_up = list(itertools.islice(drawn, WARM_UP))
            for side in sides.values():
                side.ask(warm_up)
            for pair in range(pairs):
                asked = list(itertools.islice(drawn, problems))
                for arm in names[:: 1 if pair % 2 == 0 else -1]:
                    sides[arm].turn(asked)
                shown = {
                    arm: (round(side.seconds()[-1], 2), round(side.cpu_ms()[-1], 3)) for arm, side in sides.items()
                }
                console.print(f"start {start + 1}, pair {pair + 1}: seconds, CPU ms a step: {shown}")
    claims: list[dict[str, Any]] = []
    compare: dict[str, Any] = {}
    first = names[0]
    for arm in names[1:]:
        compare[arm] = {
            "seconds": compared(joined(started, first, Side.seconds), joined(started, arm, Side.seconds)),
            "cpu_ms": compared(joined(started, first, Side.cpu_ms), joined(started, arm, Side.cpu_ms)),
            "seconds_by_start": [compared(sides[first].seconds(), sides[arm].seconds()) for sides in started],
        }
        cost = compare[arm]["seconds"]["median"]
        claims.append(
            claim(f"cost of {arm}: time over {first}, median of pairs", cost, f"<= {MAX_COST}", cost <= MAX_COST)
        )
        same = all(
            here.found == there.found
            for sides in started
            for here, there in zip(sides[first].runs, sides[arm].runs, strict=True)
        )
        claims.append(claim(f"answers, steps and tokens {arm}", same, True, same))
    kept = [
        {arm: {"seconds": side.seconds(), "cpu_ms_per_step": side.cpu} for arm, side in sides.items()}
        for sides in started
    ]
    asked_for = {"replicas": replicas, "problems": problems, "clients": CLIENTS, "pairs": pairs}
    path = write_result(
        f"cache_cost_{replicas}", {"asked": asked_for, "over": first, "cost": compare, "starts": kept, "claims": claims}
    )
    console.print(compare)
    show_claims(console, claims)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
