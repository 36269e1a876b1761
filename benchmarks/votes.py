"""What votes that stop early save, and how many answers they change, in one application.

    python -m benchmarks.votes
    python -m benchmarks.votes --n 16 --model MODEL --gsm8k DIRECTORY --problems 16 --rounds 2 --alone 2
    python -m benchmarks.votes --n 16 --model MODEL --level 1 --problems 32 --rounds 2 --alone 3
    python -m benchmarks.votes count

The two sides, all solutions at once and `risk`, take turns on the same problems and seeds, in pairs, and the side that
goes first alternates. Each side has an API key of its own, so that neither finds what the other computed. Tokens
include tokens written ahead that no search requested. The problems are the embedded models' or GSM8K's, and those of
one level are an easy set for a published model.

`count` serves nothing: it counts solutions again that are kept (GSM8K, 16 each) or that the embedded models write
without engines (64 each). Its shares of changed answers have narrower intervals, and it knows no seconds.
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
from benchmarks.published.__main__ import TEST, pool_file
from benchmarks.published.engines import MAX_SOLUTION_TOKENS, generator_settings
from benchmarks.published.problems import INSTRUCTION, chosen_problems
from benchmarks.published.report import TEST_PROBLEMS
from benchmarks.ratios import Ratio, ratio_with_interval
from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import application, http_for
from cluster.evaluation.statistics import wilson
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.embedded.problems import Split, draw_problems
from deployments.startup.environment import set_environment
from search.answers.equivalence import AnswerMatcher
from search.run.environment import are_same
from search.run.runner import run_search
from search.settings import parse_search
from search.strategies.solutions.self_consistency import SelfConsistency
from search.tree import SearchTree, Step, StepEnd

SEED = 620
SERVED_NAME = "votes"
REQUESTS = 96
"""Batch size of an engine with a published model."""
WARM_UP = 4
"""Most searches of the warm-up."""
SIDES = ("all", "risk")
TOKENS, THROUGHPUT, ALONE = 0.5, 1.3, 1.1
"""What is asked at ``RISK``, with risk over without: tokens and throughput with several in flight, and the time of
searches that are alone."""
RISK = 0.05
console = Console(stderr=True)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


class Question(NamedTuple):
    """A problem of any set."""

    text: str
    answer: str


class Vote(NamedTuple):
    """Answer and cost of one search."""

    answer: str | None
    right: bool
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
    embedded: bool
    """Whether the embedded models wrote. Only for them there are targets for tokens and seconds."""

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
            "right": {side: sum(vote.right for each in self.rounds for vote in each[side].votes) for side in SIDES},
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
        if self.risk != RISK or not self.embedded:
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
async def voting(url: str, search: Mapping[str, Any], key: str, matcher: AnswerMatcher) -> Any:
    """Yields a function that sends one HTTP request per search."""
    headers, limits = {"Authorization": f"Bearer {key}"}, httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600.0, limits=limits, headers=headers) as http:

        async def vote(problem: Question, seed: int) -> Vote:
            messages = [{"role": "user", "content": problem.text}]
            body = {"model": SERVED_NAME, "messages": messages, "seed": seed, "search": search}
            reply = (await http.post("/v1/chat/completions", json=body)).raise_for_status().json()["search"]
            answer: str | None = reply["answer"]
            right = answer is not None and await are_same(matcher, problem.answer, answer)
            return Vote(answer, right, reply["generated_tokens"], reply["unused_tokens"])

        yield vote


async def measure(
    url: str,
    stream: Iterator[Question],
    searches: Mapping[str, Any],
    keys: Mapping[str, str],
    loads: Mapping[int, int],
    rounds: int,
) -> list[tuple[int, Rounds]]:
    """Both sides under each load: the number of searches in flight, and of problems in each turn."""
    measured: list[tuple[int, Rounds]] = []
    async with AsyncExitStack() as stack:
        matcher = AnswerMatcher()
        await matcher.start()
        stack.callback(matcher.close)
        voters = {side: voting(url, searches[side], keys[side], matcher) for side in SIDES}
        sides = {side: await stack.enter_async_context(voter) for side, voter in voters.items()}

        async def turn(side: str, problems: Sequence[Question], in_flight: int) -> Turn:
            return Turn(*await solve_all(sides[side], problems, in_flight, SEED))

        for in_flight, number in loads.items():
            found: Rounds = []
            warm_up = list(islice(stream, min(in_flight, WARM_UP)))
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


def config_of(http: Mapping[str, Any], model: str | None) -> AppConfig:
    """The application with the embedded pair, or with a published generator and no reward model."""
    given: dict[str, Any] = {"http": http, "generator": {"served_name": SERVED_NAME}}
    if model is not None:
        given["generator"] |= generator_settings(model, REQUESTS, threads=2).model_dump(exclude_unset=True)
        given["prm"] = {"family": "none"}
    return AppConfig.model_validate(given)


def questions(gsm8k: Path | None, level: int | None, instruction: str = "") -> Iterator[Question]:
    """Unseen test problems. Those of GSM8K come after the ones in the pool; ``instruction`` follows the others."""
    if gsm8k is not None:
        unseen = chosen_problems(gsm8k, TEST, 3 * TEST_PROBLEMS)[TEST_PROBLEMS:]
        return (Question(each.text, each.answer) for each in unseen)
    return (Question(each.text + instruction, each.answer) for each in draw_problems(Split.TEST, SEED, level))


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    n: Annotated[int, typer.Option(min=2, max=256)] = 64,
    risk: Annotated[float, typer.Option(min=0.0, max=0.5)] = RISK,
    strategy: Annotated[str, typer.Option(help="`self_consistency` or `best_of_n`.")] = "self_consistency",
    rounds: Annotated[int, typer.Option(min=2, max=50, help="Pairs of turns under each load.")] = 8,
    in_flight: Annotated[int, typer.Option(min=2, max=64)] = 16,
    problems: Annotated[int, typer.Option(min=1, max=256, help="In each turn with several in flight.")] = 32,
    alone: Annotated[int, typer.Option(min=1, max=64, help="Problems in each turn of searches alone.")] = 6,
    model: Annotated[str | None, typer.Option(help="Directory of a published generator.")] = None,
    gsm8k: Annotated[Path | None, typer.Option(help="Directory with GSM8K's test.jsonl: its problems.")] = None,
    level: Annotated[
        int | None, typer.Option(min=1, max=5, help="Level of the embedded problems; all if unset.")
    ] = None,
) -> None:
    """Serves both sides."""
    if context.invoked_subcommand:
        return
    set_environment()  # before Ray is imported
    ensure_token()
    search: dict[str, Any] = {"strategy": strategy, "n": n}
    if model is not None:
        search["max_path_tokens"] = MAX_SOLUTION_TOKENS
    searches = {"all": search, "risk": search | {"risk": risk}}
    keys = {side: f"sk-{side}-{'0' * 24}" for side in SIDES}
    with tempfile.TemporaryDirectory() as directory:
        http = http_for(keys.values(), Path(directory) / "keys")
        with application(config_of(http, model)) as url:
            loads = {in_flight: problems, 1: alone}
            asked_of = questions(gsm8k, level, INSTRUCTION if model else "")
            measured = asyncio.run(measure(url, asked_of, searches, keys, loads, rounds))
    results = [Result(load, risk, found, model is None) for load, found in measured]
    claims = [found for result in results for found in result.claims()]
    asked = {
        "model": Path(model).name if model else "embedded",
        "problems": "GSM8K" if gsm8k else "chains",
        "level": level,
    }
    _keep("votes", {**asked, "seed": SEED, "searches": searches, "loads": [each.json for each in results]}, claims)


class CountedVote(NamedTuple):
    """One side of a problem whose solutions are counted again."""

    answer: str | None
    right: bool
    tokens: int


class Counted(NamedTuple):
    """A vote over all solutions of a pool beside one that stops."""

    changed: bool
    right: tuple[bool, bool]
    tokens: tuple[int, int]


def counted_of(before: CountedVote, after: CountedVote) -> Counted:
    return Counted(before.answer != after.answer, (before.right, after.right), (before.tokens, after.tokens))


@app.command("count")
def count_command(
    risk: Annotated[float, typer.Option(min=0.0, max=0.5)] = RISK,
    problems: Annotated[int, typer.Option(min=1, max=5000, help="Of the embedded models.")] = 400,
) -> None:
    """Counts votes again, without engines."""
    claims: list[dict[str, Any]] = []
    figures: dict[str, Any] = {"risk": risk, "seed": SEED}
    pools = {"embedded, n = 64": count_embedded(problems, 64, risk), "GSM8K, n = 16": count_kept(16, risk)}
    for name, counting in pools.items():
        counted = asyncio.run(counting)
        changed, number = sum(each.changed for each in counted), len(counted)
        low, high = wilson(changed, number)
        tokens = [sum(each.tokens[side] for each in counted) for side in (0, 1)]
        figures[name] = {
            "problems": number,
            "changed": changed,
            "changed_interval": [round(low, 4), round(high, 4)],
            "right": [sum(each.right[side] for each in counted) for side in (0, 1)],
            "tokens": tokens,
            "tokens_ratio": round(tokens[1] / tokens[0], 4),
        }
        claims.append(
            claim(f"{name}: share of answers changed", changed / number, f"<= {risk}", changed <= risk * number)
        )
    _keep("votes_counted", figures, claims)


async def count_embedded(number: int, n: int, risk: float) -> list[Counted]:
    """Both sides on test problems of the embedded models, without engines."""
    import torch

    from benchmarks.memoized import MemoizedModels

    torch.set_num_threads(1)
    matcher = AnswerMatcher()
    await matcher.start()
    try:
        models = MemoizedModels(matcher)

        async def count(problem: Question, seed: int) -> Counted:
            found = []
            with models.problem(problem.text) as memo:
                for own in ({}, {"risk": risk}):
                    settings = parse_search({"strategy": "self_consistency", "n": n, "seed": seed} | own)
                    outcome = await run_search(problem.text, memo.prompt, settings, memo.environment, search_id="vote")
                    answer = outcome.selection.answer
                    right = answer is not None and await are_same(matcher, problem.answer, answer)
                    found.append(CountedVote(answer, right, outcome.cost.generated_tokens))
            return counted_of(*found)

        counted, _ = await solve_all(count, list(islice(questions(None, None), number)), 16, SEED)
        return counted
    finally:
        matcher.close()


async def count_kept(n: int, risk: float) -> list[Counted]:
    """Both sides on the kept solutions of GSM8K's test problems."""
    counted: list[Counted] = []
    for row in pool_file(TEST).rows.values():
        if row["n"] != n:
            continue
        solutions = [(each["answer"], each["correct"], sum(each["tokens"])) for each in row["solutions"]]
        found = [kept_vote(solutions, SelfConsistency(n=n, risk=own)) for own in (None, risk)]
        counted.append(counted_of(*found))
    return counted


def kept_vote(solutions: Sequence[tuple[str | None, bool, int]], strategy: SelfConsistency) -> CountedVote:
    """The answer that a vote has, whether it is right, and the tokens of the solutions that it asks for.

    Args:
        solutions: each with its answer, whether that is right, and its tokens.
    """
    tree = SearchTree()
    while expansions := strategy.select(tree):
        for node in tree.request(tree.root, expansions[0].count):
            answer, _, _ = solutions[node.id[0]]
            text = "" if answer is None else rf"\boxed{{{answer}}}"
            tree.write(node, Step((0,), text, StepEnd.END_OF_SEQUENCE), ends=True)
            tree.complete(node, None)
    votes: dict[str, list[int]] = {}
    for node in tree.terminals:
        if (spelling := tree.spelling_of(node)) is not None:
            votes.setdefault(spelling, []).append(node.id[0])
    tokens = sum(tokens for _, _, tokens in solutions[: len(tree)])
    if not votes:
        return CountedVote(None, False, tokens)
    winner, voters = max(votes.items(), key=lambda vote: len(vote[1]))
    return CountedVote(winner, solutions[voters[0]][1], tokens)


def _keep(name: str, figures: dict[str, Any], claims: list[dict[str, Any]]) -> None:
    path = write_result(name, figures | {"claims": claims})
    show_claims(console, claims)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    app()
