"""Function tools in the words of the Responses API, and the same in a chat."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Discriminator, Field, Tag

from deployments.http.chat.tools import NAME, kind_of_choice
from deployments.http.json_body import TAG, Body, Unread
from deployments.http.replies import call_of

Json = dict[str, Any]


class FunctionTool(Body):
    """As a tool of a chat, whose ``function`` is flat here."""

    type: Literal["function"]
    name: str = Field(pattern=NAME)
    description: str | None = None
    parameters: Json | None = None
    strict: Unread = None

    @property
    def chat(self) -> Json:
        """The same in a chat request."""
        return {"type": self.type, "function": self.model_dump(exclude={"type"}, exclude_none=True)}


class NamedFunction(Body):
    type: Literal["function"]
    name: str


FunctionChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag(f"{TAG}mode")] | Annotated[NamedFunction, Tag(f"{TAG}named")],
    Discriminator(kind_of_choice),
]


class CallItem(Body):
    """A call that an earlier response had."""

    type: Literal["function_call"]
    call_id: str = Field(min_length=1, max_length=256)
    name: str = Field(min_length=1, max_length=256)
    arguments: str
    id: str | None = None
    status: Unread = None

    @property
    def chat(self) -> Json:
        """The same in a message of a chat."""
        return call_of(self.call_id, self.name, self.arguments)


class OutputPart(Body):
    type: Literal["input_text", "output_text", "text"]
    text: str


def _kind_of_output(output: Any) -> str:
    return f"{TAG}parts" if isinstance(output, list) else f"{TAG}text"


class OutputItem(Body):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Annotated[
        Annotated[str, Tag(f"{TAG}text")] | Annotated[list[OutputPart], Field(fail_fast=True), Tag(f"{TAG}parts")],
        Discriminator(_kind_of_output),
    ]
    id: str | None = None
    status: Unread = None

    @property
    def chat(self) -> Json:
        """The same as a message of a chat."""
        text = self.output if isinstance(self.output, str) else "\n".join(part.text for part in self.output)
        return {"role": "tool", "content": text, "tool_call_id": self.call_id}


class Placed(NamedTuple):
    """A message of a chat, and where it is in the input."""

    turn: Json
    place: int
    calls: list[int]
    """Places of its calls, which are items of their own."""


def joined(items: Iterable[tuple[int, Json]]) -> Iterator[Placed]:
    """Yields messages of a chat. Calls belong to the assistant's message before them.

    ``items``: messages and calls with their places in the input.
    """
    message: Placed | None = None
    for place, item in items:
        is_call = "function" in item
        if message is None or not is_call or message.turn["role"] != "assistant":
            if message is not None:
                yield message
            message = Placed({"role": "assistant", "content": None} if is_call else item, place, [])
        if is_call:
            message.calls.append(place)
            message.turn.setdefault("tool_calls", []).append(item)
    if message is not None:
        yield message


def path_of(message: Placed, field: str) -> str:
    """Returns the path below ``input`` of a field of a chat's message."""
    place = message.place
    if field.startswith("tool_calls."):
        _, number, field = [*field.split(".", 2), ""][:3]
        place, field = message.calls[int(number)], field.removeprefix("function.").replace("id", "call_id")
    return f"{place}.{field.replace('tool_call_id', 'call_id')}".rstrip(".")
