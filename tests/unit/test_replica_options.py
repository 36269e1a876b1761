"""Serve's options for the replicas of a pool."""

from types import SimpleNamespace

from ray.serve._private.request_router import PowerOfTwoChoicesRequestRouter
from ray.serve.config import AutoscalingConfig

from deployments.app import ENGINE_ROUTER, _replicas
from deployments.engines.settings import ReplicaSettings
from deployments.scaling.pressure import PRESSURE, by_pressure
from deployments.scaling.router import HomeRouter


def test_an_autoscaled_pool_uses_the_pressure_policy() -> None:
    options = _replicas(ReplicaSettings(min_replicas=1, max_replicas=3, upscale_delay_s=4, downscale_delay_s=50))
    config = AutoscalingConfig(**options["autoscaling_config"])

    assert (config.min_replicas, config.max_replicas, config.upscale_delay_s, config.downscale_delay_s) == (1, 3, 4, 50)
    policy = config.policy.get_policy()  # serialized and loaded, as in Serve's controller
    reports = {PRESSURE: {"the only one": 2.0}}
    pool = SimpleNamespace(target_num_replicas=1, aggregated_metrics=reports, policy_state=None)
    assert policy(pool) == by_pressure(pool) == (3, {})
    assert "num_replicas" not in options


def test_a_fixed_pool_has_its_size_and_drain_time() -> None:
    options = _replicas(ReplicaSettings(min_replicas=2, max_replicas=2))
    assert (options["num_replicas"], options["graceful_shutdown_timeout_s"]) == (2, 10.0)
    assert _replicas(ReplicaSettings(), drain_s=600.0)["graceful_shutdown_timeout_s"] == 600.0
    assert _replicas(ReplicaSettings(drain_s=3), drain_s=600.0)["graceful_shutdown_timeout_s"] == 3


def test_a_replica_reserves_its_gpus_and_resources() -> None:
    options = _replicas(ReplicaSettings(num_gpus=1, resources={"large": 0.5}))
    assert options["ray_actor_options"] == {"num_cpus": 0.2, "num_gpus": 1, "resources": {"large": 0.5}}


def test_a_pool_has_its_configured_or_its_default_router() -> None:
    ready_made = "ray.serve._private.request_router:PowerOfTwoChoicesRequestRouter"
    default = _replicas(ReplicaSettings(), router=ENGINE_ROUTER)["request_router_config"]
    named = _replicas(ReplicaSettings(router=ready_made), router=ENGINE_ROUTER)["request_router_config"]

    assert default.get_request_router_class() is HomeRouter
    assert named.get_request_router_class() is PowerOfTwoChoicesRequestRouter
    assert "request_router_config" not in _replicas(ReplicaSettings())
