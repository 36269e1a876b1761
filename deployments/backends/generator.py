"""`search.ports.Generator` over a backend: a server that speaks OpenAI's API.

A branch is one request with its own seed. Whole solutions are answers to the search's chat. A step continues the text
of its path, which is sent as a final message of the assistant, or as token ids where the search has them.
"""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias

from cachetools import LRUCache

from deployments.backends.capabilities import Capabilities, Continuing
from deployments.backends.errors import BackendError, Fault
from deployments.backends.texts import is_blank, shares, split_steps, token_counts
from deployments.backends.usage import Usage, estimated_tokens
from deployments.backends.wire import Until
from search.errors import GeneratorError, GeneratorRefused, SchemaRefused
from search.ports import (
    Branch,
    Child,
    ChildGroup,
    ExpandItem,
    ExpandRequest,
    StopCondition,
    branch_seed,
)
from search.tools.fair_slots import Requester
from search.tree import NO_THOUGHT, Step, StepEnd, Thought

HEARTBEAT_S = 5.0
"""Longest time between two messages of an ``expand`` call."""
GROUP_S = 0.004
"""How long a finished child waits for others to share its message."""
THINKING = ("<think>\n", "\n</think>\n\n")
"""The marks of a thought that a backend tells apart, in the text of its step."""
MAX_PROMPTS = 4096
MAX_BLANK_REQUESTS = 16
"""Requests for a step of which none writes more than blanks; then it ends."""
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
UNFINISHED = {None, "abort", "error"}
"""Finish reasons of what was not written to its end, nor to a limit."""
ENDS = {"length": StepEnd.LENGTH, "content_filter": StepEnd.LENGTH}
"""By finish reason; any other one is the end of the sequence, or a stop."""

Json: TypeAlias = dict[str, Any]


class Calls(Protocol):
    """Calls to a backend; see `deployments.backends.pool.Pool`. ``deadline``: event loop time, seconds."""

    async def get(self, path: str, *, deadline: float) -> Json: ...

    async def post(
        self, path: str, json: Mapping[str, Any], *, deadline: float, near: str = "", requester: Requester | None = None
    ) -> Json: ...

    async def collect(
        self,
        path: str,
        json: Mapping[str, Any],
        *,
        deadline: float,
        near: str = "",
        requester: Requester | None = None,
        until: Until | None = None,
    ) -> list[Json]: ...

    def call_one_at_a_time(self) -> None: ...


class Written(NamedTuple):
    """What a backend wrote for one request, or as one of its choices."""

    text: str
    end: StepEnd
    tokens: int
    """Those of thinking and text."""
    token_ids: tuple[int, ...] | None
    """None: the backend does not tell them."""
    logprobs: tuple[tuple[str, float], ...] | None
    """The tokens of ``text`` with their log-probabilities, nats; None: they were not asked for."""
    prefix_tokens: int | None
    """As of `search.ports.Child`."""
    cached_tokens: int
    estimated: bool
    """Whether numbers of tokens are estimates."""
    thinking: str = ""
    thinking_tokens: int | None = None
    """None: the backend does not tell them apart."""

    def followed_by(self, more: "Written") -> "Written":
        """This and what continues it."""
        ids = None if self.token_ids is None or more.token_ids is None else self.token_ids + more.token_ids
        logprobs = None if self.logprobs is None or more.logprobs is None else self.logprobs + more.logprobs
        return self._replace(
            text=self.text + more.text,
            end=more.end,
            tokens=max(1, self.tokens) + more.tokens,
            token_ids=ids,
            logprobs=logprobs,
            estimated=self.estimated or more.estimated,
        )

    def as_step(self) -> Step:
        """All of it as one step."""
        each = None if self.logprobs is None else tuple(logprob for _, logprob in self.logprobs)
        if self.token_ids is None:
            return Step((), self.text, self.end, _sum(self.logprobs), counted=self.tokens)
        each = each if each and len(each) == len(self.token_ids) else None
        return Step(self.token_ids, self.text, self.end, _sum(self.logprobs), each)

    def child(self, item: ExpandItem, branch: Branch, steps: tuple[Step, ...]) -> Child:
        read = self.prefix_tokens
        return Child(item.parent, branch.index, steps, self.cached_tokens, prefix_tokens=read, estimated=self.estimated)


class _Choice:
    """One choice of a reply: whole, or as the deltas of a stream come."""

    def __init__(self) -> None:
        self.text = self.thinking = ""
        self.finish: str | None = None
        self.ids: list[int] = []
        self.logprobs: list[tuple[str, float]] = []

    def add(self, told: Json) -> None:
        """Raises ValueError, TypeError or KeyError: it has not the shape of OpenAI's API."""
        message = told.get("message") or told.get("delta") or {}
        self.text += message.get("content") or told.get("text") or ""
        self.thinking += message.get("reasoning_content") or message.get("reasoning") or ""
        self.finish = told.get("finish_reason") or self.finish
        self.ids += [int(token) for token in told.get("token_ids") or ()]
        if logprobs := told.get("logprobs"):
            if logprobs.get("content"):
                self.logprobs += [(str(each["token"]), float(each["logprob"])) for each in logprobs["content"]]
            elif logprobs.get("tokens"):
                pairs = zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)
                self.logprobs += [(str(token), float(logprob)) for token, logprob in pairs]


class UrlGenerator:
    """Writes steps by a backend."""

    def __init__(
        self, calls: Calls, capabilities: Capabilities, step_delimiter: str = "\n\n", served_name: str = ""
    ) -> None:
        """``served_name``: the name by which searches ask for the model; empty: any."""
        self._calls = calls
        self._can = capabilities
        if not capabilities.concurrent:
            calls.call_one_at_a_time()
        self._delimiter = step_delimiter
        self._served_name = served_name
        self._has_n = capabilities.n
        self._prompts: LRUCache[int, int] = LRUCache(MAX_PROMPTS)
        """Tokens of prompts that were longer than estimated, by the hash of their messages."""
        self.running = 0
        """Number of requests at the backend."""
        self.written_tokens = 0
        """Tokens of finished requests."""

    async def expand(self, request: ExpandRequest) -> AsyncGenerator[ChildGroup, None]:
        """Streams the finished children in groups, as the port specifies. A group is empty where no child has finished
        for ``HEARTBEAT_S``. Closing the iterator closes the connections of the unfinished branches.

        A branch that fails ends the call only when all others have arrived.

        Raises:
            GeneratorRefused: the backend refuses a request, or lacks what it takes.
            SchemaRefused: it refuses a request with a JSON schema.
            GeneratorError: the backend failed, or the deadline passed.
        """
        self._check(request)
        deadline = asyncio.get_running_loop().time() + request.deadline_s
        writing = {asyncio.create_task(self._children(request, *work, deadline)) for work in self._works(request)}
        failure: BackendError | None = None
        pending = writing
        try:
            while pending:
                done, pending = await asyncio.wait(pending, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
                if done and pending:
                    await asyncio.sleep(GROUP_S)
                    more = {task for task in pending if task.done()}
                    done, pending = done | more, pending - more
                children: list[Child] = []
                for task in done:
                    error = task.exception()
                    if error is None:
                        children += task.result()
                    elif isinstance(error, BackendError):
                        failure = failure or error
                    else:
                        raise error
                if children or not done:
                    yield ChildGroup(tuple(children))
        finally:
            for task in writing:
                task.cancel()
            await asyncio.gather(*writing, return_exceptions=True)
        if failure is not None:
            raise _as_search_error(failure, bool(request.json_schema)) from None

    async def canary(self, deadline_s: float) -> float:
        """Has the backend write one token. Returns the seconds that it took.

        Raises:
            GeneratorError: it did not, or not within ``deadline_s``.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        messages = [{"role": "user", "content": "1"}]
        try:
            body = {"model": self._can.model, "messages": messages, self._can.limit_name: 1}
            await self._calls.post(CHAT, body, deadline=began + deadline_s)
        except BackendError as error:
            raise _as_search_error(error, has_schema=False) from None
        return clock() - began

    def _check(self, request: ExpandRequest) -> None:
        """Raises GeneratorRefused if the backend lacks what a request takes."""
        can, lacks = self._can, ""
        if request.model not in ("", self._served_name) and self._served_name:
            lacks = f"the model {request.model!r}: it serves {self._served_name!r}"
        elif request.tool is not None:
            lacks = "a way to run programs within its answers"
        elif request.thought is not None and request.thought.closes:
            lacks = "a limit of thinking (budget.thinking)"
        elif request.json_schema and not can.schemas:
            lacks = "JSON schemas"
        elif request.logprobs and not can.logprobs:
            lacks = "log-probabilities"
        elif any(item.prefix for item in request.expansions) and not can.token_ids:
            lacks = "prompts of token ids"
        elif not can.continues and any(item.text or _has_begun(item) for item in request.expansions):
            lacks = "continuing a final message of the assistant"
        elif (request.sampling.top_k or request.sampling.min_p) and not can.sampling:
            lacks = "top_k and min_p"
        if lacks:
            raise GeneratorRefused(f"the backend {can.model!r} lacks {lacks}")

    def _works(self, request: ExpandRequest) -> list[tuple[ExpandItem, Sequence[Branch]]]:
        """The branches of each request to the backend: one, or where it takes no seeds all equal ones of a node."""
        works: list[tuple[ExpandItem, Sequence[Branch]]] = []
        together = self._has_n and not self._can.seeds and request.stop_condition is StopCondition.SOLUTION
        for item in request.expansions:
            if not together:
                works += [(item, (branch,)) for branch in item.branches]
                continue
            alike: dict[int, list[Branch]] = {}
            for branch in item.branches:
                alike.setdefault(branch.max_tokens, []).append(branch)
            works += [(item, branches) for branches in alike.values()]
        return works

    async def _children(
        self, request: ExpandRequest, item: ExpandItem, branches: Sequence[Branch], deadline: float
    ) -> list[Child]:
        if request.stop_condition is StopCondition.STEP:
            return [await self._step(request, item, branches[0], deadline)]
        written = await self._together(request, item, branches, deadline)
        thinks = request.thought is not None
        return [
            each.child(item, branch, self._solution(each, thinks))
            for branch, each in zip(branches, written, strict=True)
        ]

    async def _together(
        self, request: ExpandRequest, item: ExpandItem, branches: Sequence[Branch], deadline: float
    ) -> list[Written]:
        """What the backend writes for these branches, by one request. If it refuses so many choices, it gets a request
        for each branch, from then on for all."""
        first, *others = branches
        try:
            return await self._written(request, item, first, deadline, choices=len(branches))
        except BackendError as error:
            if error.fault is not Fault.REFUSED or not others:
                raise
        one = await self._written(request, item, first, deadline)  # raises where the request itself is refused
        self._has_n = False
        rest = [self._written(request, item, branch, deadline) for branch in others]
        for each in await asyncio.gather(*rest, return_exceptions=True):  # none is left running where another fails
            if isinstance(each, BaseException):
                raise each
            one += each
        return one

    async def _step(self, request: ExpandRequest, item: ExpandItem, branch: Branch, deadline: float) -> Child:
        """Writes one step. One that is blank so far goes on in another request, under a seed of its own."""
        [step] = await self._written(request, item, branch, deadline)
        requests = 1
        while step.end is StepEnd.DELIMITER and is_blank(step.text, self._delimiter):
            left, requests = branch.max_tokens - max(1, step.tokens), requests + 1
            if left < 1 or requests > MAX_BLANK_REQUESTS:
                step = step._replace(end=StepEnd.LENGTH)
                break
            size = len(step.text) if step.token_ids is None else len(step.token_ids)
            rest = Branch(branch.index, branch_seed(branch.seed, (), size), left)
            [more] = await self._written(request, item, rest, deadline, before=step)
            step = step.followed_by(more)
        return step.child(item, branch, (step.as_step(),))

    def _solution(self, written: Written, thinks: bool) -> tuple[Step, ...]:
        """The steps of a whole solution."""
        texts = split_steps(written.text, self._delimiter)
        read = (written.thinking + texts[0], *texts[1:])
        if written.logprobs:
            counts = token_counts([token for token, _ in written.logprobs], read)
        else:
            counts = shares(written.tokens, read)
        ends = list(accumulate(counts, initial=0))
        # Some servers tell the log-probabilities of the text alone.
        counts[0] += max(0, written.tokens - ends[-1])
        steps = [
            Step((), text, StepEnd.DELIMITER, _sum(written.logprobs, *span), counted=count)
            for text, count, span in zip(texts, counts, pairwise(ends), strict=True)
        ]
        steps[-1] = steps[-1]._replace(end=written.end)
        if written.token_ids and written.logprobs and len(written.token_ids) == len(written.logprobs):
            each = tuple(logprob for _, logprob in written.logprobs)
            steps = [
                step._replace(token_ids=written.token_ids[begin:end], token_logprobs=each[begin:end], counted=None)
                for step, (begin, end) in zip(steps, pairwise(ends), strict=True)
            ]
        if written.thinking:
            opening, closing = THINKING
            text = opening + written.thinking + (closing if written.text.strip() else "")
            apart = written.thinking_tokens
            if apart is None:
                apart = shares(counts[0], (written.thinking, texts[0]))[0]
            thought = Thought(max(1, min(apart, counts[0])), len(text)) if thinks else NO_THOUGHT
            steps[0] = steps[0]._replace(text=text + texts[0], thought=thought, counted=max(1, counts[0]))
        return tuple(steps)

    async def _written(
        self,
        request: ExpandRequest,
        item: ExpandItem,
        branch: Branch,
        deadline: float,
        *,
        before: Written | None = None,
        choices: int = 1,
    ) -> list[Written]:
        """Makes one request, and returns what was written as each of its choices. ``before``: what was written of the
        branch already."""
        text, ids = (before.text, before.token_ids or ()) if before else ("", ())
        path, body = self._body(request, item, branch, item.text + text, ids)
        if choices > 1:
            body["n"] = choices
        steps = request.stop_condition is StopCondition.STEP
        # What grows from one first step shares its path. First steps and whole solutions share the prompt alone.
        near = f"{request.search_id} {(*item.parent, branch.index)[0]}" if steps else ""
        requester = Requester(request.cache_salt, request.search_id, request.lane.flex)
        ask = partial(self._one_step if steps and not self._can.stops else self._whole, near=near, requester=requester)
        self.running += 1
        try:
            try:
                found, reply = await ask(path, body, deadline)
            except BackendError as error:
                if error.fault is not Fault.REFUSED or not await self._shorten(
                    path, body, item, text, deadline, requester
                ):
                    raise
                found, reply = await ask(path, body, deadline)
            if len(found) != choices or any(each.finish in UNFINISHED for each in found):
                raise BackendError(Fault.INVALID, "", f"not {choices} finished choices")
            written = self._read(found, reply, f"{item.messages}{item.text}{text}", branch.max_tokens, request)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BackendError(Fault.INVALID, "", "the reply has not the shape of OpenAI's API") from error
        finally:
            self.running -= 1
        self.written_tokens += sum(each.tokens for each in written)
        return written

    async def _shorten(
        self, path: str, body: Json, item: ExpandItem, text: str, deadline: float, requester: Requester
    ) -> bool:
        """Lowers the limit of a request that was refused to what the context holds, which a server refuses to exceed
        and only it can tell: the prompt's tokens were estimated. Returns whether that is less than before.

        ``text``: what was written of the branch already.
        """
        context, limit = self._can.context_tokens, self._can.limit_name
        if context is None or body[limit] == 1:
            return False
        left_out = ("n", "response_format", "stop", "include_stop_str_in_output")
        short = {name: value for name, value in body.items() if name not in left_out} | {limit: 1}
        told = Usage.told(await self._calls.post(path, short, deadline=deadline, requester=requester))
        if told is None or context - told.input_tokens >= body[limit]:
            return False
        if item.messages:
            self._prompts[hash(item.messages)] = max(0, told.input_tokens - estimated_tokens(item.text + text))
        body[limit] = max(1, context - told.input_tokens)
        return True

    def _limit(self, item: ExpandItem, branch: Branch, text: str) -> int:
        """The limit of a request for a branch behind ``text``."""
        context, read = self._can.context_tokens, self._prompts.get(hash(item.messages)) if item.messages else None
        if context is None or read is None:
            return branch.max_tokens
        return max(1, min(branch.max_tokens, context - read - estimated_tokens(text)))

    def _body(
        self, request: ExpandRequest, item: ExpandItem, branch: Branch, text: str, ids: Sequence[int]
    ) -> tuple[str, Json]:
        """The path and the body of a request. ``text``: that of the assistant's message so far."""
        can, sampling = self._can, request.sampling
        body: Json = {
            "model": can.model,
            can.limit_name: self._limit(item, branch, text),
        }
        if can.temperature:
            body |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
        if can.sampling:  # explicitly: servers have defaults of their own
            body |= {"top_k": sampling.top_k or can.no_top_k, "min_p": sampling.min_p}
        if can.seeds and sampling.temperature > 0:
            body["seed"] = branch.seed
        if request.json_schema:
            schema = {"name": "answer", "strict": True, "schema": json.loads(request.json_schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if request.stop_condition is StopCondition.STEP and can.stops:
            body |= {"stop": [self._delimiter], "include_stop_str_in_output": True}
        if item.prefix:
            body |= {"prompt": [*item.prefix, *ids], "return_token_ids": True}
            return COMPLETIONS, body | ({"logprobs": 0} if request.logprobs else {})
        messages = json.loads(item.messages)
        begun = messages.pop()["content"] if _is_begun(messages) else ""
        if text or begun:
            messages.append({"role": "assistant", "content": begun + text})
            if can.continues is Continuing.ASKED:
                body |= CONTINUE
        body["messages"] = messages
        return CHAT, body | ({"logprobs": True} if request.logprobs else {})

    async def _whole(
        self, path: str, body: Json, deadline: float, near: str, requester: Requester
    ) -> tuple[list[_Choice], Json]:
        """The choices of a whole reply, and the reply with its usage."""
        if self._can.cancels:
            replies = [await self._calls.post(path, body, deadline=deadline, near=near, requester=requester)]
        else:  # Closing the connection of a stream is what ends it at most servers.
            body = self._streamed(body)
            replies = await self._calls.collect(path, body, deadline=deadline, near=near, requester=requester)
        choices: dict[int, _Choice] = {}
        for reply in replies:
            for told in reply.get("choices") or ():
                choices.setdefault(int(told.get("index", 0)), _Choice()).add(told)
        usage = next((reply for reply in reversed(replies) if reply.get("usage")), {})
        return [choices[index] for index in sorted(choices)], usage

    async def _one_step(
        self, path: str, body: Json, deadline: float, near: str, requester: Requester
    ) -> tuple[list[_Choice], Json]:
        """As `_whole`, of a stream that is closed at the step delimiter."""
        choice = _Choice()

        def begins() -> Callable[[Json], bool]:
            nonlocal choice
            choice = _Choice()
            return has_step

        def has_step(event: Json) -> bool:
            for told in event.get("choices") or ():
                choice.add(told)
            return self._delimiter in choice.text

        body = self._streamed(body)
        replies = await self._calls.collect(path, body, deadline=deadline, near=near, requester=requester, until=begins)
        if (index := choice.text.find(self._delimiter)) >= 0:
            choice.text, choice.finish = choice.text[: index + len(self._delimiter)], "stop"
            return [choice], {}
        return [choice], next((reply for reply in reversed(replies) if reply.get("usage")), {})

    def _streamed(self, body: Json) -> Json:
        return body | {"stream": True} | ({"stream_options": {"include_usage": True}} if self._can.usage else {})

    def _read(
        self, found: Sequence[_Choice], reply: Json, prompt: str, max_tokens: int, request: ExpandRequest
    ) -> list[Written]:
        texts = [each.thinking + each.text for each in found]
        usage = Usage.of(reply, prompt, "".join(texts), max_tokens * len(found))
        counts = shares(usage.output_tokens, texts)
        details = (reply.get("usage") or {}).get("completion_tokens_details")
        apart = details.get("reasoning_tokens") if isinstance(details, Mapping) and len(found) == 1 else None
        written = []
        for number, (choice, count) in enumerate(zip(found, counts, strict=True)):
            known = len(choice.ids) or (len(choice.logprobs) if usage.estimated else 0)
            end = ENDS.get(choice.finish or "", StepEnd.END_OF_SEQUENCE)
            at_delimiter = request.stop_condition is StopCondition.STEP and choice.text.endswith(self._delimiter)
            if end is StepEnd.END_OF_SEQUENCE and at_delimiter:
                end = StepEnd.DELIMITER
            written.append(
                Written(
                    choice.text,
                    end,
                    known or count,
                    tuple(choice.ids) if choice.ids else None,
                    tuple(choice.logprobs) if request.logprobs else None,
                    0 if number else None if usage.estimated else usage.input_tokens,
                    0 if number else usage.cached_tokens,
                    usage.estimated and not known,
                    choice.thinking,
                    apart if isinstance(apart, int) else None,
                )
            )
        return written


def _has_begun(item: ExpandItem) -> bool:
    return bool(item.messages) and _is_begun(json.loads(item.messages))


def _is_begun(messages: Sequence[Json]) -> bool:
    """Whether a chat ends with the beginning of the answer: the search's prefill."""
    return bool(messages) and messages[-1]["role"] == "assistant"


def _sum(logprobs: Sequence[tuple[str, float]] | None, start: int = 0, end: int | None = None) -> float | None:
    return None if logprobs is None else math.fsum(logprob for _, logprob in logprobs[start:end])


def _as_search_error(error: BackendError, has_schema: bool) -> GeneratorError:
    if error.fault is not Fault.REFUSED:
        return GeneratorError(str(error))
    return SchemaRefused(str(error)) if has_schema else GeneratorRefused(str(error))
