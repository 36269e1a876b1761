"""Token usage of a batch: the sum over its replies."""

from collections.abc import Iterable
from typing import Any

from deployments.store import BatchUsage


def usage_of(results: Iterable[dict[str, Any]]) -> BatchUsage:
    """Sums the usage of a job's result lines. Chats and responses name the counts differently; scores have none."""
    total = dict.fromkeys(BatchUsage.model_fields, 0)
    for line in results:
        usage = line["response"]["body"].get("usage") or {}
        given = "input" if "input_tokens" in usage else "prompt"
        written = "output" if "output_tokens" in usage else "completion"
        counts = {
            "input_tokens": usage.get(f"{given}_tokens"),
            "cached_tokens": (usage.get(f"{given}_tokens_details") or {}).get("cached_tokens"),
            "output_tokens": usage.get(f"{written}_tokens"),
            "reasoning_tokens": (usage.get(f"{written}_tokens_details") or {}).get("reasoning_tokens"),
        }
        for name, count in counts.items():
            total[name] += count or 0
    return BatchUsage(**total)
