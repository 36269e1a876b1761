"""Token usage of a batch: the sum over its replies."""

from cluster.jobs.outputs import Damaged, Outputs
from deployments.store import BatchUsage


def usage_of(outputs: Outputs) -> BatchUsage:
    """Sums the usage of a job's results. Chats and responses name the counts differently.

    Raises:
        Damaged: a result is not a reply.
    """
    total = dict.fromkeys(BatchUsage.model_fields, 0)
    for line in outputs.results():
        try:
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
        except (AttributeError, LookupError, TypeError):
            raise Damaged(outputs.path, f"has a result that is not a reply, for line {line['line']}") from None
    return BatchUsage(**total)
