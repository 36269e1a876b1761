"""Replies of ``/v1/responses``, in the shapes and events of OpenAI's Responses API."""

from collections.abc import Iterator
from typing import Any

from deployments.admission.errors import ApiError
from deployments.http.choices import Choice, ChosenCall, choices
from deployments.http.progress import step_line
from deployments.http.replies import (
    THINKING_AT_ONCE,
    Data,
    Head,
    Json,
    pieces,
    search_block,
    step_event,
    token_logprobs,
    usage,
)
from deployments.http.responses.schema import ResponsesRequest, Turn
from deployments.http.responses.summary import summary_of
from deployments.http.responses.tools import NamedFunction
from deployments.store import LOST, RecordedMessage, ResponseRecord, SearchEnd, SearchStatus
from search.run.report import QuietEvent, SearchOutcome, StepScored
from search.settings import SearchSettings

MAX_REASONING_CHARS = 1 << 16
"""Maximum text of the reasoning item. The events contain the full text, which is megabytes for a large search."""
THOUGHT = "_thought"
"""End of the id of the reasoning item that has thinking, not progress."""
FIRST_STEP = 4
"""Number of the event of the first step: two events begin the response, two its reasoning item."""


class ResponseEvents:
    """The numbered events of one response's stream.

    They follow from the response as it begins, its steps and the response as it ends, so that they can be made again
    from what is stored, under the same numbers.

    A stream has a reasoning item with the scored steps of the search, another with the thinking of the answering path,
    if there is any, and the answer.
    """

    def __init__(self, begun: Json) -> None:
        """``begun``: the response in progress."""
        self._begun = begun
        self._item_id = f"rs_{search_id_of(begun)}"
        self.next = 0
        """Number of the next event."""

    def begin(self) -> Iterator[Json]:
        yield self._event("response.created", response=self._begun)
        yield self._event("response.in_progress", response=self._begun)

    def step(self, data: Json) -> Iterator[Json]:
        """Yields the events of a scored step. ``data``: its `step_event`."""
        yield from self._text_begun()
        where = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        yield self._event("response.reasoning_text.delta", **where, delta=step_line(data), search_event=data)

    def end(self, ended: Json, steps: int | None = None) -> Iterator[Json]:
        """Yields the last events. ``steps``: number of steps of the search, if some of them may not have been given."""
        if steps:
            yield from self._text_begun()
            self.next = FIRST_STEP + steps
        for index, item in enumerate(ended["output"]):
            events = {"reasoning": self._reasoning, "function_call": self._call}.get(item["type"], self._message)
            yield from events(index, item)
        # This API has no event for a cancelled response.
        kind = ended["status"] if ended["status"] in ("completed", "incomplete") else "failed"
        yield self._event(f"response.{kind}", response=ended)

    def _text_begun(self) -> Iterator[Json]:
        """Begins the reasoning item with its text, once."""
        if self.next < FIRST_STEP:
            where = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
            item = _reasoning(self._item_id, "in_progress", [], [])
            yield self._event("response.output_item.added", output_index=0, item=item)
            yield self._event("response.content_part.added", **where, part=_reasoning_text(""))

    def _reasoning(self, index: int, item: Json) -> Iterator[Json]:
        where = {"item_id": item["id"], "output_index": index}
        if item["id"] != self._item_id:
            begun = _reasoning(item["id"], "in_progress", [], [])
            yield self._event("response.output_item.added", output_index=index, item=begun)
            yield self._event("response.content_part.added", **where, content_index=0, part=_reasoning_text(""))
            for piece in pieces(item["content"][0]["text"], THINKING_AT_ONCE):
                yield self._event("response.reasoning_text.delta", **where, content_index=0, delta=piece)
        elif not item["content"]:
            yield self._event("response.output_item.added", output_index=index, item={**item, "summary": []})
        for part in item["content"]:
            yield self._event("response.reasoning_text.done", **where, content_index=0, text=part["text"])
            yield self._event("response.content_part.done", **where, content_index=0, part=part)
        for part in item["summary"]:
            text = part["text"]
            yield self._event("response.reasoning_summary_part.added", **where, summary_index=0, part=_summary_text(""))
            yield self._event("response.reasoning_summary_text.delta", **where, summary_index=0, delta=text)
            yield self._event("response.reasoning_summary_text.done", **where, summary_index=0, text=text)
            yield self._event("response.reasoning_summary_part.done", **where, summary_index=0, part=part)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _message(self, index: int, item: Json) -> Iterator[Json]:
        where = {"item_id": item["id"], "output_index": index, "content_index": 0}
        [part] = item["content"]
        empty = {**part, "text": "", "logprobs": []}
        begun = {**item, "status": "in_progress", "content": []}
        text, logprobs = part["text"], part["logprobs"]
        yield self._event("response.output_item.added", output_index=index, item=begun)
        yield self._event("response.content_part.added", **where, part=empty)
        yield self._event("response.output_text.delta", **where, delta=text, logprobs=logprobs)
        yield self._event("response.output_text.done", **where, text=text, logprobs=logprobs)
        yield self._event("response.content_part.done", **where, part=part)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _call(self, index: int, item: Json) -> Iterator[Json]:
        where, arguments = {"item_id": item["id"], "output_index": index}, item["arguments"]
        begun = {**item, "status": "in_progress", "arguments": ""}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        for piece in pieces(arguments):
            yield self._event("response.function_call_arguments.delta", **where, delta=piece)
        done = {"name": item["name"], "arguments": arguments}
        yield self._event("response.function_call_arguments.done", **where, **done)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _event(self, kind: str, **fields: Any) -> Json:
        event = {"type": kind, "sequence_number": self.next, **fields}
        self.next += 1
        return event


class ResponseReply:
    """The response to one request: complete, or as the events of a stream.

    A complete response has the answer, a reasoning item with its thinking, if there is any, and one if a summary was
    requested.
    """

    def __init__(self, request: ResponsesRequest, settings: SearchSettings, head: Head, stored: bool = False) -> None:
        """``stored``: whether the response is stored."""
        self._request = request
        self._head = head
        self._lines: list[str] = []
        """Text of the reasoning item; empty before the first step."""
        self._chars_left = MAX_REASONING_CHARS
        self.begun = _begun(request, settings, head, stored)
        """The response in progress."""
        self._events = ResponseEvents(self.begun)

    def unstored(self, reason: str) -> None:
        """Says in the reply that it is not stored, and why."""
        self.begun["store"] = False
        self._head = self._head._replace(notes=(*self._head.notes, f"store: the response is not stored: {reason}"))

    @property
    def record(self) -> ResponseRecord:
        """What is stored of the response when it begins."""
        messages = tuple(map(recorded, self._request.own_messages))
        return ResponseRecord(response=self.begun, messages=messages, streamed=bool(self._request.stream))

    def note(self, data: Json) -> None:
        """Adds a step to the text of the reasoning item, which only streamed responses have. ``data``: its
        `step_event`."""
        if not self._request.stream:
            return
        line = step_line(data)
        if len(line) <= self._chars_left or not self._lines:
            self._lines.append(line)
            self._chars_left -= len(line)
        else:
            self._chars_left = 0

    def ended(self, outcome: SearchOutcome) -> Json:
        """The whole response."""
        [choice] = choices(outcome, self._head.wanted)
        cut_off = choice.finish_reason == "length"
        search_id = search_id_of(self.begun)
        output: list[Json] = []
        reasoning = self._request.reasoning
        wanted = reasoning.wanted_summary if reasoning else None
        if self._lines or wanted:
            content = [_reasoning_text("".join(self._lines))] if self._lines else []
            summary = [_summary_text(summary_of(outcome, self._head, wanted != "concise"))] if wanted else []
            output.append(_reasoning(f"rs_{search_id}", "completed", content, summary))
        if choice.thinking:
            content = [_reasoning_text(choice.thinking)]
            output.append(_reasoning(f"rs_{search_id}{THOUGHT}", "completed", content, []))
        if choice.content is not None:
            output.append(_message(f"msg_{search_id}", choice))
        output += [_call(f"fc_{search_id}_{index}", call) for index, call in enumerate(choice.calls)]
        return {
            **self.begun,
            "status": "incomplete" if cut_off else "completed",
            "output": output,
            "incomplete_details": {"reason": "max_output_tokens"} if cut_off else None,
            "usage": _usage(self._head, outcome),
            "search": search_block(self._head, outcome),
        }

    def begin(self) -> Iterator[Data]:
        return self._events.begin()

    def step(self, event: StepScored) -> Iterator[Data]:
        data = step_event(event)
        self.note(data)
        return self._events.step(data)

    def quiet(self, event: QuietEvent) -> Iterator[Data]:
        """Yields nothing: this API has no event for it."""
        yield from ()

    def end(self, outcome: SearchOutcome) -> Iterator[Data]:
        return self._events.end(self.ended(outcome))

    def failed(self, error: ApiError) -> Iterator[Data]:
        return self._events.end(_failed(self.begun, error.body["error"]))


def ended_response(begun: Json, end: SearchEnd, response: Json | None) -> Json:
    """Returns the response of a stored search that has ended. ``response``: the stored one, if there is one."""
    if response is not None:
        return response
    if end.status is SearchStatus.CANCELLED:
        return {**begun, "status": "cancelled"}
    return _failed(begun, end.error or LOST)


def search_id_of(response: Json) -> str:
    return str(response["id"]).rpartition("_")[2]


def _begun(request: ResponsesRequest, settings: SearchSettings, head: Head, stored: bool) -> Json:
    reasoning = request.reasoning
    wanted = request.text.format if request.text else None
    choice = request.tool_choice
    return {
        "id": head.reply_id,
        "object": "response",
        "created_at": head.created,
        "status": "in_progress",
        "background": bool(request.background),
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "model": head.model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id or None,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.wanted_summary if reasoning else None,
        },
        "service_tier": head.service_tier,
        "store": stored,
        "temperature": head.temperature,
        "text": {
            "format": {"type": "text"} if wanted is None else wanted.model_dump(by_alias=True, exclude_none=True),
        },
        "tool_choice": choice.model_dump() if isinstance(choice, NamedFunction) else choice or "auto",
        "tools": [tool.model_dump() for tool in request.tools or ()],
        "top_p": settings.strategy.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def _failed(begun: Json, error: Json) -> Json:
    """Returns a response that failed with an error as clients get it, under the Responses API's code for it."""
    codes = {"invalid_request_error": "invalid_prompt", "rate_limit_error": "rate_limit_exceeded"}
    return {**begun, "status": "failed", "error": {**error, "code": codes.get(error["type"], "server_error")}}


def _reasoning(item_id: str, status: str, content: list[Json], summary: list[Json]) -> Json:
    return {"type": "reasoning", "id": item_id, "summary": summary, "content": content, "status": status}


def _reasoning_text(text: str) -> Json:
    return {"type": "reasoning_text", "text": text}


def _summary_text(text: str) -> Json:
    return {"type": "summary_text", "text": text}


def _message(item_id: str, choice: Choice) -> Json:
    logprobs = token_logprobs(choice.logprobs or ())
    return {
        "type": "message",
        "id": item_id,
        "role": "assistant",
        "status": "incomplete" if choice.finish_reason == "length" else "completed",
        "content": [{"type": "output_text", "text": choice.text, "annotations": [], "logprobs": logprobs}],
    }


def _call(item_id: str, call: ChosenCall) -> Json:
    told = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
    return {"type": "function_call", "id": item_id, **told, "status": "completed"}


def recorded(turn: Turn) -> RecordedMessage:
    """A message as it is stored."""
    tools = {field: value for field, value in turn.items() if field in ("tool_calls", "tool_call_id")}
    message = (str(turn["role"]), str(turn["content"] or ""))
    return (*message, tools) if tools else message


def _usage(head: Head, outcome: SearchOutcome) -> Json:
    """Returns the usage of a chat completion under the field names of the Responses API."""
    counted = usage(head, outcome)
    return {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": {**counted["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": counted["completion_tokens_details"],
        "total_tokens": counted["total_tokens"],
    }
