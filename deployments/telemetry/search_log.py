"""One JSON log line per search.

It has its own switch, ``telemetry.search_log``: with all loggers at INFO the lines would drown among Ray's and vLLM's
lines about every call, and at WARNING, Banyan's default, they would not be written.
"""

import json
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deployments.telemetry.searches import SearchRecord

logger = logging.getLogger("banyan.search")


class SearchLog:
    """Writes at INFO on ``banyan.search``."""

    def __init__(self, texts: bool = False) -> None:
        """``texts``: whether to log question and answer."""
        self._texts = texts

    def write(self, record: "SearchRecord") -> None:
        line = {
            "search": record.job.search_id,
            "key": record.key,
            "strategy": record.strategy,
            "n": record.n,
            "ending": record.ending,
            "degraded": record.degraded,
            "seconds": round(record.seconds, 3),
            "rounds": record.rounds,
            "nodes": record.nodes,
            "steps": record.cost.written_steps,
            "scored_steps": record.cost.scored_steps,
            "prompt_tokens": record.job.prompt.size,
            "generated_tokens": record.cost.generated_tokens,
            "expand_calls": record.cost.expand_calls,
            "score_calls": record.cost.prm_calls,
            "critique_tokens": record.cost.prm_generated_tokens,
        }
        if self._texts:
            line |= {"question": record.job.question, "answer": record.answer}
        logger.info("%s", json.dumps(line))
