"""Side calls of chat windows: prompts of the window's own, for the title of a chat, its tags or what to ask next.

They are sent like questions, to the model of the chat, so the default search would run for each of them. They are
recognized by how they begin and end (`controller.side_calls`), which a user's question does not by chance: Open WebUI's
prompt for a question about documents begins with ``### Task:`` too, and is none.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from deployments.config import ChatWindow, SideCallSettings
from deployments.http.chat.schema import ChatRequest
from search.settings import SHARED_SETTINGS


class Shape(NamedTuple):
    """How a prompt begins, on one line, and how it ends."""

    begin: str
    end: str = ""


SHAPES: Mapping[ChatWindow, tuple[Shape, ...]] = {
    "open-webui": (
        # Titles, tags, next messages, search queries, prompts for images: their words differ between versions.
        Shape("### Task:", "</chat_history>"),
        Shape("### Task: You are an autocompletion system."),
        Shape("Your task is to reflect the speaker's likely facial expression through a fitting emoji."),
    ),
    "librechat": (
        Shape("Provide a concise, 5-word-or-less title for the conversation"),
        Shape("Analyze this conversation and provide: 1. The detected language of the conversation 2. A concise title"),
    ),
    "lobe-chat": (Shape("You are a professional conversation summarizer. Generate a concise title"),),
}
"""The side calls of each chat window."""

MAX_BEGINNING = 2048
"""Characters of a message in which a beginning is looked for, whitespace included."""

NOTE = "a side call of a chat window: strategy greedy, at temperature 0 (controller.side_calls)"


def is_side_call(request: ChatRequest, settings: SideCallSettings | None) -> bool:
    """Returns whether the last message, or a system message before all others, has the shape of a side call.

    A request that says how to search, by ``search``, an alias or more than one choice, is no side call.
    """
    if settings is None or request.search or ":" in request.model or (request.n or 1) > 1:
        return False
    asked = request.conversation
    told = asked[-1:] if asked[0].role != "system" else [asked[0], asked[-1]]
    return any(_is_one(message.text, settings) for message in told)


def as_side_call(
    request: ChatRequest, default_search: Mapping[str, Any], thinks: bool
) -> tuple[ChatRequest, dict[str, Any]]:
    """Returns the request without its temperature, which greedy does not take, and the default search for it.

    ``thinks``: whether the model thinks unless it is told not to, as it is here.
    """
    shared = {name: value for name, value in default_search.items() if name in SHARED_SETTINGS}
    if thinks:
        shared |= {"thinking": "whole", "budget": {**(shared.get("budget") or {}), "thinking": 0}}
    return request.model_copy(update={"temperature": None}), {**shared, "strategy": "greedy"}


def _shapes(settings: SideCallSettings) -> Iterator[Shape]:
    for client in settings.clients:
        yield from SHAPES[client]
    yield from map(Shape, settings.prefixes)


def _is_one(text: str, settings: SideCallSettings) -> bool:
    beginning, text = " ".join(text[:MAX_BEGINNING].split()), text.rstrip()
    return any(beginning.startswith(shape.begin) and text.endswith(shape.end) for shape in _shapes(settings))
