"""Breaks the reference cycles that Serve and grpc leave after every call, so that their objects are freed at once.

Otherwise only the garbage collector would free them, and a full collection stops the event loop of all searches
(`deployments.loop.garbage`). The attributes used here are private to these libraries. If a name changes, the cycle is
left to the collector, and a test in ``tests/serve`` fails.
"""

import asyncio
from contextlib import suppress
from typing import Any

CANCELLED_S = 5.0
"""Seconds during which tasks of grpc may use a call that was cancelled."""


def dismantle_response(response: Any) -> None:
    """Breaks the cycles of Serve's response to a call that was answered completely: its result, grpc's call and that
    call's callbacks refer to each other, 55 objects per call. Does nothing if it is not a grpc call. Not for a call
    that was just cancelled: tasks of grpc still use it (`dismantle_later`)."""
    with suppress(Exception):  # a failure here must not lose the answer
        _dismantle_response(response)


def dismantle_later(response: Any) -> None:
    """`dismantle_response` for a cancelled call, once grpc no longer uses it."""
    asyncio.get_running_loop().call_later(CANCELLED_S, dismantle_response, response)


def assigned_result(response: Any) -> Any:
    """Serve's result behind its response to a call, in the setting with one event loop; None before a replica is
    assigned, and if none was."""
    assigned = getattr(response, "_replica_result_future", None)
    if not isinstance(assigned, asyncio.Future) or not assigned.done() or assigned.cancelled() or assigned.exception():
        return None
    return assigned.result()


def replica_of(response: Any) -> str | None:
    """Actor id of the replica that Serve assigned to a call; None before that, and once the call is dismantled."""
    actor_id = getattr(assigned_result(response), "_actor_id", None)
    return None if actor_id is None else str(actor_id.hex())


def _dismantle_response(response: Any) -> None:
    result = assigned_result(response)
    call = getattr(result, "_call", None)
    if call is None or not call.done():
        return
    vars(result).clear()
    if (invoked := vars(call).get("_interceptors_task")) is not None:  # if calls carry a token
        nothing = asyncio.get_running_loop().create_future()
        nothing.cancel()
        vars(call)["_interceptors_task"] = nothing  # grpc reads it when the call is freed
        if invoked.cancelled() or invoked.exception():
            return
        # This call is in a cycle that cannot be reached from here, so the cycle must not keep other objects alive.
        _forget(call, "_response_aiter", "_last_returned_call_from_interceptors")
        call = invoked.result()
    # A stream that was not read to its end has a suspended generator, whose frame refers to the call.
    _forget(call, "_message_aiter", "_cython_call")


def _forget(call: Any, *names: str) -> None:
    for name in names:
        vars(call).pop(name, None)
