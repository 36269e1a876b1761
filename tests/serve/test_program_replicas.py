"""Programs in solutions on two replicas: one tree from one seed, whichever replica runs them, and if one is killed."""

import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.program_model import save_program_model
from tests.serve.application import Application, Json, kill, problems, request, running, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # it starts an application of its own
LIMITS = {"max_depth": 6, "max_step_tokens": 60, "max_path_tokens": 300, "temperature": 1.0}
SEARCHES: Sequence[Json] = (
    {"strategy": "beam_search", "n": 8, "m": 4},
    {"strategy": "mcts", "iterations": 6, "width": 3},
    {"strategy": "self_consistency", "n": 6},
    {"strategy": "select", "n": 4, "contested": 1.0, "window": 2},
)
SEEDS = range(6)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    model = tmp_path_factory.mktemp("model")
    save_program_model(model)
    settings = {
        "generator": {
            "model": str(model),
            "dtype": "float32",
            "max_model_len": 512,
            "replicas": {"min_replicas": 2, "max_replicas": 2},
        },
        "prm": {"family": "function", "function": "tests.program_model:reward"},
        "controller": {"tools": {"python": {"calls": 3, "output_chars": 200}}},
        "http": {"canary_every_s": 0},
    }
    with running(settings, tmp_path_factory.mktemp("keys")) as application:
        application.wait_until_whole()
        yield application


def searched(application: Application, seed: int, search: Json) -> Json:
    body = request(problems(1, seed=63)[0], seed, search=search | LIMITS)
    reply = application.http.post("/v1/search", json=body)
    assert reply.status_code == 200, reply.text
    found: Json = reply.json()
    return found


def all_searched(application: Application) -> list[Json]:
    """Every search with every seed, eight at a time and in no order."""
    cases = [(seed, search) for search in SEARCHES for seed in SEEDS]
    order = random.Random(1).sample(range(len(cases)), len(cases))
    with ThreadPoolExecutor(8) as pool:
        found = {number: pool.submit(searched, application, *cases[number]) for number in order}
        return [found[number].result() for number in range(len(cases))]


def steps_of(reply: Json) -> list[Any]:
    return [[node["id"], node.get("text"), node["status"]] for node in reply["tree"]["nodes"]]


def test_one_seed_is_one_tree_on_two_replicas_and_when_one_is_killed(programs: Application) -> None:
    first, again = all_searched(programs), all_searched(programs)
    victim, *_ = programs.replica_pids("Generator")
    killing = threading.Timer(0.5, kill, [victim])
    killing.start()
    hit = all_searched(programs)
    killing.join()
    until(lambda: victim not in programs.replica_pids("Generator"), "the killed replica is replaced", 240.0)
    programs.wait_until_whole()
    for one, *others in zip(first, again, hit, strict=True):
        assert [steps_of(other) for other in others] == [steps_of(one)] * 2
        assert [other["search"]["tool_calls"] for other in others] == [one["search"]["tool_calls"]] * 2
        assert not one["search"]["degraded"]
    assert sum(reply["search"]["tool_calls"] for reply in first) > 100
    assert any("\n```output\n" in (node.get("text") or "") for reply in first for node in reply["tree"]["nodes"])
