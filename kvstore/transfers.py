"""What a worker tells the scheduler of finished transfers when a request was given up while its prefix was loading.

vLLM frees a request's blocks on either report, stored or loaded, and dies of the second: an engine whose client hung up
at the wrong moment was gone. LMCache reports a request that has ended as stored at once where there is nothing to
store, although its load may still be writing into the blocks.
"""

from collections.abc import Set


def to_report(stored: Set[str], loaded: Set[str], loading: Set[str]) -> tuple[set[str], set[str]]:
    """What to tell of one look at the transfers, so that every ended request is told once, and none before its load
    has ended: one that is reported as stored while it loads is told when it has loaded.

    Args:
        stored: requests that have ended and need their blocks no more for storing; LMCache says so once.
        loaded: requests whose load has ended, well or not; once as well.
        loading: requests whose load was under way before this look.

    Returns ``stored`` and ``loaded`` as the scheduler may hear of them.
    """
    return set(stored - loading - loaded), set(loaded)
