"""What Serve is told of a pool's replicas."""

from types import SimpleNamespace

from ray.serve.config import AutoscalingConfig

from cluster.autoscaling import PRESSURE, by_pressure
from deployments.app import _replicas
from deployments.engines.settings import ReplicaSettings


def test_a_pool_that_may_grow_goes_by_what_presses() -> None:
    options = _replicas(ReplicaSettings(min_replicas=1, max_replicas=3, upscale_delay_s=4, downscale_delay_s=50))
    told = AutoscalingConfig(**options["autoscaling_config"])

    assert (told.min_replicas, told.max_replicas, told.upscale_delay_s, told.downscale_delay_s) == (1, 3, 4, 50)
    policy = told.policy.get_policy()  # a copy, as Serve's controller has it
    pool = SimpleNamespace(target_num_replicas=1, aggregated_metrics={PRESSURE: {"the only one": 2.0}})
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
