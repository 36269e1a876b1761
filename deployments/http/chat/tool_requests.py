"""What a request with tools becomes: refused, or a search whose answers may be calls.

Calls are written as a whole: a strategy that writes step by step would cut them.
"""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from deployments.admission.errors import BadRequest
from deployments.config import ControllerSettings
from deployments.http.chat.schema import ChatRequest
from deployments.http.chat.tools import NamedChoice
from deployments.service.tool_calls import CallReader, CallsWanted, ForcedCalls, Said, WrittenCalls
from search.settings import SHARED_SETTINGS

REFUSED = "tools is not supported: the operator has turned it off (controller.tool_calls: refuse)"
STRICT_NOTE = "strict: arguments follow their schema only if tool_choice is required or the name of a function"
NO_PARSER = (
    "tools: no parser of this model's calls is set (generator.tool_parser); tool_choice may be none, required or the "
    "name of a function"
)


class ToolSupport(Protocol):
    """What a chat template writes; see `deployments.engines.tool_support.ToolSupport`."""

    @property
    def tools(self) -> bool: ...

    @property
    def calls(self) -> bool: ...

    @property
    def results(self) -> bool: ...


class WritesTools(Protocol):
    """See `deployments.engines.encoding.ChatEncoder`."""

    @property
    def tool_support(self) -> ToolSupport: ...


class ReadCalls(Protocol):
    """See `deployments.service.tool_calls.ToolCallParser`."""

    def start(self) -> None: ...

    def __call__(self, text: str, tools: Sequence[Mapping[str, Any]]) -> Awaitable[Said]: ...


def check_tools(request: ChatRequest, settings: ControllerSettings, encoder: WritesTools) -> None:
    """Checks that tools are allowed, and that the model's chat template writes what the request has of them.

    Raises:
        BadRequest: they are not, or it does not; names the first field.
    """
    if settings.tool_calls == "refuse" and request.tools:
        raise BadRequest(REFUSED, "tools", "unsupported_parameter")
    if request.offered and not encoder.tool_support.tools:
        raise BadRequest("tools: the model's chat template does not support them", "tools", "unsupported_parameter")
    for index, message in enumerate(request.messages):
        if message.tool_calls and not encoder.tool_support.calls:
            path = f"messages.{index}.tool_calls"
            raise BadRequest(f"{path}: the model's chat template does not support them", path, "unsupported_parameter")
        if message.role == "tool" and not encoder.tool_support.results:
            path = f"messages.{index}.role"
            raise BadRequest(
                f"{path}: the model's chat template does not support tool results", path, "unsupported_value"
            )


def with_tools(request: ChatRequest, default_search: Mapping[str, Any], settings: ControllerSettings) -> dict[str, Any]:
    """Returns the default search of a request with tools: one answer or, with ``vote``, the calls of several.

    ``max_completion_tokens`` is the length of that one answer.
    """
    shared = {name: value for name, value in default_search.items() if name in SHARED_SETTINGS}
    if settings.tool_calls == "vote":
        n = {"n": default_search["n"]} if "n" in default_search else {}
        return {**shared, "strategy": "self_consistency", **n}
    if request.max_completion_tokens is not None:
        shared["max_path_tokens"] = request.max_completion_tokens
    return {**shared, "strategy": "self_consistency", "n": 1}


def call_reader(
    request: ChatRequest,
    prompt: Sequence[int],
    settings: ControllerSettings,
    parser: ReadCalls | None,
    context_tokens: int,
) -> CallReader | None:
    """Returns what reads the calls in the request's answers; None if it has no tools. ``context_tokens``: the longest
    prompt and answer.

    Raises:
        BadRequest: nothing reads the model's calls.
    """
    if not request.offered:
        return None
    told = CallsWanted(
        tuple(prompt), context_tokens, request.parallel_tool_calls is not False, settings.exclude_arguments
    )
    if isinstance(request.tool_choice, NamedChoice):
        return ForcedCalls(told, request.tool_choice.function.name)
    if request.tool_choice == "required":
        return ForcedCalls(told)
    if parser is None:
        raise BadRequest(NO_PARSER, "tools", "unsupported_parameter")
    parser.start()
    tools = [tool.shown for tool in request.offered]
    return WrittenCalls(told, lambda text: parser(text, tools))


def tool_notes(request: ChatRequest, strategy: str, n: int) -> list[str]:
    """Returns the notes of a reply to a request with tools."""
    if not request.offered:
        return []
    chosen = "strategy" in (request.search or {}) or ":" in request.model
    notes = [] if chosen else [f"a request with tools: strategy {strategy}, n {n} (controller.tool_calls)"]
    strict = any(tool.function.strict for tool in request.offered) and request.tool_choice in (None, "auto")
    return [*notes, *([STRICT_NOTE] if strict else [])]
