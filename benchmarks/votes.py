"""What votes that stop early save, and how many answers they change, in one application.

    python -m benchmarks.votes

The two sides, all solutions at once and `risk`, take turns on the same problems and seeds, in pairs, and the side that
goes first alternates. Each side has an API key of its own, so that neither finds what the other computed. Tokens
include tokens written ahead that no search requested.
"""

import asyncio
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import httpx
import typer
from rich.console import Console

from benchmarks.engines import solve_all
from benchmarks.ratios import Ratio, ratio_with_interval
from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import application, http_for
from cluster.evaluation.statistics import wilson
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.embedded.problems import Problem, Split, draw_problems
from deployments.startup.environment import set_environment

SEED = 1
SIDES = ("all", "risk")
TOKENS, THROUGHPUT, ALONE = 0.5, 1.3, 1.1
"""What is asked at ``RISK``, with risk over without: tokens and throughput with several in flight, and the time of
searches that are alone."""
RISK = 0.05
console = Console(stderr=True)


class Vote(NamedTuple):
    """Answer and cost of one search."""

    answer: str | None
    tokens: int
    """Generated ones that arrived."""
    unused_tokens: int
    """Written ahead and never requested."""


class Turn(NamedTuple):
    """All problems of a round on one side."""

    votes: list[Vote]
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(vote.tokens + vote.unused_tokens for vote in self.votes)


Rounds = list[dict[str, Turn]]


class Result(NamedTuple):
    """The rounds under one load."""

    in_flight: int
    risk: float
    rounds: Rounds

    def ratio(self, figure: str) -> Ratio:
        """A figure of a turn with risk over without."""
        return ratio_with_interval(
            [(getattr(each["risk"], figure), getattr(each["all"], figure)) for each in self.rounds]
        )

    @property
    def changed(self) -> int:
        return sum(
            one.answer != other.answer
            for each in self.rounds
            for one, other in zip(each["all"].votes, each["risk"].votes, strict=True)
        )

    @property
    def problems(self) -> int:
        return sum(len(each["risk"].votes) for each in self.rounds)

    @property
    def json(self) -> dict[str, Any]:
        low, high = wilson(self.changed, self.problems)
        return {
            "in_flight": self.in_flight,
            "problems": self.problems,
            "changed": self.changed,
            "changed_interval": [round(low, 4), round(high, 4)],
            "tokens_ratio": self.ratio("tokens").as_json,
            "seconds_ratio": self.ratio("seconds").as_json,
            "tokens": {side: [each[side].tokens for each in self.rounds] for side in SIDES},
            "unused_tokens": sum(vote.unused_tokens for each in self.rounds for vote in each["risk"].votes),
            "seconds": {side: [round(each[side].seconds, 3) for each in self.rounds] for side in SIDES},
        }

    def claims(self) -> Iterator[dict[str, Any]]:
        load = "alone" if self.in_flight == 1 else f"{self.in_flight} in flight"
        share = round(self.changed / self.problems, 4)
        yield claim(f"{load}: share of answers changed", share, f"<= {self.risk}", share <= self.risk)
        if self.risk != RISK:
            return
        seconds = self.ratio("seconds")
        if self.in_flight == 1:
            time = round(seconds.ratio, 3)
            yield claim(f"{load}: time, with risk over without", time, f"<= {ALONE}", time <= ALONE)
            return
        tokens, throughput = round(self.ratio("tokens").ratio, 3), round(1 / seconds.ratio, 3)
        yield claim(f"{load}: tokens, with risk over without", tokens, f"<= {TOKENS}", tokens <= TOKENS)
        asked = f">= {THROUGHPUT}"
        yield claim(f"{load}: throughput, with risk over without", throughput, asked, throughput >= THROUGHPUT)


@asynccontextmanager
async def voting(url: str, search: Mapping[str, Any], key: str) -> Any:
    """Yields a function that sends one HTTP request per search."""
    headers, limits = {"Authorization": f"Bearer {key}"}, httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600.0, limits=limits, headers=headers) as http:

        async def vote(problem: Problem, seed: int) -> Vote:
            messages = [{"role": "user", "content": problem.text}]
            body = {"model": "banyan-arithmetic", "messages": messages, "seed": seed, "search": search}
            reply = (await http.post("/v1/chat/completions", json=body)).raise_for_status().json()["search"]
            return Vote(reply["answer"], reply["generated_tokens"], reply["unused_tokens"])

        yield vote


async def measure(
    url: str, searches: Mapping[str, Any], keys: Mapping[str, str], loads: Mapping[int, int], rounds: int
) -> list[tuple[int, Rounds]]:
    """Both sides under each load: the number of searches in flight, and of problems in each turn."""
    measured: list[tuple[int, Rounds]] = []
    stream = draw_problems(Split.TEST, SEED)
    async with AsyncExitStack() as stack:
        sides = {side: await stack.enter_async_context(voting(url, searches[side], keys[side])) for side in SIDES}

        async def turn(side: str, problems: Sequence[Problem], in_flight: int) -> Turn:
            return Turn(*await solve_all(sides[side], problems, in_flight, SEED))

        for in_flight, number in loads.items():
            found: Rounds = []
            warm_up = list(islice(stream, in_flight))
            for side in SIDES:
                await turn(side, warm_up, in_flight)
            for index in range(rounds):
                problems = list(islice(stream, number))
                order = SIDES if index % 2 == 0 else SIDES[::-1]
                found.append({side: await turn(side, problems, in_flight) for side in order})
                shown = (f"{side} {found[-1][side].seconds:.2f} s {found[-1][side].tokens} tokens" for side in SIDES)
                console.print(f"{in_flight} in flight: {', '.join(shown)}")
            measured.append((in_flight, found))
    return measured


def main(
    n: Annotated[int, typer.Option(min=2, max=256)] = 64,
    risk: Annotated[float, typer.Option(min=0.0, max=0.5)] = RISK,
    strategy: Annotated[str, typer.Option(help="`self_consistency` or `best_of_n`.")] = "self_consistency",
    rounds: Annotated[int, typer.Option(min=2, max=50, help="Pairs of turns under each load.")] = 8,
    in_flight: Annotated[int, typer.Option(min=2, max=64)] = 16,
    problems: Annotated[int, typer.Option(min=1, max=256, help="In each turn with several in flight.")] = 32,
    alone: Annotated[int, typer.Option(min=1, max=64, help="Problems in each turn of searches alone.")] = 6,
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    search = {"strategy": strategy, "n": n}
    searches = {"all": search, "risk": search | {"risk": risk}}
    keys = {side: f"sk-{side}-{'0' * 24}" for side in SIDES}
    with tempfile.TemporaryDirectory() as directory:
        http = http_for(keys.values(), Path(directory) / "keys")
        with application(AppConfig.model_validate({"http": http})) as url:
            measured = asyncio.run(measure(url, searches, keys, {in_flight: problems, 1: alone}, rounds))
    results = [Result(load, risk, found) for load, found in measured]
    claims = [found for result in results for found in result.claims()]
    figures = {"searches": searches, "loads": [result.json for result in results], "claims": claims}
    path = write_result("votes", figures)
    show_claims(console, claims)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
