"""Autoscaling policy: a pool of replicas grows and shrinks by its load, not by its number of calls.

A call is one branch or 256. So every replica reports the work that is wanted of it as a share of what it can do at once
(`deployments.replica`): a generator of its KV memory and its batch, a reward model of its batch and of the time that
steps may wait for their rewards, a controller of its slots. Queued work counts, so an overloaded replica has a share
above 1. Delays are not used: they do not add up over replicas, so a pool that follows them swings.
"""

import math
from typing import Any, Protocol

PRESSURE = "pressure"
"""Name of the metric in which replicas report their share."""
FULL = 0.8
"""Maximum share of a replica, on average; above it the pool grows."""
SPARE = 0.5
"""A pool shrinks if the remaining replicas would have at most this share, on average."""
ENOUGH = "enough"
"""Key of the policy state that Serve keeps for a pool: the target since which it has too many replicas, and the largest
number that would have been enough since then."""


class Pool(Protocol):
    """A deployment as Serve shows it to a policy; see ``ray.serve.config.AutoscalingContext``."""

    @property
    def target_num_replicas(self) -> int: ...

    @property
    def aggregated_metrics(self) -> dict[str, dict[Any, float]] | None: ...

    @property
    def policy_state(self) -> dict[str, Any] | None: ...


def by_pressure(pool: Pool) -> tuple[int, dict[str, Any]]:
    """The number of replicas that a pool should have, and the policy state for Serve to keep. Serve applies the bounds
    and delays of its configuration.

    A pool shrinks after it had too many replicas for ``downscale_delay_s``. It shrinks to the largest number that would
    have been enough in that time, not to the latest: load comes in waves, and a replica that is stopped between two of
    them would have to be started again.
    """
    reported = (pool.aggregated_metrics or {}).get(PRESSURE, {})
    now = pool.target_num_replicas
    wanted = replicas_for(sum(reported.values()), len(reported), now)
    if wanted >= now:
        return wanted, {}
    target, most = (pool.policy_state or {}).get(ENOUGH, (now, wanted))
    most = max(wanted, most) if target == now else wanted
    return most, {ENOUGH: (now, most)}


def replicas_for(pressure: float, telling: int, now: int) -> int:
    """Number of replicas that a pool should have.

    Args:
        pressure: sum of the shares of all replicas that report theirs.
        telling: number of these replicas; while others are starting or silent, the pool does not shrink.
        now: the current target.
    """
    if (wanted := math.ceil(pressure / FULL)) > now:
        return wanted
    if telling >= now and (enough := max(1, math.ceil(pressure / SPARE))) < now:
        return enough
    return now
