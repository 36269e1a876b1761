"""A controller with an answer cache, over the application's engines."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from ray import serve

from deployments.config import AnswerCacheSettings, ControllerUserConfig, TelemetrySettings
from deployments.controller import SearchController
from tests.serve.application import Application, problems, request

CHAT = "/v1/chat/completions"
PROBLEM = problems(1, seed=95, level=2)[0]
WORDED = f"Please solve this. {PROBLEM.text}"
"""The same question in other words."""
NEAR_MISS = WORDED.replace(str(PROBLEM.start), str(PROBLEM.start + 1), 1)


@pytest.fixture(scope="module")
def answering(application: Application) -> Iterator[str]:
    """URL of a controller that answers from its cache, and needs no API key."""
    name = "answering"
    config = application.config
    settings = AnswerCacheSettings(embedding="benchmarks.answer_cache:ngrams", threshold=0.7, embedding_timeout_s=30)
    changed = {
        "http": config.http.model_copy(update={"api_keys_file": None}),
        "controller": config.controller.model_copy(update={"answer_cache": settings}),
        "telemetry": TelemetrySettings(metrics=False),
    }
    generator, prm = (
        serve.get_deployment_handle(each, application.NAME) for each in ("Generator", "ProcessRewardModel")
    )
    controller = SearchController.options(
        ray_actor_options={"num_cpus": 0}, user_config=ControllerUserConfig().model_dump(mode="json")
    ).bind(config.model_copy(update=changed), generator, prm)
    serve.run(controller, name=name, route_prefix=f"/{name}")
    yield f"{application.url}/{name}"
    serve.delete(name)


def ask(url: str, text: str, **fields: Any) -> httpx.Response:
    messages = [{"role": "user", "content": text}]
    body = {**request(PROBLEM, 0, messages=messages, **fields), "seed": None}
    return httpx.post(url + CHAT, json=body, timeout=120.0).raise_for_status()


def test_a_question_is_answered_from_the_cache_and_a_near_miss_is_not(application: Application, answering: str) -> None:
    first = ask(answering, PROBLEM.text).json()
    written = application.generated_tokens()
    again, worded = (ask(answering, text).json() for text in (PROBLEM.text, WORDED))
    streamed = ask(answering, PROBLEM.text, stream=True).text
    assert application.generated_tokens() == written
    assert not first["search"]["cached"]
    for reply in (again, worded):
        assert reply["search"]["cached"]
        assert reply["choices"] == first["choices"]
        assert reply["usage"]["total_tokens"] == 0
    assert streamed.count('"step_scored"') == first["search"]["nodes"]
    assert streamed.rstrip().endswith("[DONE]")
    assert not ask(answering, NEAR_MISS).json()["search"]["cached"]
    assert application.generated_tokens() > written
