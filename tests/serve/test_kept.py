"""Stored files, batches and searches through OpenAI's own client: the same text over every route, and no kill loses
stored data."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import openai
import pytest

from tests.serve.application import Application, Json, kill, problems, request, until

MODEL = "banyan-arithmetic"
BATCH_S = 240.0
WIDE = {"strategy": "beam_search", "n": 64, "m": 4}
LONG = {"strategy": "mcts", "iterations": 4000, "budget": {"seconds": 200}}


@pytest.fixture
def client(application: Application) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{application.url}/v1", api_key=application.key, max_retries=0)


def begun(client: openai.OpenAI, url: Any, bodies: list[Json]) -> str:
    lines = [
        {"custom_id": f"c-{index}", "method": "POST", "url": url, "body": body} for index, body in enumerate(bodies)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = client.files.create(file=("night.jsonl", content), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h").id


def ended(client: openai.OpenAI, batch_id: str) -> Any:
    def has_ended() -> bool:
        try:
            return client.batches.retrieve(batch_id).status in ("completed", "failed", "expired", "cancelled")
        except (openai.APIConnectionError, openai.InternalServerError):  # while the controller is replaced
            return False

    until(has_ended, "the batch ends", BATCH_S)
    return client.batches.retrieve(batch_id)


def results(client: openai.OpenAI, batch: Any) -> list[Json]:
    return [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]


def test_one_seed_gives_the_same_text_over_every_route(idle: Application, client: openai.OpenAI) -> None:
    """Plain, streamed, by chat, by responses, and by a batch of each."""
    problem = problems(1, seed=71, level=3)[0]
    chat: Any = {"model": MODEL, "messages": [{"role": "user", "content": problem.text}], "seed": 1}
    by_responses: Any = {"model": MODEL, "input": problem.text}
    made = [
        begun(client, "/v1/chat/completions", [chat]),
        begun(client, "/v1/responses", [by_responses | {"seed": 1}]),
    ]
    with client.chat.completions.stream(**chat) as stream:
        streamed = stream.get_final_completion()
    plain = client.chat.completions.create(**chat)
    texts = [
        plain.choices[0].message.content,
        streamed.choices[0].message.content,
        client.responses.create(**by_responses, extra_body={"seed": 1}).output_text,
    ]
    [by_chat], [by_response] = (results(client, ended(client, batch_id)) for batch_id in made)
    texts.append(by_chat["response"]["body"]["choices"][0]["message"]["content"])
    texts += [
        part["text"]
        for item in by_response["response"]["body"]["output"]
        for part in item["content"]
        if part["type"] == "output_text"
    ]
    assert len(texts) == 5
    assert len(set(texts)) == 1, texts
    assert "\\boxed{" in (texts[0] or "")
    # The requests of batches are flex, and grow the same tree.
    assert [plain.service_tier, streamed.service_tier] == ["default"] * 2
    assert [line["response"]["body"]["service_tier"] for line in (by_chat, by_response)] == ["flex"] * 2


def test_flex_requests_leave_places_to_others(idle: Application, client: openai.OpenAI) -> None:
    first, second = problems(2, seed=77, level=5)
    resize(idle, searches=2, flex_places=0.5)
    try:
        long = request(first, 1, stream=True, search=LONG, service_tier="flex")
        with idle.http.stream("POST", "/v1/chat/completions", json=long) as stream:
            steps = (line for line in stream.iter_lines() if '"search_event"' in line)
            next(steps)  # the iterator is kept: dropping it would close the stream and end the search
            small: Any = {"model": MODEL, "messages": [{"role": "user", "content": second.text}], "seed": 1}
            for _ in range(2):
                with pytest.raises(openai.RateLimitError) as refused:
                    client.chat.completions.create(**small, service_tier="flex")
                assert refused.value.code == "resource_unavailable"
                assert int(refused.value.response.headers["retry-after"]) >= 1
                let_in = client.chat.completions.create(**small)
                assert let_in.service_tier == "default"
                assert "\\boxed{" in (let_in.choices[0].message.content or "")
        until(lambda: idle.status()["searches"] == 0, "the long search ends with its client")
        yielding = client.chat.completions.create(**small, service_tier="flex")
        assert (yielding.service_tier, yielding.choices) == ("flex", let_in.choices)
    finally:
        resize(idle, searches=idle.config.controller.searches, flex_places=idle.config.controller.flex_places)


def resize(application: Application, **settings: Any) -> None:
    """Changes settings as a ``user_config`` would."""

    def change(replica: Any) -> None:
        replica._live.change(replica._live.now.model_copy(update=settings))

    application.in_replicas("SearchController", change)


@pytest.mark.long
def test_no_kill_loses_or_repeats_a_request(idle: Application, client: openai.OpenAI) -> None:
    """Runner and controller are killed at work. A running search is lost and reported as such; one that has ended is
    still there."""
    asked = [request(problem, seed) for seed, problem in enumerate(problems(40, seed=72))]
    finished = idle.chat(problems(1, seed=74)[0], 1, store=True)
    batch_id = begun(client, "/v1/chat/completions", [*asked, {**asked[0], "n": 0}])

    def done() -> int:
        counts = client.batches.retrieve(batch_id).request_counts
        return counts.completed if counts else 0

    until(lambda: done() >= 3, "some are done", every_s=0.05)
    wide = request(problems(1, seed=75, level=5)[0], 1, store=True, stream=True, search=WIDE)
    # Serve closes the stream or breaks it off.
    with suppress(httpx.HTTPError), idle.http.stream("POST", "/v1/chat/completions", json=wide) as stream:
        lines = (line for line in stream.iter_lines() if '"search_event"' in line)
        lost = json.loads(next(lines).removeprefix("data: "))["id"]
        until(lambda: stored_search(idle, lost)["nodes"] > 0, "an event is kept", every_s=0.05)
        for pid in idle.replica_pids("BatchRunner") + idle.replica_pids("SearchController"):
            kill(pid)
        for _ in lines:
            continue
    idle.wait_until_whole()
    batch = ended(client, batch_id)
    assert batch.status == "completed"
    assert (batch.request_counts.total, batch.request_counts.completed) == (41, 40)
    assert sorted(line["line"] for line in results(client, batch)) == list(range(1, 41))
    [wrong] = client.files.content(batch.error_file_id).text.splitlines()
    assert json.loads(wrong)["custom_id"] == "c-40"
    assert stored_search(idle, finished["id"])["reply"] == finished
    shown = stored_search(idle, lost)
    assert (shown["status"], shown["error"]["code"]) == ("failed", "search_lost")
    assert shown["nodes"] > 0


def test_a_running_search_can_be_followed(idle: Application) -> None:
    body = request(problems(1, seed=76, level=5)[0], 1, store=True, search=WIDE)
    with ThreadPoolExecutor(1) as pool:
        before = newest(idle).get("id")
        running = pool.submit(lambda: idle.http.post("/v1/chat/completions", json=body).json())
        until(lambda: newest(idle).get("id") != before, "it runs", every_s=0.01)
        followed = idle.http.get(f"/v1/searches/{newest(idle)['id']}/events").text
        reply = running.result()
    data = [line.removeprefix("data: ") for line in followed.splitlines() if line.startswith("data: ")]
    *steps, last, done = data
    assert done == "[DONE]"
    told = [json.loads(step)["search_event"] for step in steps]
    events = [event for event in told if event["type"] == "step_scored"]
    assert len({tuple(event["node"]) for event in events}) == len(events) > 64
    assert events[-1]["tokens"] == reply["search"]["generated_tokens"]
    assert json.loads(last)["search"]["reply"] == reply


def stored_search(application: Application, name: str) -> Json:
    shown: Json = application.http.get(f"/v1/searches/{name}").json()
    return shown


def newest(application: Application) -> Json:
    listed: list[Json] = application.http.get("/v1/searches?limit=1").json()["data"]
    return listed[0] if listed else {"status": "none"}


def test_a_batch_can_be_cancelled_and_is_visible_to_its_owner_only(idle: Application, client: openai.OpenAI) -> None:
    asked = [request(problem, seed) for seed, problem in enumerate(problems(60, seed=73))]
    batch_id = begun(client, "/v1/chat/completions", asked)
    other = client.with_options(api_key=idle.other_key)
    with pytest.raises(openai.NotFoundError):
        other.batches.cancel(batch_id)
    until(lambda: client.batches.retrieve(batch_id).status == "in_progress", "it begins", every_s=0.05)
    client.batches.cancel(batch_id)
    batch = ended(client, batch_id)
    assert batch.status == "cancelled"
    errors = client.files.content(batch.error_file_id).text.splitlines()
    assert {json.loads(line)["error"]["code"] for line in errors} == {"batch_cancelled"}
    assert len(errors) + batch.request_counts.completed == 60
    assert [each.id for each in other.batches.list()] == []
    [counts] = idle.status()["batches"]
    assert counts.keys() == {"running", "waiting"}


def test_a_long_file_is_returned_unchanged(application: Application, client: openai.OpenAI) -> None:
    """It passes through Serve's proxy in pieces."""
    content = bytes(range(256)) * (8 << 12)
    file = client.files.create(file=("long.jsonl", content), purpose="batch")
    assert client.files.content(file.id).read() == content
    assert client.files.delete(file.id).deleted
