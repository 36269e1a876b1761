"""The prompts with which a served model reads solutions."""

import pytest
from http_world import Letters

from deployments.service.contexts import Chat, ContextPrompts
from search.templates import TEMPLATES, Template, composed

OWN = Template(prompt="{question} {candidates} {note}", candidate="[{text}]", separator="")
COMPOSE = ContextPrompts(Letters(), {**TEMPLATES, "fuse": OWN})
CHAT = Chat([{"role": "system", "content": "Brief."}, {"role": "user", "content": "Why?"}])


def text_of(chat: Chat, template: str, *shown: str) -> str:
    return "".join(map(chr, COMPOSE(chat, template, shown, "").token_ids))


def test_the_prompt_is_that_of_the_chat_with_the_template_for_the_question() -> None:
    assert text_of(CHAT, "fuse", "a", "b") == "<system>Brief.<user>Why? [a][b] "
    thinking = CHAT._replace(template_kwargs={"enable_thinking": False})
    assert text_of(thinking, "fuse", "a") == "<system>Brief.<user>Why? [a] <enable_thinking=False>"
    tool = {"type": "function", "function": {"name": "f"}}
    with_tools = Letters().encode_chat(composed(CHAT.messages, OWN, ["a"]), tools=[tool])
    assert text_of(CHAT._replace(tools=[tool]), "fuse", "a") == "".join(map(chr, with_tools))


def test_an_unknown_template_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="no template 'debate'; there are: select, fuse, refine, critique"):
        text_of(CHAT, "debate", "a")
