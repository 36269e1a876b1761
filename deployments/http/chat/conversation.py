"""The models' inputs from a conversation: the generator's turns, the operator's first, and the PRM's question."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from deployments.admission.errors import BadRequest
from deployments.config import PromptSettings
from deployments.http.chat.schema import Message
from deployments.http.chat.tools import CalledFunction

Turn = dict[str, Any]
"""``role`` and ``content``, and what the message has of tools."""
SEPARATOR = "\n\n"
"""Joins the operator's and the client's system text into one turn, because most chat templates accept only one. Also
joins the turns of a question."""
THINKING_FIELDS = "reasoning_content", "reasoning"
"""Fields of a turn in which chat templates look for its thinking."""
ROLE_LABELS = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}


def turns(messages: Sequence[Message], prompt: PromptSettings) -> list[Turn]:
    """Returns the turns for the generator's chat template.

    Raises:
        BadRequest: the client sent a system message and the operator refuses these.
    """
    leading = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
    functions = _functions(messages)
    client = [_turn(message, functions) for message in messages]
    own, conversation = client[:leading], client[leading:]
    if prompt.system is not None:
        systems = [index for index, message in enumerate(messages) if message.role == "system"]
        if systems and prompt.client_system == "refuse":
            path = f"messages.{systems[0]}.role"
            raise BadRequest("a system message is not allowed here: the operator sets the system message", path)
        ours = [] if own and prompt.client_system == "replace" else [prompt.system]
        own = [{"role": "system", "content": SEPARATOR.join([*ours, *(turn["content"] for turn in own)])}]
    return [*own, *prompt.example_turns, *conversation]


def question(messages: Sequence[Message], conversation: bool) -> str:
    """Returns the question of the reward model: what the user said last, with what tools have told since; with
    ``conversation`` all turns with roles.

    A single turn is always returned without its role. A system turn may come after the user's; it is the question only
    where the user has said nothing since the assistant's last turn.
    """
    functions = _functions(messages)
    if conversation and len(messages) > 1:
        return SEPARATOR.join(f"{ROLE_LABELS[message.role]}: {_said(message, functions)}" for message in messages)
    unanswered = list(takewhile(lambda message: message.role != "assistant" or message.tool_calls, reversed(messages)))
    said = (message.text for message in unanswered if message.role == "user" and message.text.strip())
    told = [_said(message, functions) for message in unanswered[::-1] if message.role == "tool"]
    asked = next(said, "" if told else messages[-1].text)
    return SEPARATOR.join(filter(None, [asked, *told]))


def _said(message: Message, functions: Mapping[str, CalledFunction]) -> str:
    """The text of a message without thinking and with its calls, or with the call whose result it is."""
    if message.role == "tool":
        return f"{_written(functions[message.tool_call_id or ''])} = {message.text}"
    text = message.content_alone
    calls = (_written(call.function) for call in message.tool_calls or ())
    return "\n".join(filter(None, [text, *calls])) if message.tool_calls else text


def _written(function: CalledFunction) -> str:
    return f"{function.name}({function.arguments})"


def _functions(messages: Sequence[Message]) -> dict[str, CalledFunction]:
    """The functions that were called, by the ids of the calls."""
    return {call.id: call.function for message in messages for call in message.tool_calls or ()}


def _turn(message: Message, functions: Mapping[str, CalledFunction]) -> Turn:
    content, thinking = message.shown
    turn: Turn = {"role": message.role, "content": content}
    if thinking:
        turn |= dict.fromkeys(THINKING_FIELDS, thinking)
    if message.tool_calls:
        turn["tool_calls"] = [call.shown for call in message.tool_calls]
    if message.role == "tool":
        turn |= {"tool_call_id": message.tool_call_id, "name": functions[message.tool_call_id or ""].name}
    return turn
