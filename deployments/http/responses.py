"""Replies of ``/v1/responses``, in the shapes and events of OpenAI's Responses API."""

from collections.abc import Iterator
from itertools import count
from typing import Any

from deployments.admission.errors import ApiError, BadRequest, Busy
from deployments.http.choices import Choice, choices
from deployments.http.replies import Data, Head, Json, search_block, step_event, step_line, token_logprobs, usage
from deployments.http.responses_schema import ResponsesRequest
from search.run.report import SearchOutcome, StepScored, StepsPruned
from search.settings import SearchSettings

MAX_REASONING_CHARS = 1 << 16
"""Maximum text of the reasoning item. The events contain the full text, which is megabytes for a large search."""


class Responses:
    """The response to one request: complete, or as the events of a stream.

    A stream has two items: a reasoning item with the scored steps of the search, and the answer. A complete response
    has only the answer.
    """

    def __init__(self, request: ResponsesRequest, settings: SearchSettings, head: Head, stored: bool = False) -> None:
        """``stored``: whether the search is stored."""
        self._stored = stored
        self._request = request
        self._settings = settings
        self._head = head
        self._numbers = count()
        self._lines: list[str] = []
        """Text of the reasoning item; empty before the first step."""
        self._chars_left = MAX_REASONING_CHARS
        _, _, search_id = head.reply_id.rpartition("_")
        self._reasoning_id, self._message_id = f"rs_{search_id}", f"msg_{search_id}"

    def whole(self, outcome: SearchOutcome) -> Json:
        """A ``response``."""
        [choice] = choices(outcome, self._head.wanted)
        return self._ended(outcome, choice, [self._message(choice)])

    def begin(self) -> Iterator[Data]:
        begun = self._response("in_progress", [])
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)

    def step(self, event: StepScored) -> Iterator[Data]:
        where = {"item_id": self._reasoning_id, "output_index": 0, "content_index": 0}
        if not self._lines:
            yield self._event("response.output_item.added", output_index=0, item=self._reasoning("in_progress", []))
            yield self._event("response.content_part.added", **where, part=_reasoning_text(""))
        line = step_line(event)
        if len(line) <= self._chars_left or not self._lines:
            self._lines.append(line)
            self._chars_left -= len(line)
        else:
            self._chars_left = 0
        data = step_event(event)
        yield self._event("response.reasoning_text.delta", **where, delta=line, search_event=data)

    def pruned(self, event: StepsPruned) -> Iterator[Data]:
        """Yields nothing: this API has no event for it."""
        yield from ()

    def end(self, outcome: SearchOutcome) -> Iterator[Data]:
        output: list[Json] = []
        if self._lines:
            text = "".join(self._lines)
            where = {"item_id": self._reasoning_id, "output_index": 0, "content_index": 0}
            output.append(self._reasoning("completed", [_reasoning_text(text)]))
            yield self._event("response.reasoning_text.done", **where, text=text)
            yield self._event("response.content_part.done", **where, part=_reasoning_text(text))
            yield self._event("response.output_item.done", output_index=0, item=output[0])
        [choice] = choices(outcome, self._head.wanted)
        index, part = len(output), _output_text(choice)
        where = {"item_id": self._message_id, "output_index": index, "content_index": 0}
        empty = {**part, "text": "", "logprobs": []}
        begun = {**self._message(choice), "status": "in_progress", "content": []}
        output.append(self._message(choice))
        yield self._event("response.output_item.added", output_index=index, item=begun)
        yield self._event("response.content_part.added", **where, part=empty)
        logprobs = part["logprobs"]
        yield self._event("response.output_text.delta", **where, delta=choice.text, logprobs=logprobs)
        yield self._event("response.output_text.done", **where, text=choice.text, logprobs=logprobs)
        yield self._event("response.content_part.done", **where, part=part)
        yield self._event("response.output_item.done", output_index=index, item=output[index])
        ended = self._ended(outcome, choice, output)
        yield self._event(f"response.{ended['status']}", response=ended)

    def failed(self, error: ApiError) -> Iterator[Data]:
        fields = {"code": _code(error), "message": error.message, "param": error.param, "type": error.type}
        yield self._event("response.failed", response=self._response("failed", [], error=fields))

    def _event(self, kind: str, **fields: Any) -> Json:
        return {"type": kind, "sequence_number": next(self._numbers), **fields}

    def _ended(self, outcome: SearchOutcome, choice: Choice, output: list[Json]) -> Json:
        cut_off = choice.finish_reason == "length"
        return self._response(
            "incomplete" if cut_off else "completed",
            output,
            incomplete_details={"reason": "max_output_tokens"} if cut_off else None,
            usage=_usage(self._head, outcome),
            search=search_block(self._head, outcome),
        )

    def _response(self, status: str, output: list[Json], **fields: Any) -> Json:
        request, head = self._request, self._head
        return {
            "id": head.reply_id,
            "object": "response",
            "created_at": head.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": head.model,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": request.reasoning.effort if request.reasoning else None, "summary": None},
            "service_tier": head.service_tier,
            "store": self._stored,
            "temperature": head.temperature,
            "text": {"format": self._format()},
            "tool_choice": "auto",
            "tools": [],
            "top_p": self._settings.strategy.top_p,
            "truncation": "disabled",
            "usage": None,
            **fields,
        }

    def _format(self) -> Json:
        wanted = self._request.text.format if self._request.text else None
        return {"type": "text"} if wanted is None else wanted.model_dump(by_alias=True, exclude_none=True)

    def _reasoning(self, status: str, content: list[Json]) -> Json:
        return {"type": "reasoning", "id": self._reasoning_id, "summary": [], "content": content, "status": status}

    def _message(self, choice: Choice) -> Json:
        return {
            "type": "message",
            "id": self._message_id,
            "role": "assistant",
            "status": "incomplete" if choice.finish_reason == "length" else "completed",
            "content": [_output_text(choice)],
        }


def _reasoning_text(text: str) -> Json:
    return {"type": "reasoning_text", "text": text}


def _output_text(choice: Choice) -> Json:
    logprobs = token_logprobs(choice.logprobs or ())
    return {"type": "output_text", "text": choice.text, "annotations": [], "logprobs": logprobs}


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


def _code(error: ApiError) -> str:
    """Returns the Responses API's code for an error."""
    if isinstance(error, BadRequest):
        return "invalid_prompt"
    return "rate_limit_exceeded" if isinstance(error, Busy) else "server_error"
