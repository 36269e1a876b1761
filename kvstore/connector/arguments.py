"""What a vLLM engine must be told to be a client of the node's cache server."""

import hashlib
from typing import TYPE_CHECKING, Any

from kvstore.server.cache_server import CacheAddress
from kvstore.settings import CacheSettings

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig

IDENTITY = "banyan.identity"
"""Under this name the connector is told whose KV it is."""
LEAST_TOKENS = "banyan.least_tokens"
"""Under this name it is told how many tokens are worth a lookup or a store."""
PREFILLED = "banyan.prefilled"
"""Under this name it is told whether prompts are stored as soon as they are computed, which others may lack as well."""
REPLY_TIMEOUT_S = 10.0
"""Seconds for which an engine waits for the server's reply to a lookup, or to its registration. After that it takes the
server for lost until that has answered a heartbeat, and computes what it asked for."""
QUIET_ENVIRONMENT = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1"}
"""No reports to LMCache's statistics server, no banner. To be set before an engine starts."""


def connector_arguments(
    address: CacheAddress, settings: CacheSettings, identity: str, shared: bool = True
) -> dict[str, Any]:
    """Keyword arguments of vLLM's ``KVTransferConfig``, also valid as JSON for ``--kv-transfer-config``.

    Four values differ from the defaults because those would break a promise: the connector is LMCache's own but for
    requests that are given up (see ``lmcache_connector``), a failed load recomputes the prefix
    (default: fails the request), the transfer mode is the one the server speaks (default on a CPU: another one, which
    it refuses, so that nothing is ever cached), and replies are waited for seconds (default: five minutes).

    ``identity``: what keys and values depend on: engines for which it differs find nothing of each other's, also in a
    second tier that outlives them. ``shared``: whether there may be other engines that can make use of what this one
    computes; where the server is not ours, or has a second tier, there may.
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
    """The name under which LMCache keeps an engine's KV, in memory and in second tiers: of the model's path the last
    part, for who reads it there, and what the KV depends on. LMCache's own is the path, whatever is in it."""
    return f"{model.rstrip('/').rpartition('/')[2].replace('@', '-')}-{identity}"


def connector_config(
    address: CacheAddress, settings: CacheSettings, identity: str, shared: bool = True
) -> "KVTransferConfig":
    """As `connector_arguments`, for the ``kv_transfer_config`` engine argument. Imports vLLM, which takes seconds."""
    from vllm.config import KVTransferConfig

    return KVTransferConfig(**connector_arguments(address, settings, identity, shared))
