"""What models write for tools is read by vLLM's parsers, which are found by the chat template."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from transformers import AddedToken, PreTrainedTokenizerFast

from deployments.engines import generation
from deployments.engines.encoding import ChatEncoder
from deployments.engines.errors import EngineStartError
from deployments.engines.generation import GenerationEngine
from deployments.engines.settings import GeneratorSettings
from deployments.engines.step_splitter import StepSplitter
from deployments.engines.tool_parsers import CallParser, ToolParserError, call_marks, tool_parser_name
from deployments.service.tool_calls import Said, ToolCallParser, ToolCallsUnread
from scripts.embedded.tokenizer import CHAT_TEMPLATE, build_tokenizer
from search.answers.tool_calls import ToolCall
from tests.tool_templates import CODER, HERMES, MARKS

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rom\\u00e9", "days": 2}}\n</tool_call>'
CODER_CALL = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nRomé\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "</function>\n</tool_call>"
)
CALLED = (ToolCall("weather", '{"city": "Romé", "days": 2}'),)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = build_tokenizer(200)
    tokenizer.add_tokens(list(MARKS))
    return tokenizer


@pytest.fixture(scope="module")
def hermes(tokenizer: PreTrainedTokenizerFast) -> CallParser:
    return CallParser("hermes", tokenizer)


@pytest.mark.parametrize(
    ("template", "name"), [(HERMES, "hermes"), (CODER, "qwen3_coder"), (CHAT_TEMPLATE, None), ("", None)]
)
def test_the_parser_is_found_by_the_template(
    tokenizer: PreTrainedTokenizerFast, template: str, name: str | None
) -> None:
    tokenizer.chat_template = template
    assert tool_parser_name(tokenizer) == name
    tokenizer.chat_template = {"default": CHAT_TEMPLATE, "tool_use": template}
    assert tool_parser_name(tokenizer) == name


CITY = '{"city": "Romé", "days": 2}'
DEEPSEEK = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
SPECIAL = {
    "mistral": ("[TOOL_CALLS] [ARGS]", "[AVAILABLE_TOOLS]", f"[TOOL_CALLS]weather[ARGS]{CITY}"),
    "mistral v3": (
        "[TOOL_CALLS]",
        "[AVAILABLE_TOOLS]",
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {CITY}, "id": "a"}}]',
    ),
    "llama3_json": ("<|python_tag|>", '"parameters":', f'<|python_tag|>{{"name": "weather", "parameters": {CITY}}}'),
    "deepseek_v3": (
        DEEPSEEK.replace("{}", " ").replace("><", "> <") + " <｜tool▁sep｜>",
        "```json",
        DEEPSEEK.format(f"function<｜tool▁sep｜>weather\n```json\n{CITY}\n```"),
    ),
    "deepseek_v31": (
        DEEPSEEK.replace("{}", " ").replace("><", "> <") + " <｜tool▁sep｜>",
        "",
        DEEPSEEK.format(f"weather<｜tool▁sep｜>{CITY}"),
    ),
    "hermes": ("<tool_call> </tool_call>", '"arguments":', CALL),
}
"""By parser, in the forms of published models: special tokens, what else the chat template has, and a call."""


@pytest.mark.parametrize("case", SPECIAL)
def test_calls_that_special_tokens_mark_are_read(case: str) -> None:
    marks, template, text = SPECIAL[case]
    parser, *_ = case.split()
    tokenizer = build_tokenizer(200)
    special = [AddedToken(mark, special=True, normalized=False) for mark in marks.split()]
    tokenizer.add_tokens(special, special_tokens=True)
    tokenizer.chat_template = CHAT_TEMPLATE + "{# #}{{ '" + marks + template + "' }}"
    assert tool_parser_name(tokenizer) == parser
    eos = tokenizer.eos_token_id
    kept = call_marks(None, tokenizer)
    assert kept == call_marks(parser, tokenizer) == set(tokenizer.convert_tokens_to_ids(marks.split()))
    splitter = StepSplitter(tokenizer, "\n\n", frozenset({eos}), None, kept)
    ids = [*tokenizer.encode(text, add_special_tokens=False), eos]
    assert kept & set(ids)
    [step] = splitter.split((), ids, cut_off=False)
    assert step.text == text
    assert ChatEncoder(tokenizer, None, kept).token_texts(sorted(kept)) == tokenizer.convert_ids_to_tokens(sorted(kept))
    assert CallParser(parser, tokenizer).parsed(step.text, TOOLS) == ("", CALLED)
    tokenizer.chat_template = CHAT_TEMPLATE
    assert not call_marks(None, tokenizer), "without a parser texts stay as they are"


def test_a_parser_of_framed_answers_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ToolParserError, match=r"^openai needs the special tokens around each part of an answer"):
        CallParser("openai", tokenizer)


def test_a_parser_that_does_not_suit_is_refused_by_name(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ToolParserError, match=r"no parser 'hermess'; it has: .*\bhermes\b"):
        CallParser("hermess", tokenizer)
    with pytest.raises(ToolParserError, match=r"^jamba cannot be used with this tokenizer: "):
        CallParser("jamba", tokenizer)


def test_a_generator_whose_tokenizer_does_not_suit_its_parser_does_not_start(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "engine_tokenizer", lambda *_: tokenizer)
    engine = GenerationEngine(GeneratorSettings(tool_parser="jamba"))
    with pytest.raises(EngineStartError, match="tool_parser: jamba cannot be used with this tokenizer"):
        engine._derive(Mock(), Mock())


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"Let me see.\n{CALL}", "Let me see.\n", CALLED),
        (CALL + "\n" + CALL, "", CALLED * 2),
        ("It is warm.", "It is warm.", ()),
        ("", "", ()),
        ('<tool_call>\n{"name": "weather", "argu', '<tool_call>\n{"name": "weather", "argu', ()),
        ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", ()),
    ],
)
def test_calls_are_read_from_a_finished_text(
    hermes: CallParser, text: str, content: str, calls: tuple[ToolCall, ...]
) -> None:
    assert hermes.parsed(text, TOOLS) == (content, calls)


def test_arguments_have_the_types_of_their_schema(tokenizer: PreTrainedTokenizerFast) -> None:
    assert CallParser("qwen3_coder", tokenizer).parsed(CODER_CALL, TOOLS) == ("", CALLED)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> Path:
    directory = tmp_path_factory.mktemp("model")
    tokenizer.chat_template = HERMES
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture
def parsing(model: Path, request: pytest.FixtureRequest) -> Iterator[ToolCallParser]:
    parser = ToolCallParser(GeneratorSettings(model=str(model)).model_dump_json(), request.param)
    yield parser
    parser.close()


@pytest.mark.parametrize("parsing", ["hermes"], indirect=True)
async def test_a_process_reads_calls(parsing: ToolCallParser) -> None:
    parsing.start()
    assert await parsing(f"So.\n{CALL}", TOOLS) == Said("So.\n", CALLED)
    assert await parsing("No.", TOOLS) == Said("No.")


@pytest.mark.parametrize("parsing", ["jamba"], indirect=True)
async def test_a_process_says_why_it_reads_none(parsing: ToolCallParser) -> None:
    for _ in range(2):
        with pytest.raises(ToolCallsUnread, match="jamba cannot be used with this tokenizer"):
            await parsing(CALL, TOOLS)
