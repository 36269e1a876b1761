"""The last words of a replica whose engine died: which searches had requests at the engine.

They are in Ray's key-value store, where every controller finds them: the replica's process exits at once, so its calls
end without a reply. A call whose search is not among them only waited in the replica's queue.
"""

import asyncio
import json
import logging
from collections.abc import Collection

import ray
from ray.experimental import internal_kv

logger = logging.getLogger("banyan.calls")

NAMESPACE = "banyan-last-words"
MAX_KEPT = 64
"""Number of replicas whose last words are kept. They are read within seconds."""
READ_S = 5.0
"""Longest wait for the store's reply."""


def leave_last_words(searches: Collection[str]) -> None:
    """Writes the last words of this replica; logs a failure."""
    try:
        actor_id = ray.get_runtime_context().get_actor_id()
        if len(kept := internal_kv._internal_kv_list("", namespace=NAMESPACE)) >= MAX_KEPT:
            for key in kept:
                internal_kv._internal_kv_del(key, namespace=NAMESPACE)
        internal_kv._internal_kv_put(str(actor_id), json.dumps(sorted(searches)), namespace=NAMESPACE)
    except Exception as error:
        logger.warning("cannot store which searches were in this replica's batch when its engine died: %r", error)


async def last_words_of(actor_id: str) -> frozenset[str] | None:
    """The searches that had requests at the engine of a replica when it died. None if the replica left no words: its
    process was killed, or still runs."""
    try:
        async with asyncio.timeout(READ_S):
            found = await asyncio.to_thread(internal_kv._internal_kv_get, actor_id, namespace=NAMESPACE)
    except Exception as error:
        logger.warning("cannot read which searches were in the batch of a replica that died: %r", error)
        return None
    return frozenset(json.loads(found)) if found else None
