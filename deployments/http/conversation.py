"""What the models read of a conversation: the operator's turns before the client's, and what counts as the question."""

from collections.abc import Sequence

from deployments.admission.errors import BadRequest
from deployments.config import PromptSettings
from deployments.http.schema import Message

Turn = dict[str, str]
"""``role`` and ``content``."""
BETWEEN = "\n\n"
"""Between the operator's system text and the client's, in one turn: most chat templates take one only."""
NAMES = {"system": "System", "user": "User", "assistant": "Assistant"}


def turns(messages: Sequence[Message], prompt: PromptSettings) -> list[Turn]:
    """What the generator's chat template is given.

    Raises:
        BadRequest: the client has a system message and may not.
    """
    leading = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
    client = [{"role": message.role, "content": message.text} for message in messages]
    own, conversation = client[:leading], client[leading:]
    if prompt.system is not None:
        systems = [index for index, message in enumerate(messages) if message.role == "system"]
        if systems and prompt.client_system == "refuse":
            path = f"messages.{systems[0]}.role"
            raise BadRequest("a system message is not allowed here: the operator has set it", path)
        ours = [] if own and prompt.client_system == "replace" else [prompt.system]
        own = [{"role": "system", "content": BETWEEN.join([*ours, *(turn["content"] for turn in own)])}]
    return [*own, *prompt.example_turns, *conversation]


def question(messages: Sequence[Message], conversation: bool) -> str:
    """What the reward model scores steps against: the client's last turn, or all of its turns with their roles.

    A conversation of one turn is the same either way.
    """
    if not conversation or len(messages) == 1:
        return messages[-1].text
    return BETWEEN.join(f"{NAMES[message.role]}: {message.text}" for message in messages)
