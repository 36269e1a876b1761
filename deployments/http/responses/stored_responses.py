"""Stored responses: their state, their stream taken up again, and the conversation that they continue."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from sse_starlette import ServerSentEvent

from deployments.admission.errors import BadRequest
from deployments.http.errors import api_error
from deployments.http.replies import Json, call_of
from deployments.http.responses.reply import ResponseEvents, ended_response, search_id_of
from deployments.http.responses.schema import Turn
from deployments.http.searches.stored_searches import events_and_end
from deployments.http.store_access import StoreAccess
from deployments.http.streaming import sse
from deployments.store import Damaged, NotThere, ResponseRecord, Search, SearchEnd, Searches

PREFIX = "resp_"
MAX_TURNS = 256
"""Maximum number of responses in a conversation."""
PREVIOUS = "previous_response_id"
ITEM_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco"}
"""Beginnings of items' ids."""
_NO_TOOLS: Json = {}


class InputItem(NamedTuple):
    """A message, a call or a result of a stored response's input."""

    id: str
    item: Json

    @property
    def json(self) -> Json:
        return {"id": self.id, "status": "completed", **self.item}


class StoredResponse(NamedTuple):
    """The stored search of a response, and the response as it began."""

    search: Search
    begun: ResponseRecord

    def now(self) -> Json:
        """The ``response`` as it is now.

        Raises:
            NotThere: it was deleted meanwhile.
        """
        begun, end = self.begun.response, self.search.end
        return begun if end is None else ended_response(begun, end, self.search.response)


def stored_response(searches: Searches, response_id: str) -> StoredResponse:
    """Reads a response from the store.

    Raises:
        NotThere: the response was not stored, has expired or was deleted, or belongs to another key.
    """
    try:
        if not response_id.startswith(PREFIX):
            raise NotThere("response", response_id)
        search = searches.get(response_id.removeprefix(PREFIX))
        return StoredResponse(search, search.begun)
    except NotThere:
        raise NotThere("response", response_id) from None


def input_items(record: ResponseRecord) -> list[InputItem]:
    """The messages of a response's own input, in their order."""
    prefix = search_id_of(record.response)
    return [
        InputItem(f"{ITEM_PREFIXES[item['type']]}_{prefix}_{index}", item)
        for index, item in enumerate(item for message in record.messages for item in _items(*message))
    ]


def _items(role: str, text: str, tools: Json = _NO_TOOLS) -> Iterator[Json]:
    """Yields the input items of a stored message."""
    if "tool_call_id" in tools:
        yield {"type": "function_call_output", "call_id": tools["tool_call_id"], "output": text}
        return
    calls = tools.get("tool_calls", ())
    if text or not calls:
        part: Json = {"type": "input_text", "text": text}
        if role == "assistant":
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        yield {"type": "message", "role": role, "content": [part]}
    for call in calls:
        yield {"type": "function_call", "call_id": call["id"], **call["function"]}


def conversation(searches: Searches, response_id: str, max_chars: int) -> list[Turn]:
    """Returns all turns up to a response's answer, the oldest first, without the instructions of any response.

    Raises:
        BadRequest: a response of the conversation is missing or has no answer, or there are more than `MAX_TURNS`
            responses or ``max_chars`` characters.
    """
    newest_first: list[Turn] = []
    chars = responses = 0
    name: str | None = response_id
    while name is not None:
        begun, answer = _answered(searches, name, is_earlier=name != response_id)
        turns = [answer, *(_turn(*message) for message in reversed(begun.messages))]
        newest_first += turns
        chars += sum(len(turn["content"] or "") + len(str(turn.get("tool_calls", ""))) for turn in turns)
        responses += 1
        if responses > MAX_TURNS or chars > max_chars:
            limits = f"{MAX_TURNS} responses and {max_chars} characters"
            message = f"the conversation of the previous response is too long: {limits} are allowed"
            raise BadRequest(message, PREVIOUS, "conversation_too_long")
        name = begun.response[PREVIOUS]
    return newest_first[::-1]


def _turn(role: str, text: str, tools: Json = _NO_TOOLS) -> Turn:
    return {"role": role, "content": text, **tools}


def _answer(output: list[Json]) -> Turn:
    """Returns the assistant's message in the output of a response."""
    text = "".join(item["content"][0]["text"] for item in output if item["type"] == "message")
    called = (item for item in output if item["type"] == "function_call")
    calls = [call_of(item["call_id"], item["name"], item["arguments"]) for item in called]
    if not calls and output[-1]["type"] != "message":
        raise ValueError("there is no message")
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


def _answered(searches: Searches, name: str, is_earlier: bool) -> tuple[ResponseRecord, Turn]:
    """Returns a response of a conversation and its answer. ``is_earlier``: whether it comes before the
    previous response, so that the client did not name it.

    Raises:
        BadRequest: it is missing or has no answer.
        Damaged: it cannot be read.
    """
    try:
        stored = stored_response(searches, name)
        response = stored.now()
    except NotThere as error:
        before = "; it came before the previous response, and was deleted or has expired" if is_earlier else ""
        raise BadRequest(f"{PREVIOUS}: {error}{before}", PREVIOUS, "previous_response_not_found") from None
    if not response["output"]:
        message = f"{PREVIOUS}: {name} is {response['status']} and has no answer"
        raise BadRequest(message, PREVIOUS, "previous_response_not_completed")
    with _read(stored.search):
        return stored.begun, _answer(response["output"])


@contextmanager
def _read(search: Search) -> Iterator[None]:
    """For the reading of a stored response or event, which may lack any field.

    Raises:
        Damaged: it does.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(search.id, "its response", "or an event of it lacks a field") from error


async def followed(
    kept: StoreAccess, owner: str, stored: StoredResponse, after: int = -1
) -> AsyncIterator[ServerSentEvent]:
    """Streams the events of a stored response that are numbered above ``after``, until the response has ended."""
    search, begun = stored.search, stored.begun.response
    events = ResponseEvents(begun)
    try:
        for data in events.begin():
            if data["sequence_number"] > after:
                yield sse(data)
        async for told in events_and_end(kept, owner, search):
            if isinstance(told, SearchEnd):
                response = await kept.do(owner, lambda: search.response)
                with _read(search):
                    made = list(events.end(ended_response(begun, told, response), told.steps))
            else:
                with _read(search):
                    event = json.loads(told)
                    made = list(events.step(event)) if event["type"] == "step_scored" else []
            for data in made:
                if data["sequence_number"] > after:
                    yield sse(data)
    except Exception as error:
        body = api_error(error).body["error"]
        yield sse({**body, "type": "error", "sequence_number": events.next})
