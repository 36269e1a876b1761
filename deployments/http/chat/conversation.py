"""The models' inputs from a conversation: the generator's turns, the operator's first, and the PRM's question."""

from collections.abc import Sequence
from itertools import takewhile

from deployments.admission.errors import BadRequest
from deployments.config import PromptSettings
from deployments.http.chat.schema import Message

Turn = dict[str, str]
"""``role`` and ``content``."""
SEPARATOR = "\n\n"
"""Joins the operator's and the client's system text into one turn, because most chat templates accept only one. Also
joins the turns of a question."""
ROLE_LABELS = {"system": "System", "user": "User", "assistant": "Assistant"}


def turns(messages: Sequence[Message], prompt: PromptSettings) -> list[Turn]:
    """Returns the turns for the generator's chat template.

    Raises:
        BadRequest: the client sent a system message and the operator refuses these.
    """
    leading = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
    client = [{"role": message.role, "content": message.text} for message in messages]
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
    """Returns the question of the reward model: what the user said last; with ``conversation`` all turns with roles.

    A single turn is always returned without its role. A system turn may come after the user's; it is the question only
    where the user has said nothing since the assistant's last turn.
    """
    if not conversation or len(messages) == 1:
        unanswered = takewhile(lambda message: message.role != "assistant", reversed(messages))
        said = (message.text for message in unanswered if message.role == "user" and message.text.strip())
        return next(said, messages[-1].text)
    return SEPARATOR.join(f"{ROLE_LABELS[message.role]}: {message.text}" for message in messages)
