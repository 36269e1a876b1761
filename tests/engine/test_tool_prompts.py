"""Tools, calls and results in the chat template: all of them reach the prompt as text, and none as a special token."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from deployments.engines.encoding import ChatEncoder
from scripts.embedded.tokenizer import CHAT_TEMPLATE, TURN_END, TURN_START, build_tokenizer
from tests.tool_templates import CODER, HERMES, MARKS, TEMPLATES

Json = dict[str, Any]
QUESTION = {"role": "user", "content": "What is it like in Rome?"}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = build_tokenizer(200)
    tokenizer.add_tokens([*MARKS, "<think>", "</think>"])
    return tokenizer


@pytest.fixture(params=TEMPLATES)
def template(request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerFast) -> str:
    tokenizer.chat_template = TEMPLATES[request.param]
    return TEMPLATES[request.param]


def tool(name: str, description: str = "", **properties: Any) -> Json:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def talk(name: str, arguments: Json, result: str, said: str = "") -> list[Json]:
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        QUESTION,
        {"role": "assistant", "content": said, "tool_calls": [call]},
        {"role": "tool", "content": result, "tool_call_id": "call_1"},
    ]


def encoded(tokenizer: PreTrainedTokenizerFast, messages: list[Json], tools: list[Json]) -> list[int]:
    return ChatEncoder(tokenizer).encode_chat(messages, tools=tools)


def test_a_conversation_with_tools_equals_the_output_of_the_template(
    tokenizer: PreTrainedTokenizerFast, template: str
) -> None:
    tools = [tool("weather", "The weather.", city={"type": "string"})]
    for messages in ([QUESTION], talk("weather", {"city": "Rome", "days": [1, None, 2.5]}, '{"c": 21}', "Let me see.")):
        rendered = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
        assert encoded(tokenizer, messages, tools) == tokenizer.encode(rendered, add_special_tokens=False)


PIECES = [TURN_END, TURN_START, "<tool_call>", "</tool_response>", "<think>", "<", "|", ">", "im_end", "think", '"']
PIECES += ["\\", "\n", " ", "é", "\ufdd0", "\ufdd1", "a", "tool_call", "<|im_"]
texts = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)
values = st.recursive(
    texts | st.integers(-9, 9) | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=6,
)


def marks(ids: list[int], tokenizer: PreTrainedTokenizerFast) -> list[int]:
    added = set(tokenizer.get_added_vocab().values())
    return [token for token in ids if token in added]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(
    name=texts,
    description=texts,
    properties=st.dictionaries(texts, values, max_size=3),
    arguments=st.dictionaries(texts, values, max_size=3),
    said=texts,
    result=texts,
)
def test_nothing_from_outside_becomes_a_token(
    tokenizer: PreTrainedTokenizerFast,
    template: str,
    name: str,
    description: str,
    properties: Json,
    arguments: Json,
    said: str,
    result: str,
) -> None:
    """Whatever the keys, names and texts are, the prompt has the template's own tokens and no other."""
    ids = encoded(tokenizer, talk(name, arguments, result, said), [tool(name, description, **properties)])
    plain = talk("f", {str(n): None for n, _ in enumerate(arguments)}, "r")
    assert marks(ids, tokenizer) == marks(encoded(tokenizer, plain, [tool("f")]), tokenizer)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(
    name=texts,
    result=texts,
    properties=st.dictionaries(texts, values, max_size=3),
    arguments=st.dictionaries(texts, values, max_size=3),
)
def test_every_text_reaches_the_prompt_unchanged(
    tokenizer: PreTrainedTokenizerFast, template: str, name: str, result: str, properties: Json, arguments: Json
) -> None:
    """But for noncharacters."""
    tools, messages = [tool(name, "d", **properties)], talk(name, arguments, result)
    ids = encoded(tokenizer, messages, tools)
    own = dict.fromkeys(range(0xFDD0, 0xFDF0))
    clean = [json.loads(json.dumps(each, ensure_ascii=False).translate(own)) for each in (messages, tools)]
    rendered = tokenizer.apply_chat_template(clean[0], tools=clean[1], tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(ids) == rendered


def test_a_key_that_a_template_writes_as_a_tag_is_no_token(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = CODER
    extra = tool("f", "", x={"think": "No.", "tool_call": "f"})
    ids = encoded(tokenizer, [QUESTION], [extra])
    assert "<think>No.</think><tool_call>f</tool_call>" in tokenizer.decode(ids)
    assert marks(ids, tokenizer) == marks(encoded(tokenizer, [QUESTION], [tool("f", "", x={})]), tokenizer)


def test_a_template_says_what_it_writes_of_tools(tokenizer: PreTrainedTokenizerFast, template: str) -> None:
    assert ChatEncoder(tokenizer).tool_support == (True, True, True)


@pytest.mark.parametrize(
    ("template", "support"),
    [
        (CHAT_TEMPLATE, (False, False, True)),
        ("{% for m in messages %}{{ m.content }}{% endfor %}{{ tools | tojson }}", (True, False, True)),
        (HERMES.replace("m.role == 'tool'", "m.role == 'ipython'"), (True, True, False)),
        (HERMES.replace("{% for m in messages %}", "{% for m in messages %}{% if m.role == 'tool' %}"
        "{{ raise_exception('No tools.') }}{% endif %}"), (True, False, False)),
    ],
)  # fmt: skip
def test_what_a_template_leaves_out_is_known(
    tokenizer: PreTrainedTokenizerFast, template: str, support: tuple[bool, bool, bool]
) -> None:
    tokenizer.chat_template = template
    assert ChatEncoder(tokenizer).tool_support == support


def test_arguments_that_nest_too_deeply_are_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = HERMES
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deeply"):
        encoded(tokenizer, talk("f", {"x": deep}, "r"), [])


def test_a_thought_is_open_behind_a_tools_result(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = HERMES + "{% if add_generation_prompt %}<think>\n{% endif %}"
    encoder = ChatEncoder(tokenizer)
    assert encoder.open_thought(talk("f", {}, "<think>"), tools=[tool("f")]) == "<think>"
    tokenizer.chat_template = HERMES + "{# think #}"
    assert ChatEncoder(tokenizer).open_thought(talk("f", {}, "<think>"), tools=[tool("f")]) == ""
