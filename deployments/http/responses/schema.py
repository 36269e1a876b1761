"""Requests to ``/v1/responses``: the part of OpenAI's Responses API that a search supports, for text only."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from deployments.admission.errors import BadRequest
from deployments.admission.service_tier import ServiceTier
from deployments.config import Effort, UnknownFields
from deployments.http.chat.schema import (
    MAX_METADATA,
    MAX_TEMPLATE_KWARGS,
    MAX_TOP_K,
    ChatRequest,
    Metadata,
    Part,
    Role,
    Scalar,
    text_of,
)
from deployments.http.chat.tools import MAX_TOOLS
from deployments.http.fields import RESPONSES_FIELDS, parsed
from deployments.http.json_body import TAG, Body, Unread
from deployments.http.responses.tools import (
    CallItem,
    FunctionChoice,
    FunctionTool,
    NamedFunction,
    OutputItem,
    Placed,
    joined,
    path_of,
)

Turn = dict[str, Any]
"""``role`` and ``content``, and what the message has of tools."""
LOGPROBS = "message.output_text.logprobs"
Includable = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
"""The values that OpenAI's clients may send."""


class InputPart(Part):
    type: Literal["input_text", "output_text", "text"]
    annotations: Unread = None
    logprobs: Unread = None


def _kind_of_content(content: Any) -> str:
    return f"{TAG}parts" if isinstance(content, list) else f"{TAG}text"


class InputMessage(Body):
    """One turn; also one that an earlier response had, with all that OpenAI's clients keep of it."""

    type: Literal["message"] = "message"
    role: Role
    content: (
        Annotated[
            Annotated[str, Tag(f"{TAG}text")] | Annotated[list[InputPart], Field(fail_fast=True), Tag(f"{TAG}parts")],
            Discriminator(_kind_of_content),
        ]
        | None
    ) = Field(description="null and [] mean an empty message.")
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    phase: Unread = None

    @field_validator("type", mode="before")
    @classmethod
    def _is_no_reference(cls, kind: Any) -> Any:
        if kind == "item_reference":
            raise ValueError(
                "'item_reference' gives only an item's id, and items are not stored by id: send the item itself, as "
                "clients do when they set store to false, or previous_response_id"
            )
        return kind

    @property
    def text(self) -> str:
        return text_of(self.content)


class ReasoningItem(Body):
    """What an earlier response said of its search. No model is told of it."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: Unread = None
    content: Unread = None
    encrypted_content: Unread = None
    status: Unread = None


def _kind_of_item(item: Any) -> str:
    kind = item.get("type") if isinstance(item, dict) else None
    return f"{TAG}{kind}" if kind in ("reasoning", "function_call", "function_call_output") else f"{TAG}message"


Item = Annotated[
    Annotated[InputMessage, Tag(f"{TAG}message")]
    | Annotated[ReasoningItem, Tag(f"{TAG}reasoning")]
    | Annotated[CallItem, Tag(f"{TAG}function_call")]
    | Annotated[OutputItem, Tag(f"{TAG}function_call_output")],
    Discriminator(_kind_of_item),
]


def _kind_of_input(given: Any) -> str:
    return f"{TAG}items" if isinstance(given, list) else f"{TAG}text"


Summary = Literal["auto", "concise", "detailed"]


class Reasoning(Body):
    effort: Effort | None = None
    context: Unread = None
    mode: Literal["standard"] | None = None
    summary: Summary | None = Field(
        None, description="Include a short account of the search as the summary of a reasoning item."
    )
    generate_summary: Summary | None = Field(None, description="Deprecated name of summary.")

    @property
    def wanted_summary(self) -> Summary | None:
        return self.summary or self.generate_summary


class TextFormat(Body):
    """As ``response_format`` of a chat, whose ``json_schema`` is flat here."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    description: Unread = None
    strict: Unread = None

    @property
    def response_format(self) -> dict[str, Any]:
        """The same in a chat request."""
        said = {"name": self.name, "schema": self.schema_}
        schema = {field: value for field, value in said.items() if value is not None}
        return {"type": self.type} | ({"json_schema": schema} if schema or self.type == "json_schema" else {})


class TextSettings(Body):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class StreamOptions(Body):
    include_obfuscation: bool | None = None


class ResponsesRequest(Body):
    """``POST /v1/responses``."""

    model: str
    input: Annotated[
        Annotated[str, Tag(f"{TAG}text")]
        | Annotated[list[Item], Field(min_length=1, fail_fast=True), Tag(f"{TAG}items")],
        Discriminator(_kind_of_input),
    ]
    instructions: str | None = Field(None, description="System message before the input.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    service_tier: ServiceTier | None = None
    store: bool | None = Field(
        None,
        description="Whether the response is stored for GET /v1/responses/{id}. Unset: yes if the server has a store.",
    )
    background: bool | None = Field(None, description="Return at once and run the search without a connection.")
    previous_response_id: str | None = Field(
        None, description="Stored response whose conversation this request continues."
    )
    metadata: Metadata | None = Field(
        None, max_length=MAX_METADATA, description="Up to 16 pairs of strings, returned with the response."
    )
    include: list[Includable] | None = Field(
        None, description="Additional output; only message.output_text.logprobs has an effect."
    )
    top_logprobs: int | None = Field(
        None, ge=0, le=1, description="Only 0: alternatives to the tokens are not reported."
    )
    max_output_tokens: int | None = Field(None, ge=1, description="Token budget of the whole search.")
    reasoning: Reasoning | None = None
    text: TextSettings | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=MAX_TOP_K, description="0 and -1 turn top-k sampling off.")
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    chat_template_kwargs: dict[str, Scalar] | None = Field(None, max_length=MAX_TEMPLATE_KWARGS)
    tools: list[FunctionTool] | None = Field(
        None, max_length=MAX_TOOLS, description="Functions that the model may ask the client to call."
    )
    tool_choice: FunctionChoice | None = Field(
        None,
        description="auto (the default); required, or one function: the reply is a call of it; none: the prompt has no "
        "tools.",
    )
    parallel_tool_calls: bool | None = Field(None, description="With false, the reply has at most one call.")
    search: dict[str, Any] | None = None

    @classmethod
    def parse(cls, body: dict[str, Any], unknown: UnknownFields = "ignore") -> "ResponsesRequest":
        """Validates a body.

        Raises:
            BadRequest: a field is invalid or not supported; names the path of the first one.
        """
        return parsed(cls, body, RESPONSES_FIELDS, unknown)

    @property
    def own_messages(self) -> list[Turn]:
        """The messages of the input."""
        return [message.turn for message in self.placed_messages]

    @property
    def placed_messages(self) -> list[Placed]:
        """The messages of the input with their places in it."""
        if isinstance(self.input, str):
            return [Placed({"role": "user", "content": self.input}, 0, [])]
        items: list[tuple[int, Turn]] = []
        for place, item in enumerate(self.input):
            if isinstance(item, InputMessage):
                items.append((place, {"role": item.role, "content": None if item.content is None else item.text}))
            elif not isinstance(item, ReasoningItem):
                items.append((place, item.chat))
        return list(joined(items))

    def chat(self, earlier: Sequence[Turn] = ()) -> ChatRequest:
        """Returns the chat request for the same search. ``earlier``: the conversation of the previous response.

        Raises:
            BadRequest: the conversation is invalid; names the path in this request (see `spoken_of`).
        """
        given: dict[str, Any] = {
            "model": self.model,
            "messages": self._messages(earlier),
            "max_completion_tokens": self.max_output_tokens,
            "reasoning_effort": self.reasoning.effort if self.reasoning else None,
            "logprobs": (LOGPROBS in self.include or None) if self.include else None,
            "response_format": self.text.format.response_format if self.text and self.text.format else None,
            "tools": None if self.tools is None else [tool.chat for tool in self.tools],
            "tool_choice": self.tool_choice,
        }
        if isinstance(self.tool_choice, NamedFunction):
            given["tool_choice"] = {"type": "function", "function": {"name": self.tool_choice.name}}
        same_fields = (
            *("temperature", "top_p", "top_k", "min_p", "seed", "chat_template_kwargs", "top_logprobs"),
            *("search", "stream", "store", "service_tier", "parallel_tool_calls"),
        )
        with spoken_of(self, len(earlier)):
            return ChatRequest.parse(given | {name: getattr(self, name) for name in same_fields})

    def _messages(self, earlier: Sequence[Turn]) -> list[Turn]:
        instructions: list[Turn] = [{"role": "system", "content": self.instructions}] if self.instructions else []
        if not (messages := self.own_messages):
            raise BadRequest("the input has no message", "input")
        return [*instructions, *earlier, *messages]


RESPONSES_NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "include",
}
"""Names in the Responses API of chat request fields that have another name there."""


@contextmanager
def spoken_of(request: ResponsesRequest, earlier: int = 0) -> Iterator[None]:
    """Translates errors of the chat request to the paths of the client's Responses request. ``earlier``: number of
    messages of the previous response's conversation.

    Raises:
        BadRequest: the block's error, with the translated path.
    """
    try:
        yield
    except BadRequest as error:
        if error.param is None:
            raise
        path = _path(error.param, request, earlier)
        raise BadRequest(error.message.replace(error.param, path, 1), path, error.code) from None


def _path(param: str, request: ResponsesRequest, earlier: int) -> str:
    if param in RESPONSES_NAMES:
        return RESPONSES_NAMES[param]
    first, _, rest = param.partition(".")
    if first == "response_format":
        return ".".join(part for part in ("text.format", rest.removeprefix("json_schema").lstrip(".")) if part)
    if first in ("tools", "tool_choice"):
        return ".".join(part for part in param.split(".") if part != "function")
    if first != "messages":
        return param
    number, _, field = rest.partition(".")
    if not number.isdecimal():
        return "input"
    index = int(number) - bool(request.instructions)
    if index < 0:
        return "instructions"
    index -= earlier
    if index < 0:
        return "previous_response_id"
    if isinstance(request.input, str):
        return "input"
    return f"input.{path_of(request.placed_messages[index], field)}"
