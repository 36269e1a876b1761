"""Lists names in messages."""

from collections.abc import Sequence


def listed(names: Sequence[str], most: int = 6) -> str:
    """The first ``most`` names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
