"""What a chat template writes of a conversation with tools, found out by what it renders of one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

_TOOL, _CALL, _VALUE, _RESULT = "list_probes", "read_probe", "probe value", "probe result"
_PARAMETERS = {"type": "object", "properties": {"text": {"type": "string", "description": "A text."}}}
_TOOLS = [{"type": "function", "function": {"name": _TOOL, "description": "Probes.", "parameters": _PARAMETERS}}]
_QUESTION = {"role": "user", "content": "What is 1 + 1?"}
# Mistral's templates want ids of nine letters and digits.
_CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "probe0001", "type": "function", "function": {"name": _CALL, "arguments": {"text": _VALUE}}}],
}
_ANSWERED = {"role": "tool", "content": _RESULT, "tool_call_id": "probe0001", "name": _CALL}

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], str]
"""From messages and tools to the prompt's text. Raises ValueError if the template refuses them."""


class ToolSupport(NamedTuple):
    """Whether a chat template writes tools, an assistant's calls, and their results. One that does not may refuse them
    or leave them out: then the model would answer without knowing of them."""

    tools: bool
    calls: bool
    results: bool

    @classmethod
    def of(cls, render: Render) -> "ToolSupport":
        def rendered(messages: Sequence[Mapping[str, Any]]) -> str:
            try:
                return render(messages, _TOOLS)
            except ValueError:
                return ""

        talk = rendered([_QUESTION, _CALLED, _ANSWERED])
        return cls(_TOOL in rendered([_QUESTION]), _CALL in talk and _VALUE in talk, _RESULT in talk)
