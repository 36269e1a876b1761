"""Searches are counted and logged, however they end."""

import asyncio
import json
import logging

import pytest

from deployments.config import AnswerCacheSettings
from deployments.loop.delay import LoopDelay
from deployments.service.answer_cache import AnswerCache, Question
from deployments.telemetry import catalog
from deployments.telemetry.context import CLIENT_KEY
from deployments.telemetry.controller_telemetry import ControllerFigures
from deployments.telemetry.search_log import SearchLog
from search.errors import GeneratorError
from search.ports import TokenBeamRequest
from search.token_beam import TokenBeamSettings
from tests.unit.search.search_fakes import broken
from tests.unit.telemetry.telemetry_world import QUESTION, World


async def test_metrics_match_the_report_of_the_search() -> None:
    world = World()
    CLIENT_KEY.set("12345678")
    outcome = await world.search()
    published = world.publish()
    assert published.sum(catalog.SEARCHES, "beam_search", "finished", "false") == 1
    assert published.sum(catalog.GENERATED_TOKENS, "12345678") == outcome.cost.generated_tokens
    assert published.sum(catalog.STEPS_WRITTEN) == outcome.cost.nodes
    assert published.sum(catalog.STEPS_SCORED) == outcome.cost.scored_steps - outcome.cost.repeated_steps
    assert published.sum(catalog.STEPS_REPEATED) == outcome.cost.repeated_steps
    calls = [published.all(catalog.EXPAND_SECONDS, lane) for lane in ("first_steps", "demand")]
    assert len(calls[0]) == 1  # the first steps
    assert sum(map(len, calls)) == outcome.cost.expand_calls
    assert len(published.all(catalog.SCORE_SECONDS)) == outcome.cost.prm_calls
    assert len(published.all(catalog.SEARCH_SECONDS, "beam_search")) == 1
    assert published.sum(catalog.SEARCH_ROUNDS, "beam_search") >= 2
    cost = outcome.cost
    for subject, read, written, seconds in (
        ("search", cost.read_tokens, cost.written_tokens, cost.seconds),
        ("sample", cost.prompt_tokens, cost.sample_tokens, cost.sample_seconds),
    ):
        assert published.sum(catalog.COST_TOKENS, "beam_search", subject, "read") == read > 0
        assert published.sum(catalog.COST_TOKENS, "beam_search", subject, "written") == written > 0
        assert published.sum(catalog.COST_SECONDS, "beam_search", subject) == seconds > 0


async def test_paths_that_wander_are_counted_when_their_search_ends() -> None:
    world = World()
    outcome = await world.search(patience=1.0, seed=39)
    assert world.publish().sum(catalog.PATHS_WANDERING) == outcome.cost.wandering_paths > 0


async def test_a_call_is_timed_once_with_its_retries() -> None:
    world = World(attempts=20)
    world.generator.interruptions = 4
    outcome = await world.search()
    published = world.publish()
    calls = [published.all(catalog.EXPAND_SECONDS, lane) for lane in ("first_steps", "demand")]
    assert sum(map(len, calls)) == outcome.cost.expand_calls
    assert published.sum(catalog.RETRIES, "expand") == 4 - world.generator.interruptions > 0
    assert published.sum(catalog.STEPS_WRITTEN) == outcome.cost.nodes
    assert published.sum(catalog.GENERATED_TOKENS, "none") == outcome.cost.generated_tokens


async def test_counters_publish_only_changes() -> None:
    world = World()
    await world.search("s1")
    world.publish()
    await world.search("s2")
    published = world.publish()
    assert published.sum(catalog.SEARCHES, "beam_search", "finished", "false") == 1
    assert len(published.all(catalog.SEARCH_SECONDS, "beam_search")) == 1
    assert world.publish().names == set()


async def test_a_lost_scorer_is_counted_as_degraded() -> None:
    world = World()
    world.scorer.spoil = broken
    await world.search()
    assert world.publish().sum(catalog.SEARCHES, "beam_search", "finished", "true") == 1


async def test_a_search_that_fails_is_counted_by_its_error() -> None:
    world = World()
    world.generator.fail_after = 0
    with pytest.raises(GeneratorError):
        await world.search()
    published = world.publish()
    assert published.sum(catalog.SEARCHES, "beam_search", "GeneratorError", "false") == 1
    assert "banyan_search_cost_tokens_total" not in published.names


async def test_a_reached_limit_is_counted_by_its_name() -> None:
    world = World()
    world.generator.stall_after = 0
    with pytest.raises(TimeoutError):  # the error for the client if the limit is not its own
        await world.search(budget={"seconds": 0.05})
    assert world.publish().sum(catalog.SEARCHES, "beam_search", "LimitReached:seconds", "false") == 1


async def test_a_partial_answer_is_counted_by_its_stop_reason() -> None:
    world = World()
    outcome = await world.search(budget={"nodes": 9})
    assert outcome.stop_reason == "nodes"
    assert world.publish().sum(catalog.SEARCHES, "beam_search", "nodes", "false") == 1


async def test_a_search_whose_client_hung_up_is_counted_as_cancelled() -> None:
    world = World()
    world.generator.stall_after = 0
    searching = asyncio.create_task(world.search())
    await world.generator.stalled.wait()
    searching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await searching
    assert world.publish().sum(catalog.SEARCHES, "beam_search", "cancelled", "false") == 1


async def test_tokens_of_completions_count_for_their_key() -> None:
    world = World()
    request = TokenBeamRequest("c1", (), TokenBeamSettings(width=1, max_tokens=1), 1.0)
    await world.calls.token_beam(request)
    assert world.publish().sum(catalog.GENERATED_TOKENS, "none") == 11


async def test_slots_are_read_when_metrics_are_published() -> None:
    world = World()
    world.metrics.read(ControllerFigures(world.metrics, world.slots, LoopDelay()).read)
    world.generator.stall_after = 0
    searching = asyncio.create_task(world.search())
    await world.generator.stalled.wait()
    published = world.publish()
    assert (published.last(catalog.PLACES), published.last(catalog.PLACES_TAKEN)) == (4, 1)
    assert published.all(catalog.RETRIES, "expand") == [0]  # published before its first change
    searching.cancel()
    await asyncio.wait([searching])
    assert world.publish().last(catalog.PLACES_TAKEN) == 0


async def test_the_answer_cache_is_read_when_metrics_are_published() -> None:
    world, answers = World(), AnswerCache(AnswerCacheSettings())
    world.metrics.read(ControllerFigures(world.metrics, world.slots, LoopDelay(), answers).read)
    question = Question(b"digest", None, "6*7?")
    await answers.match(question)
    answers.keep(question, None, await world.search(), [])
    await answers.match(question)
    published = world.publish()
    found = {name: published.sum(catalog.ANSWERS_LOOKED_UP, name) for name in answers.lookups}
    assert found == {"same": 1, "similar": 0, "miss": 1}
    assert published.last(catalog.ANSWERS_KEPT) == 1
    assert published.last(catalog.ANSWERS_BYTES) == answers.memory_bytes > 0
    assert (published.sum(catalog.ANSWERS_EVICTED), published.sum(catalog.EMBEDDINGS_FAILED)) == (0, 0)


async def test_every_search_has_one_log_line_of_json(caplog: pytest.LogCaptureFixture) -> None:
    world = World(log=SearchLog())
    CLIENT_KEY.set("12345678")
    with caplog.at_level(logging.INFO, "banyan.search"):
        outcome = await world.search()
        world.generator.fail_after = 0
        with pytest.raises(GeneratorError):
            await world.search("s2")
    first, second = (json.loads(record.getMessage()) for record in caplog.records)
    assert first.pop("seconds") >= 0
    assert first == {
        "search": "s1",
        "key": "12345678",
        "strategy": "beam_search",
        "n": 8,
        "ending": "finished",
        "degraded": False,
        "rounds": first["rounds"],
        "nodes": outcome.cost.nodes,
        "steps": outcome.cost.nodes,
        "scored_steps": outcome.cost.scored_steps,
        "prompt_tokens": 5,
        "generated_tokens": outcome.cost.generated_tokens,
        "expand_calls": outcome.cost.expand_calls,
        "score_calls": outcome.cost.prm_calls,
        "critique_tokens": outcome.cost.prm_generated_tokens,
    }
    assert (second["search"], second["ending"]) == ("s2", "GeneratorError")
    assert QUESTION not in caplog.text


async def test_texts_are_logged_if_configured(caplog: pytest.LogCaptureFixture) -> None:
    world = World(log=SearchLog(texts=True))
    with caplog.at_level(logging.INFO, "banyan.search"):
        outcome = await world.search()
    line = json.loads(caplog.records[0].getMessage())
    assert (line["question"], line["answer"]) == (QUESTION, outcome.selection.answer)
