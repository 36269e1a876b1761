"""Builds the Serve application: its deployments, their options and how they are bound together."""

# No `from __future__ import annotations` here: Serve checks serve_config.yaml against the annotation of `args`. If the
# annotation is a string, Serve silently passes a plain dict.

import os
from typing import Any

import ray
from ray import serve
from ray.serve.config import BackpressureConfig, RequestRouterConfig

from deployments.admission.keys import read_records
from deployments.backend import Backend
from deployments.batch_runner import BatchRunner
from deployments.config import AppConfig, ControllerUserConfig
from deployments.controller import SearchController
from deployments.engines.settings import EngineSettings, GeneratorSettings, ReplicaSettings
from deployments.generator import Generator
from deployments.prm import ProcessRewardModel
from deployments.startup.access import require_authenticated_cluster
from deployments.startup.backends import asked_backend
from deployments.startup.checks import check_settings
from deployments.startup.environment import variables
from deployments.startup.nodes import Built, model_digest
from deployments.startup.placement import on_this_cluster
from deployments.store import Store, StoreSettings
from search.budget import MAX_SECONDS

MAX_REQUESTS = 16_384
"""Requests that Serve passes to one controller at a time, far more than it has slots. The controller itself refuses a
request without a slot, at once and with an OpenAI error. Requests held back by Serve would only wait to be refused,
and /health would wait with them."""
ENGINE_DRAIN_S = 10.0
"""Default time in which an engine's replica may finish its calls before it is stopped."""
BATCH_JOBS = "cluster.jobs.application:batch_jobs"
"""What the batch runner runs, by its import path, as Serve's routers are named."""
ENGINE_ROUTER = "deployments.scaling.router:HomeRouter"
LOOK_BACK_S = 15.0
"""Autoscaling averages the pressure over this time; replicas report it every 10 s."""
MAX_QUEUED = 4096
"""Maximum number of calls that wait in one process for a replica. Further calls fail and are retried after a pause."""


def build(args: AppConfig) -> serve.Application:
    """Builds the application for ``serve run serve_config.yaml``.

    Raises:
        ValueError: settings contradict each other or the models that they name, or engines do not fit the cluster's
            GPUs (a line for each, with its path); the API keys cannot be read, the store's directory cannot be used,
            the cluster has no token authentication, or the generator's backend does not say what it can do.
    """
    check_settings(args)
    args, backend = asked_backend(args)
    if ray.is_initialized():  # true in the task in which Serve builds; otherwise only the controller's replicas check
        require_authenticated_cluster(args.http)
        args = on_this_cluster(args)
    keys = read_records(args.http.api_keys_file)
    logging_config = {"log_level": args.log_level, "enable_access_log": False}
    shared = {"max_queued_requests": MAX_QUEUED, "logging_config": logging_config}
    options = _replicas(args.generator.replicas, router=ENGINE_ROUTER) | shared
    if isinstance(args.generator, GeneratorSettings):
        generator = Generator.options(**options).bind(
            args.generator, args.cache, args.telemetry, args.log_level, _built(args.generator)
        )
    else:
        generator = Backend.options(**options).bind(args.generator, backend, args.telemetry, args.log_level, _built())
    prm = None
    if args.has_rewards:
        prm = ProcessRewardModel.options(**(_replicas(args.prm.replicas, router=ENGINE_ROUTER) | shared)).bind(
            args.prm, args.telemetry, args.log_level, _built(*args.prm.engines.values())
        )
    controller = args.controller
    batches = None
    if (store_id := _store_id(controller.store)) is not None:
        # Not limits.seconds: controllers apply that limit themselves, and it may change while they serve.
        batches = BatchRunner.options(logging_config=logging_config).bind(
            controller.store, store_id, MAX_SECONDS, BATCH_JOBS
        )
    max_ongoing = max(controller.replicas.max_ongoing_requests, MAX_REQUESTS)
    return SearchController.options(
        **{**_replicas(controller.replicas, controller.limits.seconds), "max_ongoing_requests": max_ongoing},
        max_queued_requests=MAX_QUEUED,
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=1),
        logging_config=logging_config,
        user_config=ControllerUserConfig(keys=keys).model_dump(mode="json"),
    ).bind(args, generator, prm, _built(store=store_id), batches, backend)


def _store_id(settings: StoreSettings) -> str | None:
    """Creates the store's directory if it is missing and returns its id; None without a store.

    Raises:
        ValueError: the directory cannot be used.
    """
    store = Store.of(settings)
    try:
        return None if store is None else store.prepare()
    except OSError as error:
        raise ValueError(f"controller.store.path: cannot use {settings.path}: {error.strerror or error}") from error


def _built(*engines: EngineSettings, store: str | None = None) -> Built:
    """The environment variables, models and store that replicas must find unchanged on every node."""
    # Trees depend on the model runner, too.
    names = [*(name for name in variables() if name.startswith("RAY_SERVE_")), "VLLM_USE_V2_MODEL_RUNNER"]
    shared = {name: os.environ.get(name) for name in names}
    return Built(shared, model_digest(*engines), store)


def _replicas(settings: ReplicaSettings, drain_s: float = ENGINE_DRAIN_S, router: str | None = None) -> dict[str, Any]:
    """The options of a deployment with these replica settings. ``drain_s`` and ``router`` are the defaults where the
    settings name none; without a router Serve uses its own."""
    options: dict[str, Any] = {
        "graceful_shutdown_timeout_s": settings.drain_s or drain_s,
        "max_ongoing_requests": settings.max_ongoing_requests,
        "ray_actor_options": {
            "num_cpus": settings.num_cpus,
            "num_gpus": settings.num_gpus or 0,
            "resources": dict(settings.resources),
        },
    }
    if router := settings.router or router:
        options["request_router_config"] = RequestRouterConfig.model_validate({"request_router_class": router})
    if settings.max_replicas > settings.min_replicas:
        options["autoscaling_config"] = {
            "min_replicas": settings.min_replicas,
            "max_replicas": settings.max_replicas,
            "upscale_delay_s": settings.upscale_delay_s,
            "downscale_delay_s": settings.downscale_delay_s,
            "look_back_period_s": LOOK_BACK_S,
            "policy": {"policy_function": "deployments.scaling.pressure:by_pressure"},
        }
    else:
        options["num_replicas"] = settings.min_replicas
    return options
