"""What models write for tools is read by vLLM's parsers, which are found by the chat template."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from transformers import PreTrainedTokenizerFast

from deployments.engines import generation
from deployments.engines.errors import EngineStartError
from deployments.engines.generation import GenerationEngine
from deployments.engines.settings import GeneratorSettings
from deployments.engines.tool_parsers import CallParser, ToolParserError, tool_parser_name
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


def test_no_parser_reads_marks_that_texts_lack() -> None:
    tokenizer = build_tokenizer(200)
    tokenizer.add_tokens(["<tool_call>"], special_tokens=True)
    tokenizer.chat_template = HERMES
    assert tool_parser_name(tokenizer) is None
    with pytest.raises(ToolParserError, match="hermes looks for <tool_call>, a special token"):
        CallParser("hermes", tokenizer)


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
