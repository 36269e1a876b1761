"""A reward model and a function in one replica, beside another engine of the same process."""

import math
from collections.abc import Sequence

import pytest

from deployments.engines.rewards import parse_prm
from deployments.engines.rewards.several import SeveralScorer, SeveralSettings
from deployments.engines.scoring import ScoringEngine
from search.errors import ScorerError
from search.ports import ScoreItem, ScoreRequest
from tests.engine.conftest import SETTLE_S, quiet

pytestmark = pytest.mark.asyncio(loop_scope="session")

STEPS = ("2 + 3 = 5\n\n", "5 + 4 = 9\n\n")


def share_of_letters(question: str, steps: Sequence[str]) -> float:
    return len(steps[-1]) / sum(map(len, steps))


async def test_an_engine_and_a_function_score_as_one_and_die_as_one(prm_model: str, scoring: ScoringEngine) -> None:
    model = {"model": prm_model, "kv_cache_memory_bytes": 32 << 20}
    function = {"family": "function", "function": f"{__name__}:share_of_letters"}
    settings = parse_prm({"family": "several", "of": [{"prm": function}, {"prm": model, "scale": 2.0, "offset": 1.0}]})
    assert isinstance(settings, SeveralSettings)
    several = SeveralScorer(settings)
    try:
        with quiet():
            await several.start()
        request = ScoreRequest("search", "Start with 2.", (ScoreItem(STEPS, 2), ScoreItem(STEPS[:1])), 600.0)
        found, alone = await several.score(request), await scoring.score(request)
        shares = [[1.0, 0.5], [1.0]]
        expected = [
            [(share + 1 / (1 + (1 / each - 1) ** 2 * math.exp(-1))) / 2 for each, share in zip(*row, strict=True)]
            for row in zip(alone, shares, strict=True)
        ]
        assert found == [pytest.approx(row, abs=1e-5) for row in expected]
        assert await several.canary() > 0
        stats = several.stats()
        assert stats["items_begun"] == len(request.items) + 1, "and a canary"
        assert stats["calls"] == 4
        assert several.histograms["engine_step_requests"].figures["sum"] == stats["items_begun"]
        assert await several.check_integrity(SETTLE_S) == []
        several.check_alive()
        several._scorers[1].shutdown()
        with pytest.raises(ScorerError):
            several.check_alive()
    finally:
        with quiet():
            several.shutdown()
