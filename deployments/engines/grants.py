"""The order in which the branches of a call get KV memory that does not suffice for all: ``clamp: shrink``."""

from collections.abc import Sequence


def grant_order(asked: Sequence[int], least: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the order in which branches are tried, each as the index of its expansion and its own.

    Required branches come first. Optional branches follow in turn, in proportion to what each expansion asked for: an
    expansion with twice the branches gets twice as many while memory lasts. Once a branch finds no memory, the caller
    tries no more of its expansion, so that the branches written are always the first ones.

    Args:
        asked: number of branches of each expansion.
        least: number of required branches of each expansion, the first of them.
    """
    branches = [(expansion, branch) for expansion, count in enumerate(asked) for branch in range(count)]

    def share(pair: tuple[int, int]) -> float:
        expansion, branch = pair
        return 0.0 if branch < least[expansion] else (branch + 1) / asked[expansion]

    return sorted(branches, key=share)
