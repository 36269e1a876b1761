"""Checks that one seed gives one tree on served engines: with and without writing ahead, with one generator or two.

Three applications one after the other search the same problems with the same seeds, 16 at a time, the last quarter of
the problems one at a time: only then is there much time to write ahead.
Trees are compared by the ids, texts, statuses, ends and counts of their nodes. Rewards may differ in their last digits,
since an engine sums in another order in another batch; the largest difference is recorded.

    python -m benchmarks.same_trees
    python -m benchmarks.same_trees --exact            # on a GPU: equal trees in 16 bits, too
    python -m benchmarks.same_trees --dtype bfloat16   # without a claim: counts the trees that differ
"""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console

from benchmarks.engines import solve_all
from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import application
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.embedded.problems import Problem, Split, draw_problems
from deployments.engines.vllm_build import runs_on_cpu
from deployments.startup.environment import set_environment

SEED = 1
IN_FLIGHT = 16
SEARCHES: Mapping[str, dict[str, Any]] = {
    "beam_search": {"strategy": "beam_search", "n": 16, "m": 4},
    "dvts": {"strategy": "dvts", "n": 16, "m": 4},
    "mcts": {"strategy": "mcts", "iterations": 16, "width": 4, "paths": 4},
    "rebase": {"strategy": "rebase", "n": 16},
    "ets": {"strategy": "ets", "n": 16},
    "particle_filter": {"strategy": "particle_filter", "n": 16},
    "frontier": {"strategy": "frontier", "iterations": 16},
    "ab_mcts": {"strategy": "ab_mcts", "iterations": 16, "paths": 4},
    "best_of_n": {"strategy": "best_of_n", "n": 16},
}
COMPARED = ("id", "text", "status", "end", "ends", "count", "tokens")
"""Fields of a node that must be equal."""
RUNS: Mapping[str, tuple[int, float | str]] = {
    "one generator": (1, "off"),
    "one generator that writes ahead": (1, 2.0),
    "two generators that write ahead": (2, 2.0),
}
"""Generator replicas and ``generator.write_ahead`` by the name of the run; the first is what the others are compared
with."""
console = Console(stderr=True)

Tree = list[dict[str, Any]]
"""The nodes of a reply of ``/v1/search``."""


async def trees_of(url: str, problems: Sequence[Problem]) -> dict[str, list[Tree]]:
    """The trees of all problems under each strategy."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600.0, limits=limits, trust_env=False) as http:

        async def solve(item: tuple[str, Problem], seed: int) -> Tree:
            strategy, problem = item
            messages = [{"role": "user", "content": problem.text}]
            body = {
                "model": "banyan-arithmetic",
                "messages": messages,
                "seed": seed,
                "search": SEARCHES[strategy],
            }
            reply = (await http.post("/v1/search", json=body)).raise_for_status().json()
            tree: Tree = reply["tree"]["nodes"]
            return tree

        found: dict[str, list[Tree]] = {}
        together = -(-len(problems) * 3 // 4)
        for strategy in SEARCHES:
            items = [(strategy, problem) for problem in problems]
            found[strategy], _ = await solve_all(solve, items[:together], IN_FLIGHT, SEED)
            alone, _ = await solve_all(solve, items[together:], 1, SEED + together)
            found[strategy] += alone
        return found


def ahead(url: str) -> dict[str, int]:
    """What the generators wrote ahead so far."""
    status = httpx.get(f"{url}/v1/status", trust_env=False, timeout=60).raise_for_status().json()
    figures = [each for each in status["generator"] if isinstance(each, dict)]
    return {name: sum(each.get(name, 0) for each in figures) for name in ("ahead_begun", "ahead_adopted")}


def same(tree: Tree, other: Tree) -> bool:
    """Whether two trees are equal in all that is compared."""
    return [[node.get(name) for name in COMPARED] for node in tree] == [
        [node.get(name) for name in COMPARED] for node in other
    ]


def largest_difference(trees: Sequence[Tree], others: Sequence[Tree]) -> float:
    """Largest difference of the rewards of a node in equal trees."""
    pairs = [(tree, other) for tree, other in zip(trees, others, strict=True) if same(tree, other)]
    return max(
        (
            abs(node["reward"] - twin["reward"])
            for tree, other in pairs
            for node, twin in zip(tree, other, strict=True)
            if node["reward"] is not None and twin["reward"] is not None
        ),
        default=0.0,
    )


def promised(dtype: str, exact: bool) -> bool:
    """Whether engines of this type promise equal trees on this machine (docs/gpu.md)."""
    return exact or (runs_on_cpu() and dtype in ("auto", "float32"))


def differing(runs: Mapping[str, Mapping[str, Sequence[Tree]]]) -> dict[str, int]:
    """Number of trees that differ from the first run's, by strategy and run."""
    first, *others = runs
    return {
        f"{strategy}: trees of {len(trees)} that differ, {first} and {other}": sum(
            not same(tree, twin) for tree, twin in zip(trees, runs[other][strategy], strict=True)
        )
        for other in others
        for strategy, trees in runs[first].items()
    }


def main(
    problems: Annotated[int, typer.Option(min=1, max=1000)] = 40,
    dtype: Annotated[str, typer.Option(help="Of generator and reward model.")] = "auto",
    exact: Annotated[bool, typer.Option("--exact", help="generator.exact and prm.exact.")] = False,
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    drawn = list(islice(draw_problems(Split.VALIDATION, SEED), problems))
    runs: dict[str, dict[str, list[Tree]]] = {}
    written_ahead: dict[str, dict[str, int]] = {}
    engine = {"dtype": dtype, "exact": exact}
    for name, (generators, write_ahead) in RUNS.items():
        replicas = {"min_replicas": generators, "max_replicas": generators}
        generator = {"replicas": replicas, "write_ahead": write_ahead, **engine}
        config = AppConfig.model_validate({"generator": generator, "prm": engine, "http": {"canary_every_s": 0}})
        with application(config) as url:
            runs[name] = asyncio.run(trees_of(url, drawn))
            written_ahead[name] = ahead(url)
        console.print(f"{name}: {sum(map(len, runs[name].values()))} trees")
    first, *others = runs
    different = differing(runs)
    claims = (
        [claim(title, count, 0, count == 0) for title, count in different.items()] if promised(dtype, exact) else []
    )
    differences = {
        f"{strategy}: {other}": largest_difference(runs[first][strategy], runs[other][strategy])
        for other in others
        for strategy in SEARCHES
    }
    nodes = {strategy: sum(map(len, trees)) for strategy, trees in runs[first].items()}
    path = write_result(
        "same_trees",
        {
            "searches": SEARCHES,
            "problems": problems,
            "in_flight": IN_FLIGHT,
            "engine": engine,
            "different": different,
            "nodes": nodes,
            "written_ahead": written_ahead,
            "largest_difference_of_rewards": differences,
            "claims": claims,
        },
    )
    if not claims:
        console.print(*(f"{count} {title}" for title, count in different.items()), sep="\n")
    show_claims(console, claims)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
