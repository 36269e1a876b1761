"""The controller dies with all its searches: clients learn of it at once, and our client retries to the same tree."""

import asyncio
import time
from typing import Any

import httpx

from cluster.client.client import Client
from cluster.client.replies import Completion, Event, Question, Restarted, StepScored
from tests.faults.processes import below, replicas, running
from tests.serve.application import REPAIR_S, Application, kill, problems, until

WIDE = {"strategy": "beam_search", "n": 64, "m": 4}
SEARCHES = 4
TOLD_WITHIN_S = 60.0


class Killing:
    """Kills the controller when the first search has shown a step."""

    def __init__(self) -> None:
        self.at: float | None = None

    def seen_a_step(self) -> None:
        if self.at is None:
            [controller] = replicas("SearchController")
            self.bereft = below(controller.process)
            self.at = time.monotonic()
            kill(controller.process.pid)


def questions() -> list[Question]:
    return [
        Question(problem.text, WIDE, seed=400 + index)
        for index, problem in enumerate(problems(SEARCHES, seed=83, level=5))
    ]


async def streamed(client: Client, question: Question, killing: Killing | None) -> tuple[list[Event], Completion]:
    """All events, the reply last. ``killing`` is called at each step."""
    events: list[Event] = []
    async for event in client.stream(question):
        events.append(event)
        if killing is not None and isinstance(event, StepScored):
            killing.seen_a_step()
    completion = events[-1]
    assert isinstance(completion, Completion)
    return events, completion


def restarts_of(events: list[Event]) -> list[int]:
    return [index for index, event in enumerate(events) if isinstance(event, Restarted)]


def steps_of(events: list[Event]) -> dict[Any, Any]:
    """The steps after the last restart."""
    valid = events[max(restarts_of(events), default=-1) + 1 :]
    return {event.node: (event.text, event.reward) for event in valid if isinstance(event, StepScored)}


def test_our_client_gets_the_same_trees(whole: Application) -> None:
    async def all_streamed(killing: Killing | None) -> list[tuple[list[Event], Completion]]:
        async with Client(whole.url, whole.key, timeout_s=REPAIR_S) as client:
            return await asyncio.gather(*(streamed(client, question, killing) for question in questions()))

    undisturbed = asyncio.run(all_streamed(None))
    killing = Killing()
    disturbed = asyncio.run(all_streamed(killing))
    assert killing.at is not None
    assert any(restarts_of(events) for events, _ in disturbed)
    for (events, reply), (events_then, reply_then) in zip(disturbed, undisturbed, strict=True):
        assert steps_of(events) == steps_of(events_then)
        assert reply.text == reply_then.text
        assert reply.search.answers == reply_then.search.answers
    until(lambda: not running(killing.bereft), "what the controller had started has ended", 60.0)


def test_any_client_gets_an_error_in_time(whole: Application) -> None:
    """Streams and plain requests end with a 5xx or a closed connection; none waits until its deadline."""
    killing = Killing()

    async def plain(client: httpx.AsyncClient, question: Question) -> str:
        body = request_of(question)
        try:
            reply = await client.post("/v1/chat/completions", json=body)
            return f"status {reply.status_code}"
        except httpx.TransportError as error:
            return f"closed: {error!r}"

    async def stream(client: httpx.AsyncClient, question: Question) -> str:
        lines: list[str] = []
        try:
            async with client.stream("POST", "/v1/chat/completions", json=request_of(question, stream=True)) as reply:
                async for line in reply.aiter_lines():
                    if '"search_event"' in line:
                        killing.seen_a_step()
                    lines.append(line)
        except httpx.TransportError as error:
            return f"closed: {error!r}"
        return "whole" if "data: [DONE]" in lines else f"ended after {lines[-2:]}"

    async def all_asked() -> list[str]:
        async with whole.async_client(httpx.Timeout(REPAIR_S)) as client, asyncio.timeout(REPAIR_S):
            asked = [*(plain(client, each) for each in questions()), *(stream(client, each) for each in questions())]
            return await asyncio.gather(*asked)

    ends = asyncio.run(all_asked())
    assert killing.at is not None
    seconds = time.monotonic() - killing.at
    print(f"{seconds:.1f} s after the death: {ends}")
    assert all(each.startswith(("status 5", "closed", "ended")) for each in ends), ends
    assert seconds < TOLD_WITHIN_S


def request_of(question: Question, stream: bool = False) -> dict[str, object]:
    return question.as_json("banyan-arithmetic", stream=stream)
