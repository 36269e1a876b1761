"""A request that ends its engine ends two of them, fails for good, and costs nobody else an answer."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.faults.load import Load, failures
from tests.faults.poison import AT_ONCE, LATER, SCORED, Poison
from tests.serve.application import REPAIR_S, Application, problems, request, until

Json = dict[str, Any]
CLIENTS = 3
PROBLEM, *INNOCENT = problems(9, seed=58)


@pytest.fixture(autouse=True)
def armed(poison: Poison) -> Iterator[None]:
    with poison.armed():
        yield


def chat(poison: str, **fields: Any) -> Json:
    body = request(PROBLEM, 1, **fields)
    body["messages"][0]["content"] += poison
    return body


def completion() -> Json:
    return {
        "model": "banyan-arithmetic",
        "prompt": f"1 + 2 {AT_ONCE}",
        "n": 2,
        "max_tokens": 4,
        "use_beam_search": True,
    }


def score() -> Json:
    return {"question": PROBLEM.text, "steps": ["1 + 1 = 2\n\n", f"2 + 2 = 4 {SCORED}\n\n"]}


REQUESTS: dict[str, tuple[str, str, Callable[[], Json]]] = {
    "chat": (AT_ONCE, "/v1/chat/completions", lambda: chat(AT_ONCE)),
    "a search that runs for a while": (LATER, "/v1/search", lambda: chat(LATER)),
    "completions": (AT_ONCE, "/v1/completions", completion),
    "scores": (SCORED, "/v1/score", score),
    "a search whose paths cannot be scored": (SCORED, "/v1/chat/completions", lambda: chat(SCORED)),
}
"""The poison, the route and the body of each."""


@pytest.mark.parametrize("kind", ["chat", *(pytest.param(kind, marks=pytest.mark.long) for kind in [*REQUESTS][1:])])
def test_it_ends_two_engines_and_fails(whole: Application, poison: Poison, kind: str) -> None:
    character, path, body = REQUESTS[kind]
    before = poison.ended[character]
    load = Load(whole, INNOCENT, 5800)
    with load.of(CLIENTS):
        refused_as_harmful(whole.http.post(path, json=body()))
        refused_as_harmful(whole.http.post(path, json={**body(), "seed": 99} if path != "/v1/score" else body()))
    assert poison.ended[character] == before + 2
    assert load.outcomes
    assert all(each.is_whole for each in load.outcomes), failures(load.outcomes, lambda each: each.is_whole)


@pytest.mark.long
def test_a_line_of_a_batch_that_does_it_ends_as_its_own_error(whole: Application, poison: Poison) -> None:
    before = poison.ended[AT_ONCE]
    bodies = [request(problem, 3) for problem in INNOCENT[:4]]
    bodies.insert(2, chat(f" {AT_ONCE}"))  # not what another test has asked
    path = "/v1/chat/completions"
    lines = [
        {"custom_id": f"r-{number}", "method": "POST", "url": path, "body": body} for number, body in enumerate(bodies)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines)
    form = {"purpose": (None, "batch"), "file": ("lines.jsonl", content.encode())}
    file = whole.http.post("/v1/files", files=form).raise_for_status().json()["id"]
    asked = {"input_file_id": file, "endpoint": path, "completion_window": "24h"}
    batch = whole.http.post("/v1/batches", json=asked).raise_for_status().json()["id"]

    def state() -> Json:
        found: Json = whole.http.get(f"/v1/batches/{batch}").json()
        return found

    until(lambda: state()["status"] == "completed", "the batch is completed", 2 * REPAIR_S)
    counts = state()["request_counts"]
    assert (counts["completed"], counts["failed"]) == (4, 1)
    [line] = whole.http.get(f"/v1/files/{state()['error_file_id']}/content").text.splitlines()
    error = json.loads(line)
    assert error["custom_id"] == "r-2"
    assert error["response"]["body"]["error"]["code"] == "engine_ended_twice"
    assert poison.ended[AT_ONCE] == before + 2


def refused_as_harmful(reply: httpx.Response) -> None:
    assert reply.status_code == 500, reply.text
    assert reply.json()["error"]["code"] == "engine_ended_twice"
    assert reply.headers["x-should-retry"] == "false"
