"""Takes apart what Serve and grpc leave in cycles after every call, so that it is freed at once.

Only the garbage collector would free it otherwise, and a collection of everything holds the event loop of all searches
(`deployments.loop.garbage`). What is touched here is private to these libraries: where a name has changed, the cycle
is left to the collector, and ``tests/serve`` says so.
"""

import asyncio
from contextlib import suppress
from typing import Any

CANCELLED_S = 5.0
"""For so long tasks of grpc may look at a call that was cancelled."""


def dismantle_response(response: Any) -> None:
    """Serve's response to a call that was answered to its end: its result, grpc's call and that call's callbacks name
    each other, 55 objects a call. Nothing happens where it is no call of grpc. Not for a call that was just
    cancelled: tasks of grpc still look at it (`dismantle_later`)."""
    with suppress(Exception):  # an answer is not lost for it
        _dismantle_response(response)


def dismantle_later(response: Any) -> None:
    """The same for a call that was cancelled, once grpc has done with it."""
    asyncio.get_running_loop().call_later(CANCELLED_S, dismantle_response, response)


def assigned_result(response: Any) -> Any:
    """Serve's result behind its response to a call, in the setting with one event loop; None before a replica was
    found, and where none was."""
    assigned = getattr(response, "_replica_result_future", None)
    if not isinstance(assigned, asyncio.Future) or not assigned.done() or assigned.cancelled() or assigned.exception():
        return None
    return assigned.result()


def replica_of(response: Any) -> str | None:
    """The replica that Serve found for a call, by the id of its actor; None before, and once it is dismantled."""
    actor_id = getattr(assigned_result(response), "_actor_id", None)
    return None if actor_id is None else str(actor_id.hex())


def _dismantle_response(response: Any) -> None:
    result = assigned_result(response)
    call = getattr(result, "_call", None)
    if call is None or not call.done():
        return
    vars(result).clear()
    if (invoked := vars(call).get("_interceptors_task")) is not None:  # where calls carry a token
        nothing = asyncio.get_running_loop().create_future()
        nothing.cancel()
        vars(call)["_interceptors_task"] = nothing  # which it asks when it is freed
        if invoked.cancelled() or invoked.exception():
            return
        # What names this call is in a cycle with itself and cannot be reached; nothing is to hang from it.
        _forget(call, "_response_aiter", "_last_returned_call_from_interceptors")
        call = invoked.result()
    # A stream that was not read to its end has a generator that stands in it, and whose frame names the call.
    _forget(call, "_message_aiter", "_cython_call")


def _forget(call: Any, *names: str) -> None:
    for name in names:
        vars(call).pop(name, None)
