"""`select` and `fuse` as served: what a stream shows, that a client that leaves ends the search, and that the same seed
grows the same tree."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.application import Application, problems, request, until
from tests.serve.test_disconnect import nothing_runs

FUSE = {"strategy": "fuse", "n": 6, "k": 2, "rounds": 2, "temperature": 1.8}
SELECT = {"strategy": "select", "n": 8, "readers": 2, "window": 2, "temperature": 1.8}
"""So hot that answers differ."""
READ = {**SELECT, "contested": 1.0}
SEEDS = range(31, 41)
"""In some of these searches all answers are the same, and nothing is read."""


def chunks(application: Application, search: dict[str, Any], seed: int) -> Iterator[Any]:
    """The chunks of a streamed reply, as they come."""
    body = request(problems(1, seed=seed, level=5)[0], seed, stream=True, search=search)
    with application.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


def shown(chunk: Any) -> str:
    """What a chunk shows: the type of its event, or that it has text of the answer."""
    if event := chunk.get("search_event"):
        return str(event["type"])
    return "answer" if any(choice["delta"].get("content") for choice in chunk["choices"]) else ""


def test_a_stream_shows_candidates_then_their_readers_then_the_answer(idle: Application) -> None:
    replies = ([*chunks(idle, READ, seed)] for seed in SEEDS)
    streamed = next(reply for reply in replies if "context_started" in map(shown, reply))
    kinds = [kind for kind in map(shown, streamed) if kind]
    first, last = kinds.index("context_started"), len(kinds) - 1 - kinds[::-1].index("context_started")
    assert len([kind for kind in kinds[:first] if kind == "step_scored"]) >= 8
    assert "step_scored" in kinds[first:]
    assert last < kinds.index("answer")
    contexts = [chunk["search_event"] for chunk in streamed if shown(chunk) == "context_started"]
    [search] = [chunk["search"] for chunk in streamed if chunk.get("search")]
    assert search["contexts"] == len(contexts)
    assert all(1 <= len(event["sources"]) <= 2 for event in contexts)  # a window, as far as the context has room


def test_a_vote_that_is_not_contested_answers_without_readers(idle: Application) -> None:
    kinds = {*map(shown, chunks(idle, {**SELECT, "contested": 0.0}, 31))}
    assert "answer" in kinds
    assert "context_started" not in kinds


@pytest.mark.parametrize("search", [FUSE, READ], ids=["fuse", "select"])
def test_a_client_that_leaves_while_solutions_are_read_ends_the_reading(
    idle: Application, search: dict[str, Any]
) -> None:
    left = 0
    for seed in SEEDS:
        stream = chunks(idle, search, seed)
        left += any(shown(chunk) == "context_started" for chunk in stream)
        stream.close()  # type: ignore[attr-defined]
        if left == 2:
            break
    assert left == 2
    until(lambda: nothing_runs(idle), "nothing runs after the client has left")


def test_one_seed_is_one_tree_of_two_replicas(idle: Application) -> None:
    problem = problems(1, seed=34, level=4)[0]
    first, again = (idle.http.post("/v1/search", json=request(problem, 3, search=FUSE)).json() for _ in range(2))
    assert first["tree"] == again["tree"]
    assert len(first["tree"]["contexts"]) > 6
