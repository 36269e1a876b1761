"""Extracts training data from a finished tree: a value for each step, and example paths.

Source: Wu et al. 2025, "DeepSearch" (arXiv 2509.25454). Unlike in a search, the value of an ended path is known: 1 if
its answer is right, -1 if not. Each path counts as often as it was written. Lookaheads and rollouts do not count,
because they are not paths of the tree. Nor do paths that read other solutions, because they answer another prompt.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from enum import StrEnum
from typing import NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict

from search.answers.extraction import extract_answer
from search.snapshot import NodeView, TreeView
from search.strategies.mcts.backup import backed_up
from search.tree import NodeId, NodeStatus

MAX_ACCURACY = 0.25
"""Largest share of right paths for a problem to count as hard."""


AnyNode = TypeVar("AnyNode", bound=NodeView)


class Kind(StrEnum):
    """Why a path is an example."""

    CORRECT = "correct"
    """A right path of a hard problem, on which most paths are wrong."""
    INCORRECT = "incorrect"
    """The wrong path with the lowest mean entropy, if no path is right."""


class TrainingNode(NodeView):
    """One step of the tree with its value."""

    value: float | None
    """Value backed up from the ended paths through it (`search.strategies.mcts.backup`); None if none has ended."""


_NODE_FIELDS = set(NodeView.model_fields)


class TrainingExample(BaseModel):
    """One path to train on."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Kind
    path: list[NodeId]
    """Its nodes, first step first."""
    text: str
    """Its steps' texts joined."""
    answer: str | None
    """None if the path ended without one."""
    mean_entropy: float | None
    """Minus the mean log-probability of all its tokens (nats per token); None if one is unknown or infinite."""
    values: list[float]
    """The values of its nodes."""


class TrainingData(NamedTuple):
    """The training data of one tree."""

    accuracy: float | None
    """Share of right paths among the ended ones; None if none has ended."""
    nodes: list[TrainingNode]
    examples: list[TrainingExample]


def answers_of(tree: TreeView) -> dict[NodeId, str | None]:
    """The answer of every path that has ended, by the id of its last node; None for a path without one."""
    return {path[-1].id: extract_answer(tree.open_thought + path_text(path)) for path in ended_paths(tree.nodes)}


def training_data(tree: TreeView, right: Set[NodeId]) -> TrainingData:
    """The training data of ``tree``; ``right`` are the ids of the last nodes of the paths with the right answer.

    If some paths are right, but at most a quarter of them, the examples are all right paths. If none is right, the
    example is the path with the lowest mean entropy, the first by id on a tie. Otherwise there are no examples.
    """
    ended = ended_paths(tree.nodes)
    correct = [path for path in ended if path[-1].id in right]
    written = sum(path[-1].count for path in ended)
    share = sum(path[-1].count for path in correct)
    accuracy = share / written if ended else None
    values = backed_up(
        ([node.id for node in path], 1.0 if path[-1].id in right else -1.0)
        for path in ended
        for _ in range(path[-1].count)
    )
    if not correct:
        examples = [_example(Kind.INCORRECT, path, values, tree.open_thought) for path in _surest(ended)]
    elif share <= MAX_ACCURACY * written:
        examples = [_example(Kind.CORRECT, path, values, tree.open_thought) for path in correct]
    else:
        examples = []
    nodes = [
        TrainingNode(**node.model_dump(include=_NODE_FIELDS), value=values.get(node.id))
        for node in sorted(tree.nodes, key=lambda node: node.id)
        if not (node.is_lookahead or node.reads)
    ]
    return TrainingData(accuracy, nodes, examples)


def mean_entropy(path: Sequence[NodeView]) -> float | None:
    """Minus the mean log-probability of the path's written tokens, in nats per token. None if a step's log-probability
    is unknown or minus infinity, or there are no tokens. The mean is over tokens, not steps, so it does not depend on
    how the text is split into steps."""
    written = [node for node in path if node.written_tokens]
    logprobs = [node.logprob for node in written if node.logprob is not None and math.isfinite(node.logprob)]
    if not written or len(logprobs) < len(written):
        return None
    return 0.0 - math.fsum(logprobs) / sum(node.written_tokens for node in written)


def ended_paths(nodes: Iterable[AnyNode]) -> list[list[AnyNode]]:
    """The ended paths of the tree with these nodes, first step first; ordered by the id of the last node."""
    known = {node.id: node for node in nodes}
    ended = (each for each in known.values() if each.status is NodeStatus.TERMINAL)
    ends = sorted(each.id for each in ended if not (each.is_lookahead or each.reads))
    return [[known[end[:depth]] for depth in range(1, len(end) + 1)] for end in ends]


def path_text(path: Iterable[NodeView]) -> str:
    """The text of a path."""
    return "".join(node.text or "" for node in path)


def _surest(paths: Sequence[Sequence[NodeView]]) -> list[Sequence[NodeView]]:
    """The path with the lowest mean entropy, the first on a tie, as a list; empty if no path's entropy is known."""
    known = [(entropy, path) for path in paths if (entropy := mean_entropy(path)) is not None]
    return [path for _, path in sorted(known, key=lambda each: each[0])[:1]]


def _example(
    kind: Kind, path: Sequence[NodeView], values: Mapping[NodeId, float], open_thought: str
) -> TrainingExample:
    text = path_text(path)
    return TrainingExample(
        kind=kind,
        path=[node.id for node in path],
        text=text,
        answer=extract_answer(open_thought + text),
        mean_entropy=mean_entropy(path),
        values=[values[node.id] for node in path],
    )
