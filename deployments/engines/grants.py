"""Which branches of a call are written, where KV memory does not suffice for all: ``clamp: shrink``."""

from collections.abc import Callable, Sequence


def grant(asked: Sequence[int], least: Sequence[int], take: Callable[[int, int, bool], bool]) -> tuple[int, ...]:
    """How many branches of each expansion are written, the first ones.

    Those that are needed come first, and are taken in any case. Then the others, in turn and in proportion to what
    each expansion asked for: where a strategy wanted twice as many, there are twice as many as long as there is room.
    Of an expansion for which there is none, no more are tried.

    Args:
        asked: branches of each expansion.
        least: how many of them are needed.
        take: takes the branch of that expansion and index, which the last argument says is needed; False where another
            has no room.
    """
    written = [min(pair) for pair in zip(asked, least, strict=True)]
    for expansion, needed in enumerate(written):
        for branch in range(needed):
            take(expansion, branch, True)
    others = [
        (expansion, branch) for expansion, count in enumerate(asked) for branch in range(written[expansion], count)
    ]
    others.sort(key=lambda other: ((other[1] + 1) / asked[other[0]], other))
    for expansion, branch in others:
        if branch == written[expansion] and take(expansion, branch, False):
            written[expansion] += 1
    return tuple(written)
