"""Tools with published tokenizers, and with their chat templates where these take tools: Qwen2.5's and Qwen3's."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from deployments.engines.encoding import ChatEncoder
from deployments.engines.step_splitter import StepSplitter
from deployments.engines.tool_parsers import CallParser, ToolParserError, call_marks, tool_parser_name
from search.answers.tool_calls import ToolCall
from tests.engine.test_tool_prompts import marks, talk, tool
from tests.models.conftest import load_tokenizer
from tests.tool_templates import HERMES

TOKENIZERS = ("Qwen2.5", "Qwen3", "DeepSeek", "Llama-3.1", "Mistral", "SmolLM2-135M-Instruct")
ARGUMENTS = '{"city": "Romé"}'
HERMES_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Romé"}}\n</tool_call>'
CALLS = {
    "Qwen2.5": ("hermes", HERMES_CALL),
    "Qwen3": ("hermes", HERMES_CALL),
    "DeepSeek": (
        "deepseek_v3",
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
            f"{ARGUMENTS}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
    ),
}
"""By tokenizer: the parser, and a call as the model writes it."""
Json = dict[str, Any]


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    loaded = load_tokenizer(request.param)
    if "tools" not in (loaded.chat_template or ""):
        loaded.chat_template = HERMES
    return loaded


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_read_from_the_text_of_the_tokens(name: str) -> None:
    parser, text = CALLS[name]
    tokenizer = load_tokenizer(name)
    kept = call_marks(parser, tokenizer)
    splitter = StepSplitter(tokenizer, "\n\n", frozenset({tokenizer.eos_token_id}), None, kept)
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    [step] = splitter.split((), ids, cut_off=False)
    tools = [tool("weather", city={"type": "string"})]
    assert CallParser(parser, tokenizer).parsed(step.text, tools) == ("", (ToolCall("weather", ARGUMENTS),))


def test_parsers_are_found_and_refused() -> None:
    assert [tool_parser_name(load_tokenizer(name)) for name in ("Qwen2.5", "Qwen3")] == ["hermes"] * 2
    # Both tokenizers are from before tools.
    for parser, name, mark in (("mistral", "Mistral", "tool call token"), ("llama3_json", "Llama-3.1", "python_tag")):
        with pytest.raises(ToolParserError, match=f"^{parser} cannot be used with this tokenizer: .*{mark}"):
            CallParser(parser, load_tokenizer(name))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(data=st.data())
def test_nothing_from_outside_becomes_a_token(tokenizer: PreTrainedTokenizerBase, data: st.DataObject) -> None:
    """Names, descriptions, enum values, keys, arguments and results, although each spells special tokens."""
    pieces = [*[*tokenizer.get_added_vocab()][-40:], "<", "|", ">", "tool_call", "im_end", "think", "\n", " ", "a"]
    text = st.lists(st.sampled_from(pieces), max_size=4).map("".join)
    name, description, said, result = (data.draw(text) for _ in range(4))
    values = data.draw(st.dictionaries(text, st.lists(text, max_size=2).map(lambda enum: {"enum": enum}), max_size=2))
    arguments = data.draw(st.dictionaries(text, text, max_size=2))
    encoder = ChatEncoder(tokenizer)
    ids = encoder.encode_chat(talk(name, arguments, result, said), tools=[tool(name, description, **values)])
    plain = talk("f", {str(n): "" for n, _ in enumerate(arguments)}, "r", "s" if said.strip() else "")
    expected = encoder.encode_chat(plain, tools=[tool("f")])
    assert marks(ids, tokenizer) == marks(expected, tokenizer)
