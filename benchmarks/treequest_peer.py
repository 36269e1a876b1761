"""MCTS and AB-MCTS compared with the package ``treequest``: the same engines, problems and number of nodes.

``treequest`` chooses where to grow; our engines write a step there and score it; the result is kept in a tree of ours,
so that both sides answer by the same vote. ``treequest`` does not know that a path has ended: if it expands one, it
gets the same path back, which costs a node and no tokens.

    python -m benchmarks.treequest_peer
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from treequest import ABMCTSA, Algorithm, StandardMCTS

from benchmarks.engines import Engines, engines_of, solve_all
from benchmarks.record import write_result
from deployments.config import AppConfig
from deployments.embedded.problems import Problem, Split, draw_problems
from search.answers.extraction import boxed_answer
from search.ports import (
    Branch,
    ExpandItem,
    ExpandRequest,
    Lane,
    ScoreItem,
    ScoreRequest,
    StopCondition,
    branch_seed,
)
from search.run.answer_selection import select_answer
from search.settings import parse_search
from search.strategies.base import Strategy
from search.tree import Node, NodeStatus, SearchTree, Step, StepEnd

SEED = 1
WARM_UP = 8
DEADLINE_S = 600.0
ACTION = "step"
console = Console(stderr=True)


class Solved(NamedTuple):
    answer: str | None
    tokens: int


class Round(NamedTuple):
    """All problems once, on one side."""

    right: int
    tokens: int
    seconds: float


Solve = Callable[[Problem, int], Awaitable[Solved]]


class Side(NamedTuple):
    """One way of searching: ours or the peer's."""

    name: str
    pair: str
    """Sides with the same pair are compared with each other."""
    solve: Solve


class Peer:
    """A search directed by ``treequest``, ``batch`` nodes at a time."""

    def __init__(self, engines: Engines, strategy: Strategy, nodes: int) -> None:
        self._engines = engines
        self._strategy = strategy
        self._nodes = nodes

    async def solve(self, algorithm: Algorithm[Any, Any], batch: int, problem: Problem, seed: int) -> Solved:
        growing = _GrowingTree(self._engines, self._strategy, problem, seed)
        state = algorithm.init_tree()
        done_nodes = 0
        while done_nodes < self._nodes:
            state, trials = algorithm.ask_batch(state, min(batch, self._nodes - done_nodes), [ACTION])
            parents = [state.tree.get_node(trial.node_to_expand).state or growing.tree.root for trial in trials]
            for trial, child in zip(trials, await growing.children(parents), strict=True):
                state = algorithm.tell(state, trial.trial_id, (child, child.reward or 0.0))
                done_nodes += 1
        ends = growing.tree.with_status(NodeStatus.TERMINAL)
        selection = (
            await select_answer(ends, growing.tree, self._strategy, self._engines.environment.matcher) if ends else None
        )
        return Solved(selection.answer if selection else None, growing.tokens)


class _GrowingTree:
    """The tree of one problem, grown by one step wherever it is asked for."""

    def __init__(self, engines: Engines, strategy: Strategy, problem: Problem, seed: int) -> None:
        self.tree = SearchTree(seed)
        self.tokens = 0
        self._engines = engines
        self._strategy = strategy
        self._question = problem.text
        self._prompt = tuple(engines.prompt(problem.text))
        self._search_id = f"peer:{problem.unique_id}:{time.monotonic_ns()}"
        self._step_tokens = parse_search({"strategy": "greedy"}).max_step_tokens

    async def children(self, parents: Sequence[Node]) -> list[Node]:
        """A child of each parent, or the parent itself if its path has ended. One call to each engine for all."""
        growing_nodes = [node for node in parents if node.status is not NodeStatus.TERMINAL]
        new: dict[Node, list[Node]] = {}
        for parent in dict.fromkeys(growing_nodes):
            new[parent] = self.tree.request(parent, growing_nodes.count(parent))
        if new:
            await self._write(new)
            await self._score([node for nodes in new.values() for node in nodes])
        return [node if node.status is NodeStatus.TERMINAL else new[node].pop(0) for node in parents]

    async def _write(self, new: dict[Node, list[Node]]) -> None:
        expansions = tuple(
            ExpandItem(
                parent.id,
                (*self._prompt, *parent.token_ids),
                tuple(
                    Branch(node.id[-1], branch_seed(self.tree.seed, parent.id, node.id[-1]), self._step_tokens)
                    for node in nodes
                ),
            )
            for parent, nodes in new.items()
        )
        sampling = self._strategy.sampling
        request = ExpandRequest(self._search_id, expansions, sampling, StopCondition.STEP, Lane.DEMAND, DEADLINE_S)
        async for group in self._engines.generator.expand(request):
            for child in group.children:
                (step,) = child.steps
                node = self.tree[(*child.parent, child.index)]
                self.tree.write(node, step, self._ends(step, node.depth))
                self.tokens += len(step.token_ids)

    async def _score(self, nodes: Sequence[Node]) -> None:
        items = tuple(ScoreItem(tuple(step.text for step in node.steps)) for node in nodes)
        rewards = await self._engines.scorer.score(ScoreRequest(self._search_id, self._question, items, DEADLINE_S))
        for node, (reward,) in zip(nodes, rewards, strict=True):
            self.tree.complete(node, reward)

    def _ends(self, step: Step, depth: int) -> bool:
        return (
            step.end is not StepEnd.DELIMITER
            or not step.token_ids
            or boxed_answer(step.text) is not None
            or depth >= self._strategy.max_depth
        )


def sides_of(engines: Engines, nodes: int) -> list[Side]:
    """The measured sides: each of ours, and ``treequest`` with the same settings."""
    sides: list[Side] = []

    def ours(name: str, pair: str, **settings: Any) -> None:
        search = {"budget": {"nodes": nodes}, "iterations": nodes, **settings}

        async def solve(problem: Problem, seed: int) -> Solved:
            search_id = f"{name}:{problem.unique_id}:{time.monotonic_ns()}"
            outcome = await engines.search(problem.text, parse_search(search | {"seed": seed}), search_id)
            return Solved(outcome.selection.answer, outcome.cost.generated_tokens)

        sides.append(Side(name, pair, solve))

    def peer(name: str, pair: str, algorithm: Callable[[], Algorithm[Any, Any]], batch: int) -> None:
        by_peer = Peer(engines, parse_search({"strategy": "ab_mcts"}).strategy, nodes)
        sides.append(Side(name, pair, lambda problem, seed: by_peer.solve(algorithm(), batch, problem, seed)))

    ours("mcts", "MCTS", strategy="mcts", width=4, decision="vote")
    peer("treequest", "MCTS", lambda: StandardMCTS(samples_per_action=4), batch=4)
    ours("ab_mcts by steps", "AB-MCTS", strategy="ab_mcts", generation="step")
    peer("treequest", "AB-MCTS", ABMCTSA, batch=1)
    ours("ab_mcts as it comes", "AB-MCTS", strategy="ab_mcts")
    ours("ab_mcts by steps", "AB-MCTS, 8 at a time", strategy="ab_mcts", generation="step", paths=8)
    peer("treequest", "AB-MCTS, 8 at a time", ABMCTSA, batch=8)
    return sides


async def run_round(engines: Engines, solve: Solve, problems: Sequence[Problem], in_flight: int, seed: int) -> Round:
    solved, seconds = await solve_all(solve, problems, in_flight, seed)
    right = 0
    for problem, found in zip(problems, solved, strict=True):
        right += found.answer is not None and await engines.environment.matcher.same(problem.answer, found.answer)
    return Round(right, sum(found.tokens for found in solved), seconds)


async def compare(config: AppConfig, count: int, nodes: int, in_flight: int, repeats: int) -> dict[Side, list[Round]]:
    """All sides in turn, with new seeds in every repeat; the side that goes first alternates."""
    problems = list(islice(draw_problems(Split.TEST, SEED), count))
    async with engines_of(config) as engines:
        sides = sides_of(engines, nodes)
        rounds: dict[Side, list[Round]] = {side: [] for side in sides}
        for side in sides:
            await run_round(engines, side.solve, problems[:WARM_UP], in_flight, SEED)
        for repeat in range(repeats):
            for side in sides if repeat % 2 == 0 else sides[::-1]:
                done = await run_round(engines, side.solve, problems, in_flight, 1000 * (repeat + 1))
                rounds[side].append(done)
                label = f"{side.pair:22}  {side.name:20}"
                console.print(f"repeat {repeat + 1}/{repeats}  {label}  {done.right}/{count}  {done.seconds:.1f} s")
    return rounds


def main(
    problems: Annotated[int, typer.Option(min=1, max=1000)] = 50,
    nodes: Annotated[int, typer.Option(min=1, max=2000)] = 64,
    in_flight: Annotated[int, typer.Option(min=1, max=256)] = 16,
    repeats: Annotated[int, typer.Option(min=1, max=50)] = 3,
) -> None:
    config = AppConfig.model_validate({"cache": {"enabled": False}})
    rounds = asyncio.run(compare(config, problems, nodes, in_flight, repeats))
    table = Table("search", "of", "right", "accuracy", "tokens", "seconds", "seconds / treequest")
    kept: list[dict[str, Any]] = []
    peers = {side.pair: done for side, done in rounds.items() if side.name == "treequest"}
    for side, done in rounds.items():
        ratios = [ours.seconds / peer.seconds for ours, peer in zip(done, peers[side.pair], strict=True)]
        accuracy = sum(each.right for each in done) / (problems * repeats)
        tokens = statistics.mean(each.tokens for each in done) / problems
        seconds = statistics.median(each.seconds for each in done)
        rights = ", ".join(str(each.right) for each in done)
        ratio = statistics.median(ratios)
        table.add_row(
            side.pair, side.name, rights, f"{accuracy:.1%}", f"{tokens:.0f}", f"{seconds:.1f}", f"{ratio:.2f}"
        )
        kept.append(
            {
                "search": side.pair,
                "of": side.name,
                "right": [each.right for each in done],
                "accuracy": round(accuracy, 4),
                "tokens_per_problem": round(tokens, 1),
                "seconds": [round(each.seconds, 2) for each in done],
                "seconds_over_treequest": [round(each, 3) for each in ratios],
            }
        )
    figures = {"problems": problems, "nodes": nodes, "in_flight": in_flight, "sides": kept}
    path = write_result("treequest_peer", figures)
    console.print(table)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
