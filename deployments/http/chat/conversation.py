"""The models' inputs from a conversation: the generator's turns, the operator's first, and the PRM's question."""

from collections.abc import Sequence
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
    client = [_turn(message, function) for message, function in zip(messages, _functions(messages), strict=True)]
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
    answered = list(zip(messages, _functions(messages), strict=True))
    if conversation and len(messages) > 1:
        return SEPARATOR.join(f"{ROLE_LABELS[each[0].role]}: {_said(*each)}" for each in answered)
    unanswered = list(takewhile(lambda each: each[0].role != "assistant" or each[0].tool_calls, reversed(answered)))
    texts = (message.text for message, _ in unanswered if message.role == "user" and message.text.strip())
    told = [_said(*each) for each in unanswered[::-1] if each[0].role == "tool"]
    asked = next(texts, "" if told else messages[-1].text)
    return SEPARATOR.join(filter(None, [asked, *told]))


def _said(message: Message, function: CalledFunction | None) -> str:
    """The text of a message without thinking and with its calls, or with the call whose result it is."""
    if function is not None:
        return f"{_written(function)} = {message.text}"
    text = message.content_alone
    calls = (_written(call.function) for call in message.tool_calls or ())
    return "\n".join(filter(None, [text, *calls])) if message.tool_calls else text


def _written(function: CalledFunction) -> str:
    return f"{function.name}({function.arguments})"


def _functions(messages: Sequence[Message]) -> list[CalledFunction | None]:
    """The function whose result each message is; None for messages of other roles. Some servers use an id again in a
    later turn: the last call before the result counts."""
    called: dict[str | None, CalledFunction] = {}
    found = []
    for message in messages:
        called |= {call.id: call.function for call in message.tool_calls or ()}
        found.append(called[message.tool_call_id] if message.role == "tool" else None)
    return found


def _turn(message: Message, function: CalledFunction | None) -> Turn:
    content, thinking = message.shown
    turn: Turn = {"role": message.role, "content": content}
    if thinking:
        turn |= dict.fromkeys(THINKING_FIELDS, thinking)
    if message.tool_calls:
        turn["tool_calls"] = [call.shown for call in message.tool_calls]
    if function is not None:
        turn |= {"tool_call_id": message.tool_call_id, "name": function.name}
    return turn
