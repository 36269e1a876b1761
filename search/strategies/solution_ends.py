"""The last steps of whole solutions, which the generator writes in one go."""

from search.tree import Node


def last_step(sample: Node) -> Node:
    """The last node of the solution that begins with ``sample``."""
    while sample.children:
        [sample] = sample.children.values()
    return sample


def solution_end(sample: Node) -> Node:
    """The last node of the solution that begins with ``sample``, or of the one that it repeats."""
    return last_step(sample).first
