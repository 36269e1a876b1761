"""vLLM's parsers of tool calls: which of them reads a model's calls, and one that reads finished texts.

vLLM is imported where a parser is made: this takes 10 s of CPU time and 420 MB in a process without it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from search.answers.tool_calls import ToolCall

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class _Marks(NamedTuple):
    """What a chat template must have for its parser to be certain."""

    parser: str
    texts: tuple[str, ...]
    lacks: str = ""


_KNOWN = (
    _Marks("hermes", ("<tool_call>", '"arguments":'), lacks="<function="),
    _Marks("qwen3_coder", ("<tool_call>", "<function=", "<parameter=")),
    _Marks("glm45", ("<tool_call>", "<arg_key>", "<arg_value>")),
    _Marks("minimax_m2", ("<minimax:tool_call>", "<invoke name=")),
    _Marks("seed_oss", ("<seed:tool_call>", "<function=")),
)
_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)


class ToolParserError(ValueError):
    """A parser of tool calls does not exist, or does not suit the tokenizer. The message names both."""


class ParsedCalls(NamedTuple):
    """What a model said."""

    content: str
    """The text beside its calls."""
    calls: tuple[ToolCall, ...]


def tool_parser_name(tokenizer: "PreTrainedTokenizerBase") -> str | None:
    """Returns the parser that reads what the tokenizer's chat template shows the model; None if it is not certain."""
    template = tokenizer.chat_template
    if isinstance(template, Mapping):
        template = template.get("tool_use") or template.get("default")
    source = _COMMENT.sub("", template or "").replace('\\"', '"')
    found = [
        marks.parser
        for marks in _KNOWN
        if all(text in source for text in marks.texts) and not (marks.lacks and marks.lacks in source)
    ]
    if len(found) != 1 or lost_marks(found[0], tokenizer):
        return None
    return found[0]


def lost_marks(name: str, tokenizer: "PreTrainedTokenizerBase") -> list[str]:
    """Returns the marks of a parser that the texts of steps lack: they are special tokens of the tokenizer."""
    special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    return [text for marks in _KNOWN if marks.parser == name for text in marks.texts if text in special]


class CallParser:
    """Reads the calls in finished texts of one model. Imports vLLM."""

    def __init__(self, name: str, tokenizer: "PreTrainedTokenizerBase") -> None:
        """
        Raises:
            ToolParserError: vLLM has no such parser, or it cannot be used with the tokenizer.
        """
        from vllm.parser import ParserManager
        from vllm.tool_parsers import ToolParserManager

        if name not in (known := ToolParserManager.list_registered()):
            raise ToolParserError(f"vLLM has no parser {name!r}; it has: {', '.join(known)}")
        if lost := lost_marks(name, tokenizer):
            raise ToolParserError(
                f"{name} looks for {lost[0]}, a special token of this tokenizer: the texts of steps have none"
            )
        try:
            found = ParserManager.get_parser(name, enable_auto_tools=True, tokenizer=tokenizer)
        except Exception as error:  # each parser has its own
            raise ToolParserError(f"{name} cannot be used with this tokenizer: {error.__cause__ or error}") from error
        assert found is not None
        self._parser = found
        self._tokenizer = tokenizer

    def parsed(self, text: str, tools: Sequence[Mapping[str, Any]]) -> ParsedCalls:
        """Returns the calls in a text and what it says besides. A text that the parser cannot read has no calls.

        ``tools``: those of the request, in OpenAI's shape: some parsers read arguments by the types of their schemas.
        """
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        asked = [{"role": "user", "content": ""}]
        try:
            request = ChatCompletionRequest(messages=asked, tools=list(tools), tool_choice="auto")
            parser = self._parser(self._tokenizer, request.tools)
            _, content, calls = parser.parse(text, request, enable_auto_tools=True)
        except Exception:  # by what the model wrote
            return ParsedCalls(text, ())
        return ParsedCalls(content or "", tuple(_called(calls or ()))) if calls else ParsedCalls(text, ())


def _called(calls: Iterable[Any]) -> Iterable[ToolCall]:
    for call in calls:
        yield ToolCall(call.name, call.arguments)
