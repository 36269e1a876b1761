"""Selects the branches of a call that are written when KV memory does not suffice for all: ``clamp: shrink``."""

from collections.abc import Callable, Sequence


def grant(asked: Sequence[int], least: Sequence[int], take: Callable[[int, int, bool], bool]) -> tuple[int, ...]:
    """Returns how many branches of each expansion are written, always its first ones.

    Needed branches are taken first and in any case. Optional branches follow in turn, in proportion to what each
    expansion asked for: an expansion with twice the branches gets twice as many while memory lasts. Once an optional
    branch of an expansion finds no memory, no more of that expansion are tried.

    Args:
        asked: number of branches of each expansion.
        least: number of needed branches of each expansion.
        take: called with the expansion's index, the branch's index and whether the branch is needed. Takes the branch;
            returns False where there is no memory for an optional one.
    """
    written = [min(pair) for pair in zip(asked, least, strict=True)]
    for expansion, needed in enumerate(written):
        for branch in range(needed):
            take(expansion, branch, True)
    optional = [
        (expansion, branch) for expansion, count in enumerate(asked) for branch in range(written[expansion], count)
    ]
    optional.sort(key=lambda pair: ((pair[1] + 1) / asked[pair[0]], pair))
    for expansion, branch in optional:
        if branch == written[expansion] and take(expansion, branch, False):
            written[expansion] += 1
    return tuple(written)
