"""Prompts of contexts: a chat in which the model reads solutions, as token ids, or as messages for a backend."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from deployments.backends.messages import MessageEncoder
from search.prompt import Prompt
from search.templates import Message, Template, composed


class Chat(NamedTuple):
    """The chat of a search, and what its prompt was made with."""

    messages: Sequence[Message]
    """The turns for the generator's chat template, the operator's included."""
    template_kwargs: Mapping[str, Any] | None = None
    tools: Sequence[Mapping[str, Any]] = ()


class Encoder(Protocol):
    """See `deployments.engines.encoding.ChatEncoder`."""

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        template_kwargs: Mapping[str, Any] | None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]: ...


class ContextPrompts:
    """Composes the prompts of contexts (`search.run.environment.SearchEnvironment.compose`) for one model."""

    def __init__(self, encoder: Encoder | MessageEncoder, templates: Mapping[str, Template]) -> None:
        self._encoder = encoder
        self._templates = templates

    def __call__(self, chat: Chat, template: str, shown: Sequence[str], note: str) -> Prompt:
        """The prompt of a chat in which the solutions ``shown`` stand in the place of a template.

        System messages, tools and the variables of the chat template are those of the question's own prompt. As there,
        no text becomes a special token.

        Raises:
            ValueError: there is no such template, or the chat template refuses the messages.
        """
        if (found := self._templates.get(template)) is None:
            raise ValueError(f"there is no template {template!r}; there are: {', '.join(self._templates)}")
        messages = composed(chat.messages, found, shown, note)
        if isinstance(self._encoder, MessageEncoder):
            return self._encoder.prompt(messages)
        return Prompt(
            tuple(self._encoder.encode_chat(messages, template_kwargs=chat.template_kwargs, tools=chat.tools))
        )
