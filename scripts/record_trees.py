"""Records the trees of all strategies, to be compared before and after a change that must not change any.

    python scripts/record_trees.py before.json
    python scripts/record_trees.py after.json --compare before.json

32 searches of 20 problems each, by a generator and a scorer without a model: steps follow from seeds and texts alone,
rewards from texts. Two recordings of the same code are the same file. What is recorded is the ``search`` package that
Python imports: with ``PYTHONPATH`` naming another checkout, that one's.
"""

import argparse
import asyncio
import hashlib
import json
import random
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import search
from search import (
    AnswerMatcher,
    Child,
    ChildGroup,
    ExpandRequest,
    ScoreRequest,
    SearchEnvironment,
    Step,
    StepEnd,
    StopCondition,
    parse_search,
    run_search,
    tree_as_json,
)

PROBLEMS = 20
CONTEXT_TOKENS = 2048
VARIETIES = (0, 2, 4, 8)
"""In how many ways a text can go on, by problem; 0: each seed writes another step."""
READING: Mapping[str, Mapping[str, Any]] = {
    "select": {"strategy": "select", "n": 16, "window": 3},
    "fuse": {"strategy": "fuse", "n": 9},
    "fuse, by rewards": {"strategy": "fuse", "schedule": [12, 6, 3], "weights": "rewards", "selection": "weighted"},
    "refine": {"strategy": "refine", "n": 5, "feedback": "critique"},
    "ab_mcts, refine": {"strategy": "ab_mcts", "iterations": 16, "paths": 3, "generation": "refine"},
}
"""Searches in which solutions are read."""
COMPOSES = "compose" in SearchEnvironment.__dataclass_fields__
"""Whether the recorded checkout can do that."""
SEARCHES: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"strategy": "greedy"},
    "self_consistency": {"strategy": "self_consistency", "n": 9},
    "self_consistency, unmerged": {"strategy": "self_consistency", "n": 16, "merge_siblings": False},
    "best_of_n": {"strategy": "best_of_n", "n": 9},
    "best_of_n, naive by product": {"strategy": "best_of_n", "n": 16, "aggregation": "prod", "selection": "naive"},
    "beam_search": {"strategy": "beam_search", "n": 16, "m": 4},
    "beam_search, unmerged by mean": {
        "strategy": "beam_search",
        "n": 12,
        "m": 3,
        "aggregation": "mean",
        "merge_siblings": False,
    },
    "beam_search, lookahead": {"strategy": "beam_search", "n": 6, "m": 3, "lookahead": 2},
    "beam_search, to the end of 30 nodes": {
        "strategy": "beam_search",
        "n": 8,
        "m": 2,
        "budget": {"nodes": 30},
        "finish_to_eos": True,
        "max_depth": 4,
    },
    "dvts": {"strategy": "dvts", "n": 9, "m": 3},
    "dvts, lookahead by minimum": {"strategy": "dvts", "n": 16, "m": 4, "lookahead": 1, "aggregation": "min"},
    "dvts, 700 tokens": {"strategy": "dvts", "n": 6, "m": 3, "budget": {"tokens": 700}, "max_step_tokens": 20},
    "rebase": {"strategy": "rebase", "n": 9},
    "rebase, unmerged by product": {"strategy": "rebase", "n": 16, "aggregation": "prod", "merge_siblings": False},
    "rebase, lookahead": {"strategy": "rebase", "n": 8, "lookahead": 1, "balance_temperature": 1.0},
    "ets": {"strategy": "ets", "n": 9},
    "ets, tokens": {"strategy": "ets", "n": 16, "node_cost": "tokens", "diversity_weight": 2.0},
    "ets, unmerged with short paths": {"strategy": "ets", "n": 16, "merge_siblings": False, "max_path_tokens": 60},
    "particle_filter": {"strategy": "particle_filter", "n": 9},
    "particle_filter, lookahead": {"strategy": "particle_filter", "n": 16, "lookahead": 1, "resample_below": 1.0},
    "mcts": {"strategy": "mcts", "iterations": 12, "paths": 3},
    "mcts, rollouts and logprobs": {"strategy": "mcts", "iterations": 9, "value": "both", "prior": "logprob"},
    "mcts, unmerged vote": {
        "strategy": "mcts",
        "iterations": 16,
        "width": 3,
        "prior": "reward",
        "decision": "vote",
        "merge_siblings": False,
    },
    "ab_mcts": {"strategy": "ab_mcts", "iterations": 12, "paths": 4},
    "ab_mcts, steps": {"strategy": "ab_mcts", "iterations": 25, "generation": "step", "posterior": "beta"},
    "frontier": {"strategy": "frontier", "iterations": 9, "width": 4},
    "frontier, 40 nodes": {"strategy": "frontier", "iterations": 20, "width": 8, "budget": {"nodes": 40}},
    **READING,
}
"""The ``search`` fields by name: every strategy, none of whose trees depends on what arrives first."""

Recording = dict[str, dict[str, Any]]
"""What is known of each tree, by search and problem."""


def die(*parts: object) -> random.Random:
    """A source of chance that is the same for the same parts, in every process."""
    return random.Random(hashlib.sha256(repr(parts).encode()).digest())


def write_step(seed: int, prefix: Sequence[int], max_tokens: int) -> Step:
    """A sum, or in one of five cases the answer; a token is a byte."""
    chance = die("step", seed, tuple(prefix))
    a, b = chance.randint(1, 4), chance.randint(1, 4)
    text, end = f"{chance.choice(('So', 'Then', 'Add'))} {a} + {b} = {a + b}.\n\n", StepEnd.DELIMITER
    if chance.random() < 1 / 5:
        text, end = rf"The answer is \boxed{{{chance.randint(0, 4)}}}", StepEnd.END_OF_SEQUENCE
    if len(text) > max_tokens:
        text, end = text[:max_tokens], StepEnd.LENGTH
    token_ids = tuple(text.encode())
    logprobs = tuple(-((token * 7 + seed) % 16) / 16 for token in token_ids)
    return Step(token_ids, text, end, sum(logprobs), logprobs)


def composed(messages: object, template: str, shown: Sequence[str], note: str) -> Any:
    """The prompt of a context: a byte is a token."""
    prompt = import_module("search.prompt").Prompt
    return prompt(tuple("\n".join((template, note, *shown)).encode()))


def write_solution(seed: int, prefix: tuple[int, ...], max_tokens: int) -> tuple[Step, ...]:
    if bytes(prefix).startswith(b"select\n"):
        text = f"Judgment: {die('choice', seed, prefix).randint(0, 3)}"
        return (Step(tuple(text.encode()), text, StepEnd.END_OF_SEQUENCE),)
    steps = [write_step(seed, prefix, max_tokens)]
    while steps[-1].end is StepEnd.DELIMITER:
        prefix += steps[-1].token_ids
        max_tokens -= len(steps[-1].token_ids)
        if max_tokens == 0:
            steps[-1] = steps[-1]._replace(end=StepEnd.LENGTH)
        else:
            steps.append(write_step(seed, prefix, max_tokens))
    return tuple(steps)


class Models:
    """A generator and a scorer without a model."""

    def __init__(self, variety: int) -> None:
        """``variety``: one of `VARIETIES`."""
        self._variety = variety

    async def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
        for expansion in request.expansions:
            children = []
            for branch in expansion.branches:
                seed = branch.seed % self._variety if self._variety else branch.seed
                if request.stop_condition is StopCondition.SOLUTION:
                    steps = write_solution(seed, expansion.prefix, branch.max_tokens)
                else:
                    steps = (write_step(seed, expansion.prefix, branch.max_tokens),)
                if not request.logprobs:
                    steps = tuple(step._replace(logprob=None, token_logprobs=None) for step in steps)
                children.append(Child(expansion.parent, branch.index, steps, cached_tokens=0))
            await asyncio.sleep(0)
            yield ChildGroup(tuple(children))

    async def score(self, request: ScoreRequest) -> list[list[float]]:
        """One of 16 rewards for each step, so that ties do happen."""
        return [
            [
                die("reward", item.steps[:end]).randint(0, 15) / 15
                for end in range(len(item.steps) - item.unscored + 1, len(item.steps) + 1)
            ]
            for item in request.items
        ]


async def recorded(
    searches: Mapping[str, Mapping[str, Any]] = SEARCHES, problems: Sequence[int] = range(PROBLEMS)
) -> Recording:
    """The trees of each search of each problem."""
    matcher = AnswerMatcher()
    try:
        return {
            f"{name} / {problem}": await _tree(settings, problem, matcher)
            for name, settings in searches.items()
            if name not in READING or COMPOSES
            for problem in problems
        }
    finally:
        matcher.close()


async def _tree(settings: Mapping[str, Any], problem: int, matcher: AnswerMatcher) -> dict[str, Any]:
    models = Models(VARIETIES[problem % len(VARIETIES)])
    surroundings: dict[str, Any] = {
        "generator": models,
        "scorer": models,
        "context_tokens": CONTEXT_TOKENS,
        "matcher": matcher,
    }
    outcome = await run_search(
        f"problem {problem}",
        tuple(f"problem {problem}".encode()),
        parse_search({"seed": problem, **settings}),
        SearchEnvironment(**surroundings | _admission() | ({"compose": composed} if COMPOSES else {})),
        search_id=f"{problem}",
    )
    tree = json.dumps(tree_as_json(outcome.tree), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return {
        "tree": hashlib.sha256(tree.encode()).hexdigest(),
        "answer": outcome.selection.answer,
        "nodes": outcome.cost.nodes,
        "generated_tokens": outcome.cost.generated_tokens,
    }


def _admission() -> dict[str, Any]:
    """Checkouts that have a `search.gate` want one in each environment; others have no place for it."""
    try:
        return {"gate": import_module("search.gate").Gate()}
    except ModuleNotFoundError:
        return {}


def as_text(recording: Recording) -> str:
    """JSON with a line for each tree, for ``diff``."""
    lines = (f"{json.dumps(name)}: {json.dumps(known)}" for name, known in recording.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def differing(recording: Recording, other: Recording) -> list[str]:
    """The names of the trees that are not the same in both, or missing in one of them."""
    return [name for name in {**recording, **other} if recording.get(name) != other.get(name)]


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path, metavar="OUT.json", help="where the recording goes")
    parser.add_argument("--compare", type=Path, metavar="OTHER.json", help="fail if a tree differs there")
    arguments = parser.parse_args()
    other: Recording = json.loads(arguments.compare.read_text()) if arguments.compare else {}
    recording = asyncio.run(recorded())
    arguments.output.write_text(as_text(recording))
    print(f"{len(recording)} trees of {Path(search.__file__).parent}", file=sys.stderr)
    if arguments.compare is None:
        return 0
    if not any(name.startswith(tuple(READING)) for name in other):
        recording = {name: tree for name, tree in recording.items() if not name.startswith(tuple(READING))}
    different = differing(recording, other)
    print(f"{len({**recording, **other}) - len(different)} trees are equal, {len(different)} differ", file=sys.stderr)
    for name in different[:10]:
        print(f"  {name}: {recording.get(name)}, not {other.get(name)}", file=sys.stderr)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
