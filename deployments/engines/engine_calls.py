"""The engine requests of one call: submitted, awaited and aborted together.

vLLM offers an async generator per request, which needs a task per branch. Here all requests of a call share one event:
a call costs one task whatever its width.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeAlias, TypeVar

from vllm import PoolingParams, PoolingRequestOutput, RequestOutput, SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.inputs.engine import tokens_input
from vllm.v1.engine.async_llm import AsyncLLM

from deployments.engines.request_queue import Ending, EngineRequest, RequestQueue
from kvstore.memory.ledger import Prefix, TooLarge
from search.ports import PortRequest

Output: TypeAlias = RequestOutput | PoolingRequestOutput
Label = TypeVar("Label")


class EngineCallError(RuntimeError):
    """A call failed: the engine died or refused a request, or the deadline passed."""


class RequestRefused(EngineCallError):
    """The engine refused a request because of its content."""


class NeverFits(RequestRefused):
    """The request needs more KV memory than the engine has, however long it waits."""


class EngineCall(Generic[Label]):
    """The requests of one call. An async context manager: unfinished requests are aborted on exit.

    Labels are the caller's names for its requests.
    """

    def __init__(
        self,
        engine: AsyncLLM,
        queue: RequestQueue,
        request: PortRequest,
        on_discard: Callable[[Output], None] = lambda output: None,
        *,
        alone: bool = False,
        canary: bool = False,
    ) -> None:
        """
        Args:
            on_discard: gets the partial output of an aborted request.
            alone: whether the engine works on nothing else meanwhile.
            canary: whether it is a health check's call; see `EngineRequest.canary`.
        """
        self._engine = engine
        self._queue = queue
        self._request = request
        self._on_discard = on_discard
        self._aborts = Aborts(engine)
        self._requests: OrderedDict[EngineRequest, None] = OrderedDict()
        """Requests not taken yet: first the ended ones, the last to end at the front, then the unfinished ones."""
        self._changed = asyncio.Event()
        self._stopped: str | None = None
        self._alone = alone
        self._canary = canary
        self._in_turn = False
        """Whether it has the engine alone, or waits for that."""
        self._cut_short = False
        """Whether it was stopped before all its requests were taken."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pending(self) -> int:
        """Number of requests that were not taken yet.

        Raises:
            EngineCallError: the call was stopped before all were taken. Its deadline may pass while the caller is busy
                with what it took before.
        """
        if self._cut_short:
            raise EngineCallError(self._stopped or "")
        return len(self._requests)

    @property
    def left(self) -> list[EngineRequest]:
        """The requests that were not taken yet, ended ones first."""
        return list(self._requests)

    async def __aenter__(self) -> "EngineCall[Label]":
        loop = asyncio.get_running_loop()
        deadline_s = self._request.deadline_s
        self._timer = loop.call_later(deadline_s, self.stop, f"deadline of {deadline_s:g} s exceeded")
        if self._alone:
            self._in_turn = True
            self._queue.enter_alone(self)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self.stop("the caller has left the call")
        await self._aborts.sent()  # the aborts go on even if this wait is cancelled

    def submit(
        self,
        label: Label,
        token_ids: Sequence[int],
        params: SamplingParams | PoolingParams,
        *,
        prefix: Prefix | None = None,
        growth: int = 1,
        reserve: bool = False,
        optional: bool = False,
        place: int | None = None,
    ) -> bool:
        """Queues one request. Returns whether it was queued: an ``optional`` one may not be.

        Args:
            prefix: ``token_ids`` as blocks, given where several requests share them, or where the engine must not
                share any.
            growth: number of tokens that the request is expected to write.
            reserve, optional, place: see `RequestQueue.submit`.

        Raises:
            NeverFits: the request is larger than the KV cache.
            EngineCallError: the call was stopped.
        """
        if self._stopped:
            raise EngineCallError(self._stopped)
        request = EngineRequest(
            self._request.search_id,
            label,
            token_ids,
            params,
            self._request.cache_salt,
            self._request.lane,
            self._on_end,
            prefix,
            growth,
            on_discard=self._on_discard,
            alone=self if self._alone else None,
            canary=self._canary,
        )
        try:
            queued = self._queue.submit(request, reserve=reserve, optional=optional, place=place)
        except TooLarge as error:
            raise NeverFits(f"a path {error}") from None
        if queued:
            self._requests[request] = None
        return queued

    def take_over(self, label: Label, request: EngineRequest) -> None:
        """Makes a request that was begun before the call one of the call's, finished or not.

        Raises:
            EngineCallError: the call was stopped.
        """
        if self._stopped:
            raise EngineCallError(self._stopped)
        request.label, request.on_end, request.on_discard = label, self._on_end, self._on_discard
        self._requests[request] = None
        if request.ending is not None:
            self._on_end(request)

    async def wait(self, within_s: float | None = None) -> list[EngineRequest]:
        """Waits for finished requests and takes them; returns an empty list after ``within_s`` seconds.

        Raises:
            EngineCallError: the engine died or the call was stopped; all its requests have ended.
        """
        while True:
            self._changed.clear()
            if finished := self.take():
                return finished
            if self._stopped:
                raise EngineCallError(self._stopped)
            try:
                async with asyncio.timeout(within_s):
                    await self._changed.wait()
            except TimeoutError:
                return []

    def take(self) -> list[EngineRequest]:
        """Takes the finished requests without waiting, in the order of their endings.

        Raises:
            EngineCallError: a request failed; the others are being aborted.
        """
        ended: list[EngineRequest] = []
        while self._requests and next(iter(self._requests)).ending is not None:
            ended.append(self._requests.popitem(last=False)[0])
        ended.reverse()
        failed = next((request for request in ended if request.ending is Ending.FAILED), None)
        if failed is not None:
            error = _as_call_error(failed.output)
            self._queue.drop(ended)
            self.stop(str(error))
            raise error from failed.output
        return ended

    async def cut(self, where: Callable[[Label], bool]) -> list[EngineRequest]:
        """Aborts the pending requests whose labels satisfy ``where``, and returns them with their partial output: None
        if the engine did not have them yet."""
        aborted = [request for request in self._requests if request.ending is None and where(request.label)]
        for request in aborted:
            request.on_discard = _taken
            del self._requests[request]
            self._queue.end(request, Ending.ABORTED)
        self._aborts.begin(aborted)
        await self._aborts.sent()
        return aborted

    def stop(self, reason: str) -> None:
        """Aborts every pending request at once; ``reason`` is the error that the caller gets. Does nothing if already
        stopped."""
        self._stopped = self._stopped or reason
        self._cut_short = self._cut_short or bool(self._requests)
        self._changed.set()
        requests, self._requests = self._requests, OrderedDict()
        # At the deadline, too: the engine is not kept for a caller that does not take its results.
        self._aborts.begin(self._queue.drop(requests), self._leave_alone)

    def _leave_alone(self) -> None:
        if self._in_turn:
            self._in_turn = False
            self._queue.leave_alone(self)

    def _on_end(self, request: EngineRequest) -> None:
        if request in self._requests:
            self._requests.move_to_end(request, last=False)
            self._changed.set()


def _taken(output: Output) -> None:
    """`EngineRequest.on_discard` of a request whose partial output is taken."""


class Aborts:
    """Aborts ended requests at the engine, in the background."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, requests: Iterable[EngineRequest], then: Callable[[], None] = lambda: None) -> None:
        """Aborts the requests that are at the engine, and discards what they have written. Requests that are not there
        yet are aborted by `hand_over`. ``then`` is called when the aborts were sent."""
        if at_engine := [request for request in requests if request.collector is not None]:
            task = asyncio.get_running_loop().create_task(self._abort(at_engine))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: then())
        else:
            then()

    async def sent(self) -> None:
        """Waits until every abort so far has been sent to the engine."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _abort(self, requests: Sequence[EngineRequest]) -> None:
        await self._engine.abort([request.request_id for request in requests])
        for request in requests:
            request.discard(request.collector.output)


class _FinishedEvent:
    """Replaces the event of a request's collector, which vLLM sets when the request has finished: the request's slot
    and memory are freed at once, not when its output is read."""

    def __init__(self, queue: RequestQueue, request: EngineRequest) -> None:
        self._queue = queue
        self._request = request

    def set(self) -> None:
        request = self._request
        if request.ending is None:
            request.output = _failure(request) or request.collector.output
            failed = isinstance(request.output, Exception)
            self._queue.end(request, Ending.FAILED if failed else Ending.FINISHED)


async def feed(engine: AsyncLLM, queue: RequestQueue) -> None:
    """Hands requests to the engine as the queue lets them start, until cancelled."""
    while True:
        await hand_over(engine, queue, await queue.next())


async def hand_over(engine: AsyncLLM, queue: RequestQueue, request: EngineRequest) -> None:
    """Hands a started request to the engine. A request that the engine does not accept has failed."""
    prompt = tokens_input(list(request.token_ids), cache_salt=request.cache_salt or None)
    try:
        collector = await engine.add_request(request.request_id, prompt, request.params, priority=request.priority)
    except Exception as error:
        if request.ending is None:
            request.output = error
            queue.end(request, Ending.FAILED)
        return
    if request.ending is not None:
        # Aborted meanwhile, perhaps before the engine knew the request.
        await engine.abort(collector.request_id, internal=True)
        request.discard(collector.output)
        return
    request.collector = collector
    collector.ready = _FinishedEvent(queue, request)
    if collector.output is not None:  # it came before the event was replaced
        collector.ready.set()


def _failure(request: EngineRequest) -> Exception | None:
    """The error of a request that ended with vLLM's finish reason ``error``, which says no more."""
    output = request.collector.output
    if not isinstance(output, RequestOutput) or output.outputs[0].finish_reason != "error":
        return None
    if request.params.structured_outputs is not None:
        return ValueError("its JSON schema cannot be compiled")
    return RuntimeError("vLLM ended a request with finish_reason 'error'")


def _as_call_error(error: Exception) -> EngineCallError:
    if isinstance(error, ValueError | TypeError | VLLMClientError):
        return RequestRefused(f"the engine refused a request: {error}")
    return EngineCallError(f"the engine failed: {error!r}")
