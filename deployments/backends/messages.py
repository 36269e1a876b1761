"""Prompts for a backend: the chat itself, which the backend encodes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from deployments.backends.usage import estimated_tokens
from search.errors import PromptTooLong
from search.prompt import Prompt

MESSAGE_TOKENS = 4
"""About as many tokens as a chat template adds to a message."""


class NoTools(NamedTuple):
    """What of a conversation with tools reaches a backend: nothing yet."""

    tools: bool = False
    calls: bool = False
    results: bool = False


class MessageEncoder:
    """Takes the place of a `ChatEncoder` where there is no tokenizer: numbers of tokens are estimates by the lengths of
    texts, and token ids are placeholders: only their number is meaningful."""

    vocabulary = 0
    longest_token = 64
    """More characters than a token has on average in any text: fewer tokens than this says are possible nowhere."""
    template_variables: frozenset[str] = frozenset()
    tool_support = NoTools()
    tool_parser = None

    def __init__(self, thinks: bool) -> None:
        """``thinks``: whether the backend tells the model's thinking apart."""
        self.marks = True if thinks else None

    def encode_text(self, text: str, written: bool = False, max_tokens: int | None = None) -> list[int]:
        """Raises PromptTooLong: there are more than ``max_tokens``."""
        return [0] * _at_most(estimated_tokens(text), max_tokens)

    def prompt(self, messages: Sequence[Mapping[str, Any]], prefill: str = "", max_tokens: int | None = None) -> Prompt:
        """The prompt of a chat, with the beginning of its answer.

        Raises:
            PromptTooLong: it has more than ``max_tokens``, or about as many.
        """
        begun = [{"role": "assistant", "content": prefill}] if prefill else []
        chat = [*messages, *begun]
        tokens = sum(estimated_tokens(str(each.get("content") or "")) + MESSAGE_TOKENS for each in chat)
        return Prompt(messages=json.dumps(chat), counted=_at_most(tokens, max_tokens))

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        return [""] * len(token_ids)


def _at_most(tokens: int, most: int | None) -> int:
    if most is not None and tokens > most:
        raise PromptTooLong(f"about {tokens} tokens")
    return tokens
