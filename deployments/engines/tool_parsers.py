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
    _Marks("mistral", ("[AVAILABLE_TOOLS]", "[TOOL_CALLS]")),
    _Marks("llama3_json", ("<|python_tag|>", '"parameters":')),
    _Marks("deepseek_v3", ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>", "```json")),
    _Marks("deepseek_v31", ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"), lacks="```json"),
)
_CALL_MARKS = frozenset(
    {
        *("<tool_call>", "</tool_call>", "<tool_calls>", "</tool_calls>", "<|tool_call|>"),
        *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),  # Mistral
        *("<|python_tag|>", "<|python_start|>", "<|python_end|>"),  # Llama
        *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),  # DeepSeek
        "<｜tool▁sep｜>",
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),  # Kimi K2
        "<|tool_call_argument_begin|>",
        *("<|tool_call_start|>", "<|tool_call_end|>"),  # LFM2, and the second one Kimi K2
        *("<|action_start|>", "<|action_end|>", "<|plugin|>"),  # InternLM
        *("<|tools_prefix|>", "<|tools_suffix|>"),  # Apertus
        *("<start_function_call>", "<end_function_call>", "<escape>"),  # FunctionGemma
        *("<|tool_call>", "<tool_call|>", '<|"|>'),  # Gemma 4
    }
)
"""Marks of calls that are special tokens in published tokenizers."""
_FRAMED = ("inkling", "kimi_k3", "muse_glimmer", "openai", "plamo3")
"""Parsers of models whose whole answer is framed by special tokens, which the texts of steps lack."""
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
    return found[0] if len(found) == 1 else None


def call_marks(parser: str | None, tokenizer: "PreTrainedTokenizerBase") -> frozenset[int]:
    """Returns the special tokens of a tokenizer that mark tool calls. Texts keep them, as they do in vLLM while calls
    are parsed.

    ``parser``: the one that is set; None: it is found by the chat template. Without any there are no marks.
    """
    if parser is None and tool_parser_name(tokenizer) is None:
        return frozenset()
    added = tokenizer.added_tokens_decoder
    return frozenset(token for token, known in added.items() if known.special and known.content in _CALL_MARKS)


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
        if name in _FRAMED:
            raise ToolParserError(
                f"{name} needs the special tokens around each part of an answer, which texts here lack: leave it "
                "unset; tool_choice required, or the name of a function, needs no parser"
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
