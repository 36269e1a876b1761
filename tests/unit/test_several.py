"""Several scorers as one: how rewards are calibrated and combined, and what becomes of failures."""

import asyncio
import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from deployments.config import AppConfig
from deployments.engines.histograms import Histogram, HistogramSum
from deployments.engines.rewards import parse_prm
from deployments.engines.rewards.several import SeveralScorer, SeveralSettings
from search.errors import ScorerError
from search.ports import ScoreItem, ScoreRequest


def quarter(question: str, steps: Sequence[str]) -> float:
    return 0.25


async def by_length(question: str, steps: Sequence[str]) -> float:
    return min(1.0, len(steps[-1]) / 10)


async def waits(question: str, steps: Sequence[str]) -> float:
    if question != "canary":
        await waits.gate.wait()  # type: ignore[attr-defined]
    return 0.5


THREAD = threading.Event()


def waits_in_a_thread(question: str, steps: Sequence[str]) -> float:
    assert THREAD.wait(20)
    return 0.5


def breaks(question: str, steps: Sequence[str]) -> float:
    raise KeyError(question)


def member(name: str, **calibration: float) -> dict[str, Any]:
    return {"prm": {"family": "function", "function": f"{__name__}:{name}"}, **calibration}


async def scorer(*members: dict[str, Any], **settings: Any) -> SeveralScorer:
    several = parse_prm({"family": "several", "of": members, **settings})
    assert isinstance(several, SeveralSettings)
    scorer = SeveralScorer(several)
    await scorer.start()
    return scorer


REQUEST = ScoreRequest("search", "question", (ScoreItem(("ab", "abcdefgh"), 2), ScoreItem(("abcdefghij",))), 60.0)


@pytest.mark.parametrize(("combine", "rows"), [("mean", [[0.225, 0.525], [0.625]]), ("min", [[0.2, 0.25], [0.25]])])
async def test_rewards_of_a_step_are_combined(combine: str, rows: list[list[float]]) -> None:
    several = await scorer(member("quarter"), member("by_length"), combine=combine)
    found = await several.score(REQUEST)
    assert [pytest.approx(row) for row in rows] == found
    assert several.stats()["calls"] == 6
    assert await several.canary() > 0
    assert await several.check_integrity() == []
    several.shutdown()


async def test_rewards_are_calibrated_on_their_logit_before_they_are_combined() -> None:
    several = await scorer(member("quarter", scale=0.5, offset=-1.0), member("by_length", scale=2.0), combine="min")
    found = await several.score(REQUEST)
    logits = (0.5 * math.log(0.25 / 0.75) - 1.0, 2.0 * math.log(0.2 / 0.8))
    low = [1 / (1 + math.exp(-logit)) for logit in logits]
    # A reward of 1 stays 1, whatever its calibration.
    assert found == [[pytest.approx(low[1]), pytest.approx(low[0])], [pytest.approx(low[0])]]
    several.shutdown()


async def test_one_failure_fails_the_call_and_leaves_nothing_open() -> None:
    several = await scorer(member("by_length"), member("breaks"))
    with pytest.raises(ScorerError, match="breaks failed: KeyError"):
        await several.score(REQUEST)
    assert await several.check_integrity() == []
    several.shutdown()


async def test_a_thread_that_nobody_waits_for_any_more_has_time_to_return() -> None:
    several = await scorer(member("waits_in_a_thread"), member("breaks"))
    with pytest.raises(ScorerError, match="breaks failed: KeyError"):
        await several.score(REQUEST)
    left = await several.check_integrity(settle_s=0.05)
    assert [sentence.split(" are ")[1] for sentence in left] == ["open"]
    asyncio.get_running_loop().call_later(0.1, THREAD.set)
    assert await several.check_integrity(settle_s=20) == []
    several.shutdown()


async def open_calls(several: SeveralScorer, gate: asyncio.Event, *names: str) -> list[asyncio.Task[Any]]:
    waits.gate = gate  # type: ignore[attr-defined]
    tasks = []
    for name in names:
        call = several.score(REQUEST._replace(search_id=name), alone=name == "alone")
        tasks.append(asyncio.create_task(call))
        await asyncio.sleep(0.01)
    return tasks


async def test_a_call_that_is_to_be_alone_waits_for_the_others_and_they_for_it() -> None:
    several = await scorer(member("waits"), member("quarter"))
    [first] = await open_calls(several, first_gate := asyncio.Event(), "a")
    suspect, last = await open_calls(several, gate := asyncio.Event(), "alone", "b")
    assert await several.canary() > 0, "canaries go on"
    assert "a" in several.at_engine
    assert not {"alone", "b"} & several._scorers[0].at_engine
    first_gate.set()
    await first
    await asyncio.sleep(0.01)
    assert several._scorers[0].at_engine == {"alone"}
    suspect.cancel()
    await asyncio.wait([suspect])
    gate.set()
    assert len(await last) == 2
    assert several.at_engine == frozenset()
    several.shutdown()


def test_histograms_of_several_engines_are_read_as_one() -> None:
    parts = Histogram((1.0, 2.0)), Histogram((1.0, 2.0))
    for part, value in zip(parts, (0.5, 1.5), strict=True):
        part.observe(value)
    both = HistogramSum(parts)
    assert both.figures == {"buckets": {"1": 1, "2": 2, "+Inf": 2}, "count": 2, "sum": 2.0}
    assert both.new_values() == [0.5, 1.5]
    assert both.new_values() == []


def test_checks_and_contexts_are_those_of_every_engine() -> None:
    models = [{"family": "math_shepherd", "model": "a", "max_model_len": 4096}, {"family": "value_head", "model": "b"}]
    config = AppConfig.model_validate({"prm": {"family": "several", "of": [{"prm": model} for model in models]}})
    assert list(config.engines) == ["generator", "prm.of.0.prm", "prm.of.1.prm"]
    assert config.search_context == 1024 - 64
    assert AppConfig.model_validate(config.model_dump()).prm == config.prm
