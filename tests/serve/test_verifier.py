"""Two reward models in one replica, the embedded one and a generative verifier with random weights: what verifying
cost, critiques that the deadline cuts off, a client that leaves."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from deployments.embedded.problems import Problem
from deployments.engines.rewards import parse_prm
from deployments.prm import ProcessRewardModel
from tests.engine.verifier_model import CONTEXT, TEMPLATE, save_verifier
from tests.serve.application import Application, another_controller, is_idle, problems, request, until

pytestmark = pytest.mark.long  # two more engines start, one after the other

PROBLEMS = problems(3, seed=67, level=2)
SAMPLES = 8
CRITIQUE_TOKENS = 200
NARROW = {"strategy": "beam_search", "n": 4, "m": 2}
WIDE = {"strategy": "beam_search", "n": 64, "m": 8}
"""Its first level alone asks for more critiques than the engine writes in several seconds."""


@pytest.fixture(scope="module")
def verified(application: Application, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    directory = tmp_path_factory.mktemp("verifier")
    save_verifier(directory)
    verifier = {
        "family": "generative",
        "model": str(directory),
        "max_model_len": CONTEXT,
        "samples": SAMPLES,
        "max_tokens": CRITIQUE_TOKENS,
        "template": TEMPLATE.model_dump(),
    }
    prm = parse_prm({"family": "several", "of": [{"prm": {}}, {"prm": verifier, "scale": 0.5}]})
    bound = ProcessRewardModel.options(ray_actor_options={"num_cpus": 0}).bind(prm)
    config = application.config.model_copy(update={"prm": prm})
    with (
        another_controller(application, "verified", config, bound) as url,
        application.client(httpx.Timeout(300.0), url) as client,
    ):
        yield client


def searched(client: httpx.Client, problem: Problem, timeout_s: float = 300.0, **search: Any) -> Any:
    reply = client.post("/v1/search", json=request(problem, 5, search=search), timeout=timeout_s)
    assert reply.status_code == 200, reply.text
    return reply.json()


def status_of_prm(client: httpx.Client) -> Any:
    return client.get("/v1/status").raise_for_status().json()["prm"][0]


def test_critiques_are_counted_and_their_verdicts_remembered(idle: Application, verified: httpx.Client) -> None:
    before = status_of_prm(verified)
    reply = searched(verified, PROBLEMS[0], **NARROW)
    after = status_of_prm(verified)
    search, nodes = reply["search"], reply["tree"]["nodes"]
    steps = {(*node["id"][:-1], node["text"]) for node in nodes if node["reward"] is not None}
    assert search["prm_critiques"] == SAMPLES * len(steps) == after["critiques"] - before["critiques"]
    assert 0 < search["prm_generated_tokens"] <= CRITIQUE_TOKENS * search["prm_critiques"]
    assert search["prm_generated_tokens"] not in (search["generated_tokens"], reply["usage"]["completion_tokens"])
    assert search["prm_prompt_tokens"] > search["prm_cached_tokens"] > 0
    assert not search["degraded"]
    again = searched(verified, PROBLEMS[0], **NARROW)
    assert again["tree"] == reply["tree"]
    assert again["search"]["prm_critiques"] == 0


def test_the_deadline_cuts_critiques_off(idle: Application, verified: httpx.Client) -> None:
    search = searched(verified, PROBLEMS[1], **WIDE, budget={"seconds": 4})["search"]
    assert 0 < search["prm_cut_critiques"] <= search["prm_critiques"]
    assert search["scored_steps"] > 0
    until(lambda: is_idle(verified), "nothing is left")


def test_a_client_that_leaves_leaves_no_critique(idle: Application, verified: httpx.Client) -> None:
    begun = status_of_prm(verified)["items_begun"]
    with pytest.raises(httpx.ReadTimeout):
        searched(verified, PROBLEMS[2], timeout_s=2.0, **WIDE)
    assert status_of_prm(verified)["items_begun"] > begun
    until(lambda: is_idle(verified), "nothing is left")
