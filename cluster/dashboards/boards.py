"""All dashboards."""

from cluster.dashboards.engines import GENERATORS, KV, REWARD_MODELS
from cluster.dashboards.service import REPLICAS, SEARCHES, TENANTS

DASHBOARDS = (SEARCHES, GENERATORS, REWARD_MODELS, KV, REPLICAS, TENANTS)
