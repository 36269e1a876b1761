"""What a cache server says of itself to Prometheus: how much it keeps, and what came and went."""

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
"""LMCache's names, of which it tells those that have moved, and ours."""
UP = "lmcache_up"


class ServerFigures:
    """Of one server, over its restarts: it counts from zero again, what is told of it does not."""

    def __init__(self) -> None:
        self._last: Counter[str] = Counter()
        self._told: dict[str, int] = {}

    def read(self, address: CacheAddress) -> Mapping[str, int]:
        """Bytes and counts by name, of what the server has told; where it does not answer within three seconds
        ``lmcache_up`` is 0, and the others are as they were."""
        try:
            said = parsed(request_text(address, "GET", "/metrics"))
        except CacheServerError:
            self._told[UP] = 0
            return dict(self._told)
        self._told[UP] = 1
        for theirs, value in said.items():
            if theirs in GAUGES:
                self._told[GAUGES[theirs]] = value
            else:
                since = self._last[theirs] if value >= self._last[theirs] else 0
                self._told[TOTALS[theirs]] = self._told.get(TOTALS[theirs], 0) + value - since
        self._last = said
        return dict(self._told)


def parsed(text: str) -> Counter[str]:
    """Sums over all labels, of what is in `GAUGES` and `TOTALS`. Raises CacheServerError where it is no such text."""
    found: Counter[str] = Counter()
    # The rest, which grows with the API keys, is not looked at: the parser takes its time.
    wanted = "".join(f"{line}\n" for line in text.splitlines() if line.startswith((*GAUGES, *TOTALS)))
    try:
        for family in text_string_to_metric_families(wanted):
            for sample in family.samples:
                if sample.name in GAUGES or sample.name in TOTALS:
                    found[sample.name] += int(sample.value)
    except (ValueError, ArithmeticError, LookupError) as error:
        raise CacheServerError(f"the cache server's metrics are none: {error}") from error
    return found
