"""When a pool of replicas grows or shrinks: by what presses on them, never by how many calls there are.

A call is one branch or 256, and may be speculation. Every replica says how much work that is wanted it has, as a share
of what one replica can do at once (`deployments.replica`): a generator its KV memory and its batch, a reward model its
batch and how long steps wait for their rewards, a controller its places. What waits counts, so the share is above 1
where it is too much for one.
"""

import math
from typing import Any, Protocol

PRESSURE = "pressure"
"""The name under which replicas tell their share."""
FULL = 0.8
"""A pool grows until its replicas have at most this share each."""
SPARE = 0.5
"""It shrinks where those that are left would have at most this."""


class Pool(Protocol):
    """What Serve tells a policy of a deployment; see ``ray.serve.config.AutoscalingContext``."""

    @property
    def target_num_replicas(self) -> int: ...

    @property
    def aggregated_metrics(self) -> dict[str, dict[Any, float]] | None: ...


def by_pressure(pool: Pool) -> tuple[int, dict[str, Any]]:
    """How many replicas a pool should have; Serve applies the bounds and delays of its configuration."""
    told = (pool.aggregated_metrics or {}).get(PRESSURE, {})
    return replicas_for(sum(told.values()), len(told), pool.target_num_replicas), {}


def replicas_for(pressure: float, telling: int, now: int) -> int:
    """
    Args:
        pressure: of all replicas that tell theirs.
        telling: how many these are; while others are starting or silent, a pool does not shrink.
        now: how many there are to be.
    """
    if (wanted := math.ceil(pressure / FULL)) > now:
        return wanted
    if telling >= now and (enough := max(1, math.ceil(pressure / SPARE))) < now:
        return enough
    return now
