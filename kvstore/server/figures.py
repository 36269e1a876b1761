"""Metrics of a cache server: bytes in use, and chunks written, read and evicted."""

from collections import Counter
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from kvstore.server.cache_server import CacheAddress, CacheServerError, request_text

GAUGES = {"lmcache_mp_l1_memory_usage_bytes": "lmcache_used_bytes"}
TOTALS = {
    "lmcache_mp_l1_write_chunks_total": "lmcache_written_chunks",
    "lmcache_mp_l1_read_chunks_total": "lmcache_read_chunks",
    "lmcache_mp_l1_evicted_chunks_total": "lmcache_evicted_chunks",
    "lmcache_mp_l2_store_completed_objects_chunks_total": "lmcache_second_tier_written_chunks",
    "lmcache_mp_l2_prefetch_load_completed_chunks_total": "lmcache_second_tier_read_chunks",
}
"""LMCache's names and ours. LMCache reports a counter once it is above zero."""
UP = "lmcache_up"


class ServerFigures:
    """Metrics of one server. They continue over its restarts, after which its own counters begin at zero."""

    def __init__(self) -> None:
        self._last: Counter[str] = Counter()
        self._figures: dict[str, int] = {}

    def read(self, address: CacheAddress) -> Mapping[str, int]:
        """Bytes and counts by name, as the server has reported them. If it does not answer within three seconds,
        ``lmcache_up`` is 0 and the other values stay as they were."""
        try:
            current = parsed(request_text(address, "GET", "/metrics"))
        except CacheServerError:
            self._figures[UP] = 0
            return dict(self._figures)
        self._figures[UP] = 1
        for theirs, value in current.items():
            if theirs in GAUGES:
                self._figures[GAUGES[theirs]] = value
            else:
                previous = self._last[theirs] if value >= self._last[theirs] else 0
                self._figures[TOTALS[theirs]] = self._figures.get(TOTALS[theirs], 0) + value - previous
        self._last = current
        return dict(self._figures)


def parsed(text: str) -> Counter[str]:
    """Sum over all labels of each metric in `GAUGES` and `TOTALS`. Raises CacheServerError if it cannot be parsed."""
    found: Counter[str] = Counter()
    # Only these lines are parsed: the parser is slow, and the other metrics grow with the number of API keys.
    wanted = "".join(f"{line}\n" for line in text.splitlines() if line.startswith((*GAUGES, *TOTALS)))
    try:
        for family in text_string_to_metric_families(wanted):
            for sample in family.samples:
                if sample.name in GAUGES or sample.name in TOTALS:
                    found[sample.name] += int(sample.value)
    except (ValueError, ArithmeticError, LookupError) as error:
        raise CacheServerError(f"the cache server's metrics cannot be parsed: {error}") from error
    return found
