"""What Serve is told of a pool's replicas."""

from types import SimpleNamespace

from ray.serve._private.request_router import PowerOfTwoChoicesRequestRouter
from ray.serve.config import AutoscalingConfig

from deployments.app import ENGINE_ROUTER, _replicas
from deployments.engines.settings import ReplicaSettings
from deployments.scaling.pressure import PRESSURE, by_pressure
from deployments.scaling.router import HomeRouter


def test_a_pool_that_may_grow_goes_by_what_presses() -> None:
    options = _replicas(ReplicaSettings(min_replicas=1, max_replicas=3, upscale_delay_s=4, downscale_delay_s=50))
    told = AutoscalingConfig(**options["autoscaling_config"])

    assert (told.min_replicas, told.max_replicas, told.upscale_delay_s, told.downscale_delay_s) == (1, 3, 4, 50)
    policy = told.policy.get_policy()  # a copy, as Serve's controller has it
    told = {PRESSURE: {"the only one": 2.0}}
    pool = SimpleNamespace(target_num_replicas=1, aggregated_metrics=told, policy_state=None)
    assert policy(pool) == by_pressure(pool) == (3, {})
    assert "num_replicas" not in options


def test_a_pool_of_fixed_size_has_that_size_and_drains_as_long_as_it_is_told() -> None:
    options = _replicas(ReplicaSettings(min_replicas=2, max_replicas=2))
    assert (options["num_replicas"], options["graceful_shutdown_timeout_s"]) == (2, 10.0)
    assert _replicas(ReplicaSettings(), drain_s=600.0)["graceful_shutdown_timeout_s"] == 600.0
    assert _replicas(ReplicaSettings(drain_s=3), drain_s=600.0)["graceful_shutdown_timeout_s"] == 3


def test_a_replica_goes_where_what_it_reserves_is() -> None:
    options = _replicas(ReplicaSettings(num_gpus=1, resources={"large": 0.5}))
    assert options["ray_actor_options"] == {"num_cpus": 0.2, "num_gpus": 1, "resources": {"large": 0.5}}


def test_a_pool_has_the_router_of_its_settings_or_of_its_kind() -> None:
    ready_made = "ray.serve._private.request_router:PowerOfTwoChoicesRequestRouter"
    told = _replicas(ReplicaSettings(), router=ENGINE_ROUTER)["request_router_config"]
    named = _replicas(ReplicaSettings(router=ready_made), router=ENGINE_ROUTER)["request_router_config"]

    assert told.get_request_router_class() is HomeRouter
    assert named.get_request_router_class() is PowerOfTwoChoicesRequestRouter
    assert "request_router_config" not in _replicas(ReplicaSettings())
