"""Controllers with settings of their own over the engines of a running application."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray import serve

from deployments.config import AppConfig
from deployments.engines.rewards import parse_prm
from deployments.engines.rewards.function import FunctionSettings
from deployments.prm import ProcessRewardModel
from deployments.store import StoreSettings
from tests.serve.application import Application, another_controller

Json = dict[str, Any]
LIMITS = {"n": 4, "tokens": 200, "seconds": 5}


class Variant:
    """Address of such a controller."""

    def __init__(self, application: Application, name: str) -> None:
        self.application = application
        self.prefix = f"/{name}"
        self.url = application.url + self.prefix

    def post(self, path: str, body: Any) -> Any:
        return self.application.http.post(f"{self.prefix}{path}", json=body)

    def status(self) -> Json:
        status: Json = self.application.http.get(f"{self.prefix}/v1/status").json()
        return status

    def is_idle(self) -> bool:
        status = self.status()
        return status["searches"] == 0 and status["integrity"] == []


def small_limits(application: Application) -> Any:
    """A controller that allows n 4, 200 tokens and 5 seconds."""
    config = application.config
    controller = config.controller.model_copy(
        update={"limits": config.controller.limits.model_copy(update=LIMITS), "default_search": {"strategy": "greedy"}}
    )
    prm = serve.get_deployment_handle("ProcessRewardModel", application.NAME)
    return _variant(application, "limited", config.model_copy(update={"controller": controller}), prm)


def faulty_prm(application: Application) -> Any:
    """A controller whose rewards come from `tests.faults.misbehaviour.reward`."""
    prm = FunctionSettings(function="tests.faults.misbehaviour:reward", max_num_seqs=64)
    bound = ProcessRewardModel.options(ray_actor_options={"num_cpus": 0}).bind(prm)
    return _variant(application, "function", application.config.model_copy(update={"prm": prm}), bound)


def without_keys(application: Application) -> Any:
    """A controller that asks for no key and keeps nothing."""
    config = application.config
    controller = config.controller.model_copy(update={"store": StoreSettings()})
    http = config.http.model_copy(update={"api_keys_file": None})
    prm = serve.get_deployment_handle("ProcessRewardModel", application.NAME)
    return _variant(application, "keyless", config.model_copy(update={"controller": controller, "http": http}), prm)


def read_step_by_step(application: Application) -> Any:
    """A controller whose reward model reads a path once for each of its steps, as `label_turns` does."""
    # A turn for each step takes more than the embedded models' context at the deepest path.
    context = {"max_model_len": 4096, "engine_args": {"hf_overrides": {"max_position_embeddings": 4096}}}
    prm = parse_prm({"family": "label_turns", "model": "embedded:generator", **context})
    bound = ProcessRewardModel.options(ray_actor_options={"num_cpus": 0}).bind(prm)
    return _variant(application, "labels", application.config.model_copy(update={"prm": prm}), bound)


@contextmanager
def _variant(application: Application, name: str, config: AppConfig, prm: Any) -> Iterator[Variant]:
    with another_controller(application, name, config, prm):
        yield Variant(application, name)
