"""Engine arguments that make vLLM a client of the node's cache server."""

import hashlib
from typing import TYPE_CHECKING, Any

from kvstore.server.cache_server import CacheAddress
from kvstore.settings import CacheSettings

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig

IDENTITY = "banyan.identity"
"""Connector setting: a hash of everything that the keys and values depend on."""
LEAST_TOKENS = "banyan.least_tokens"
"""Connector setting: the minimum number of tokens for a lookup or a store."""
PREFILLED = "banyan.prefilled"
"""Connector setting: whether prompts are stored as soon as they are computed, because other engines may lack them."""
REPLY_TIMEOUT_S = 10.0
"""Seconds that an engine waits for the server's reply to a lookup or a registration. After that it computes the prefix
itself, and treats the server as lost until it answers a heartbeat."""
QUIET_ENVIRONMENT = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1"}
"""Disables LMCache's usage reports and its banner. To be set before an engine starts."""


def connector_arguments(
    address: CacheAddress, settings: CacheSettings, identity: str, shared: bool = True
) -> dict[str, Any]:
    """Keyword arguments of vLLM's ``KVTransferConfig``, also valid as JSON for ``--kv-transfer-config``.

    Four defaults would break a promise:

    - the connector is LMCache's own, with the fixes in ``lmcache_connector``;
    - a failed load recomputes the prefix (default: the request fails);
    - the transfer mode is the one that the server accepts (default on a CPU: one that it refuses, so nothing is
      cached);
    - the reply timeout is `REPLY_TIMEOUT_S` (default: five minutes).

    Args:
        identity: everything that keys and values depend on. Engines with different identities share no KV, not even in
            a second tier that outlives them.
        shared: whether other engines may use the KV of this one. It is assumed if the server is not Banyan's or has a
            second tier.
    """
    alone = not shared and not settings.l2_adapters and not settings.host
    store = settings.store if settings.store != "auto" else "evicted" if alone else "prefilled"
    return {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_connector_module_path": "kvstore.connector.lmcache_connector",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "lmcache.mp.host": f"tcp://{address.host}",
            "lmcache.mp.port": address.port,
            "lmcache.mp.mq_timeout": REPLY_TIMEOUT_S,
            "lmcache.mp.heartbeat_interval": settings.heartbeat_interval_s,
            "lmcache.mp.mp_transfer_mode": "lmcache_driven",
            "lmcache.mp.lazy_offload": True,
            LEAST_TOKENS: settings.least_tokens,
            PREFILLED: store == "prefilled",
            IDENTITY: hashlib.sha256(identity.encode()).hexdigest()[:32],
        },
    }


def kv_name(model: str, identity: str) -> str:
    """The model name under which LMCache stores an engine's KV, in memory and in second tiers: the last part of the
    model's path, for readability, and ``identity``. LMCache's default is the path, whatever model it contains.
    For a model that vLLM has yet to fetch from a hub it is only name and arguments: set its ``revision``."""
    return f"{model.rstrip('/').rpartition('/')[2].replace('@', '-')}-{identity}"


def connector_config(
    address: CacheAddress, settings: CacheSettings, identity: str, shared: bool = True
) -> "KVTransferConfig":
    """`connector_arguments` as the ``kv_transfer_config`` engine argument. Imports vLLM, which takes seconds."""
    from vllm.config import KVTransferConfig

    return KVTransferConfig(**connector_arguments(address, settings, identity, shared))
