"""The tokens of a call, by the backend's own figures where it tells them."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

BYTES_PER_TOKEN = 4
"""Of English text, about, with the vocabularies of today."""


class Usage(NamedTuple):
    """Tokens of one call."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    """Number of ``input_tokens`` that the backend had in its cache."""
    estimated: bool = False
    """Whether the backend has not told its tokens, or told something that cannot be."""

    @classmethod
    def told(cls, reply: Mapping[str, Any]) -> "Usage | None":
        """The figures in ``usage`` of a reply, or of the last event of a stream, in OpenAI's shape; None if there are
        none, or they are no numbers of tokens."""
        usage = reply.get("usage")
        if not isinstance(usage, Mapping):
            return None
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
        read, written = usage.get("prompt_tokens"), usage.get("completion_tokens", 0)
        if not (_is_count(read) and _is_count(written)):
            return None
        return cls(read, written, min(cached, read) if _is_count(cached) else 0)

    @classmethod
    def of(cls, reply: Mapping[str, Any], prompt: str, text: str, max_tokens: int) -> "Usage":
        """The figures of a reply, or estimates by the length of the texts where it has none that can be.

        Args:
            prompt: what the backend read, as far as it is known.
            text: what it wrote, thinking included as far as it is told.
            max_tokens: the most that it was allowed to write.
        """
        told = cls.told(reply)
        if told is not None and told.input_tokens > 0 and (not text or 0 < told.output_tokens <= max_tokens):
            return told
        return cls(estimated_tokens(prompt), min(max_tokens, estimated_tokens(text)), estimated=True)


def estimated_tokens(text: str) -> int:
    """About as many tokens as a text has, at least 1 if it has any character."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40
