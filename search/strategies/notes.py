"""What a prompt tells its reader beside the solutions."""

from collections.abc import Sequence

from search.tree import Node, SearchTree

MAX_NOTE_CHARS = 8192
"""Longest remark or critique of a solution that a note quotes."""


def counts_note(counts: Sequence[int]) -> str:
    """How often the answers of the solutions were found, in the order shown; empty if each was found once,
    or nothing is known of it."""
    if max(counts, default=1) == 1:
        return ""
    listed = ", ".join(map(str, counts))
    return f"Number of independent solutions with the same answer as each of these, in the order shown: {listed}."


def criteria_note(criteria: str) -> str:
    return f"Judge the solutions by these criteria:\n{criteria.strip()}" if criteria.strip() else ""


def known_of(tree: SearchTree, solution: Node, rewards: bool = True) -> str:
    """What is known of a solution, given by its last node: the ``rewards`` of its steps, and what its checks showed."""
    rated = ", ".join(f"{node.reward:.2f}" for node in solution.path if rewards and node.reward is not None)
    verified = f"A verifier rated the candidate's steps, from 0 (wrong) to 1 (right), in their order: {rated}."
    return joined(verified if rated else "", tree.remarks.get(solution.id, "")[:MAX_NOTE_CHARS])


def critique_note(critique: str) -> str:
    return f"A review of the candidate:\n{critique.strip()[:MAX_NOTE_CHARS]}" if critique.strip() else ""


def joined(*notes: str) -> str:
    """One note of several, without the empty ones."""
    return "\n\n".join(filter(None, notes))
