"""Calls the step hook: a function of the operator's own that sees every new step before it is scored.

A hook gets the question, the texts of the steps so far and the text of the new step. It returns None to leave the step
as it is, a text that is added after the step (a tool's or a retriever's answer, as in ATLAS and CRITIC), or `END_PATH`.
The reward model scores the step with the added text, and the generator continues from it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, StrEnum
from typing import Any, Final, NamedTuple

from search.errors import HookError, HookFailure
from search.tools.fair_slots import FairSlots, Requester
from search.tree import HookEffect

MAX_TEXT_CHARS = 16_384
"""Longest text that a hook may add, in characters. It is encoded on the event loop, which all searches share."""


class EndPath(Enum):
    """The type of `END_PATH`."""

    END_PATH = "end_path"


END_PATH: Final = EndPath.END_PATH
"""A hook's reply that ends the path with the new step. The path is scored and may answer."""

HookFunction = Callable[[str, Sequence[str], str], Awaitable[str | EndPath | None]]
"""Takes the question, the texts of the steps so far, as the reward model reads them, and the text of the new step."""


class HookFallback(StrEnum):
    """What a search does when its step hook fails."""

    LEAVE = "leave"
    """Leaves the step as it is and is marked degraded."""
    FAIL = "fail"
    """Fails."""


class HookCall(NamedTuple):
    """One call of a step hook."""

    result: str
    """``left``, ``added``, ``ended``, or the kind of the failure."""
    seconds: float
    error: HookError | None = None


HookObserver = Callable[[HookCall], None]


class StepHook:
    """A hook function, with limits on its calls. All searches of a process share it.

    Nothing of a call is left when its search is cancelled: it is awaited in the search's own task group.
    """

    def __init__(
        self,
        function: HookFunction,
        encode: Callable[[str], Sequence[int]],
        *,
        timeout_s: float = 5.0,
        max_calls: int = 64,
        fallback: HookFallback = HookFallback.LEAVE,
        observe: HookObserver = lambda call: None,
    ) -> None:
        """
        Args:
            encode: encodes a text with the generator's tokenizer. Raises ValueError for a text that it cannot encode.
            timeout_s: deadline of one call, seconds.
            max_calls: maximum number of calls at once. Further ones wait; owners, and the searches of each,
                take turns.
            observe: called after every call that was not cancelled.
        """
        self.running = 0
        """Number of calls that run."""
        self._function = function
        self._encode = encode
        self._timeout_s = timeout_s
        self._slots = FairSlots(max_calls)
        self._fallback = fallback
        self._observe = observe

    async def effect(self, question: str, path: Sequence[str], step: str, requester: Requester) -> HookEffect:
        """What the hook does with ``step``, which continues ``path``, asked by this search. A failure is the effect
        of a failed call.

        Raises:
            HookError: the hook failed and the fallback is ``fail``.
        """
        async with self._slots.hold(requester):
            self.running += 1
            started = time.perf_counter()
            failure: HookError | None = None
            try:
                effect = self._read(await self._call(question, path, step))
                result = "ended" if effect.ends else "added" if effect.text else "left"
            except HookError as error:
                effect, result, failure = HookEffect(failed=True), error.kind.value, error
            finally:
                self.running -= 1
            self._observe(HookCall(result, time.perf_counter() - started, failure))
        if failure is not None and self._fallback is HookFallback.FAIL:
            raise failure
        return effect

    def check_integrity(self) -> list[str]:
        """A sentence if calls are open although no search runs; empty when all is well."""
        return [f"{self.running} calls of the step hook are open"] if self.running else []

    async def _call(self, question: str, path: Sequence[str], step: str) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s) as deadline:
                return await self._function(question, path, step)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The function cancelled itself, or something that it awaited was cancelled.
            raise HookError(HookFailure.RAISED, "CancelledError") from error
        except Exception as error:  # an operator's function may raise anything
            if deadline.expired():
                raise HookError(HookFailure.LATE, f"timeout after {self._timeout_s:g} s") from error
            raise HookError(HookFailure.RAISED, type(error).__name__) from error

    def _read(self, reply: Any) -> HookEffect:
        """Checks and encodes a hook's reply."""
        if reply is None or reply is END_PATH or reply == "":
            return HookEffect(ends=reply is END_PATH)
        if not isinstance(reply, str):
            raise HookError(HookFailure.INVALID, f"it must return None, a text or END_PATH, not {type(reply).__name__}")
        if len(reply) > MAX_TEXT_CHARS:
            raise HookError(
                HookFailure.INVALID, f"its text has {len(reply)} characters, the maximum is {MAX_TEXT_CHARS}"
            )
        try:
            return HookEffect(reply, tuple(self._encode(reply)))
        except ValueError as error:
            raise HookError(HookFailure.INVALID, "its text cannot be encoded") from error
