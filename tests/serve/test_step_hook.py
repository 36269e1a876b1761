"""A controller with a step hook, over the application's engines: its text in the reply, the same tree twice, a client
that leaves."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from ray import serve

from deployments.config import StepHookSettings
from deployments.step_hooks.calculator import mistakes
from tests.serve.application import Application, another_controller, is_idle, problems, request, until

PROBLEMS = problems(4, seed=61, level=3)


@pytest.fixture(scope="module")
def hooked(application: Application) -> Iterator[httpx.Client]:
    """A client of a controller with a calculator as its hook."""
    hook = StepHookSettings(function="deployments.step_hooks.calculator:correct")
    config = application.config
    config = config.model_copy(update={"controller": config.controller.model_copy(update={"step_hook": hook})})
    prm = serve.get_deployment_handle("ProcessRewardModel", application.NAME)
    with (
        another_controller(application, "hooked", config, prm) as url,
        application.client(httpx.Timeout(300.0), url) as client,
    ):
        yield client


def test_corrections_are_marked_counted_and_the_same_twice(idle: Application, hooked: httpx.Client) -> None:
    corrected = 0
    for problem in PROBLEMS:
        reply, again = [hooked.post("/v1/search", json=request(problem, 3)).raise_for_status().json() for _ in range(2)]
        assert reply["tree"] == again["tree"]
        search: dict[str, Any] = reply["search"]
        assert search["hook_calls"] > 0
        assert not search["degraded"]
        for node in (node for node in reply["tree"]["nodes"] if "hook" in node):
            assert node["hook"]["text"] == f"{next(mistakes(node['text']))}\n\n"
            corrected += node["status"] != "repeated" and len(node["hook"]["token_ids"])
        assert sum(node["tokens"] for node in reply["tree"]["nodes"]) == search["generated_tokens"]
    assert corrected > 0
    until(lambda: is_idle(hooked), "nothing is left")


def test_a_client_that_leaves_leaves_no_call(idle: Application, hooked: httpx.Client) -> None:
    wide = {"strategy": "beam_search", "n": 64, "m": 4}
    with pytest.raises(httpx.ReadTimeout):
        hooked.post("/v1/search", json=request(PROBLEMS[0], 4, search=wide), timeout=0.2)
    until(lambda: is_idle(hooked), "nothing is left")
