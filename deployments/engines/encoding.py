"""Encodes text so that no text of a user or a model can pose as the chat template's own tokens.

A tokenizer turns ``<|im_end|>`` inside a question into the token that ends the turn. Here such a text
is cut after its first character before it is tokenized, so its letters reach the model as letters.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import TemplateError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CUT = "\ufdd0"
"""A Unicode noncharacter: it marks a cut inside a rendered template and is dropped from every input."""
_BUILTIN_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now")
"""Variables of chat templates that are set by transformers."""


class _Guard(NamedTuple):
    """Tokens that no text may become."""

    pattern: re.Pattern[str]
    """Matches the text of any of them, the longest first."""
    ids: frozenset[int]

    @classmethod
    def of(cls, tokens: Mapping[str, int]) -> "_Guard":
        longest_first = sorted(tokens, key=len, reverse=True)
        return cls(re.compile("|".join(map(re.escape, longest_first)) or r"(?!)"), frozenset(tokens.values()))


class ChatEncoder:
    """Encodes chats and plain texts for one tokenizer."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_vocab()
        # Runs of whitespace are added tokens in some vocabularies; they end no turn.
        guarded = {text: token for text, token in added.items() if text.strip()}
        special = {token for token, details in tokenizer.added_tokens_decoder.items() if details.special}
        self._texts: dict[int, str] = {}
        """Cache of decoded tokens: decoding a token takes longer than everything else that is done with it."""
        self._guarded = _Guard.of(guarded)
        self._special = _Guard.of({text: token for text, token in guarded.items() if token in special})

    @property
    def vocabulary(self) -> int:
        """Number of tokens: every id is below this."""
        return len(self._tokenizer)

    @cached_property
    def longest_token(self) -> int:
        """Upper bound on the characters of a token: a text has at least its length over this many tokens."""
        return max(map(len, self._tokenizer.get_vocab()))

    def encode_text(self, text: str, written: bool = False) -> list[int]:
        """Ids of a text, without any special token even if the text spells one.

        ``written``: as the model would have written it. Added tokens that are not special, such as ``<think>``, are
        then tokens, because they are part of the text of what a model writes.

        Raises:
            ValueError: the text is not valid Unicode.
        """
        guard = self._special if written else self._guarded
        ids = self._encode(self._cut(text, guard))
        if not guard.ids.isdisjoint(ids):
            raise ValueError("the text cannot be encoded without special tokens")
        return ids

    def encode_joined(self, texts: Sequence[str], separator: str) -> list[int]:
        """Ids of texts with ``separator`` between them, encoded as one text. The separator alone may spell special
        tokens.

        Raises:
            ValueError: a text is not valid Unicode.
        """
        ids = self._encode(separator.join(self._cut(text, self._guarded) for text in texts))
        special = (len(texts) - 1) * self._special_tokens(self._encode(separator))
        if self._special_tokens(ids) != special:
            raise ValueError("the text cannot be encoded without special tokens")
        return ids

    @cached_property
    def has_chat_template(self) -> bool:
        """Whether the tokenizer has a chat template: one, or a default one among several."""
        templates = self._tokenizer.chat_template
        return bool(templates) and (not isinstance(templates, dict) or "default" in templates)

    @cached_property
    def template_variables(self) -> frozenset[str]:
        """Variables that the chat template reads beside messages and special tokens, such as ``enable_thinking``."""
        # A private function, but only transformers parses its own dialect of Jinja.
        from transformers.utils.chat_template_utils import _get_template_variables

        read: frozenset[str] = _get_template_variables(self._tokenizer.get_chat_template())
        return read - {*_BUILTIN_VARIABLES, *self._tokenizer.special_tokens_map}

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token by itself; empty for special tokens."""
        if new := list(set(token_ids) - self._texts.keys()):
            texts = self._tokenizer.batch_decode([[token] for token in new], skip_special_tokens=True)
            self._texts.update(zip(new, texts, strict=True))
        return [self._texts[token] for token in token_ids]

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, str]],
        answered: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        opening: str = "",
    ) -> list[int]:
        """Ids of ``role``/``content`` messages in the model's chat template.

        They end where the assistant's turn begins, with ``opening`` as its first text, which may spell special tokens;
        or, if ``answered``, with that turn as the last message. Of
        ``template_kwargs`` the template gets those that it reads (``template_variables``).

        Raises:
            ValueError: the text is not valid Unicode, there is no chat template, or it refuses the messages.
        """
        if not self.has_chat_template:
            raise ValueError("the model has no chat template")
        cut = [
            {"role": message["role"], "content": self._cut(message["content"], self._guarded)} for message in messages
        ]
        kwargs = {
            name: self._cut(value, self._guarded) if isinstance(value, str) else value
            for name, value in (template_kwargs or {}).items()
            if name in self.template_variables
        }
        try:
            rendered = self._tokenizer.apply_chat_template(
                cut, tokenize=False, add_generation_prompt=not answered, **kwargs
            )
        except TemplateError as error:  # raised by the template, with a message for the messages' author
            raise ValueError(f"the chat template refuses these messages: {error.message}") from error
        except Exception as error:
            raise ValueError("the chat template cannot take these messages") from error
        assert isinstance(rendered, str)
        return self._encode(rendered + opening)

    def _special_tokens(self, ids: Sequence[int]) -> int:
        return sum(token in self._guarded.ids for token in ids)

    def _cut(self, text: str, guard: _Guard) -> str:
        text = text.replace(_CUT, "")
        return guard.pattern.sub(lambda match: match[0][0] + _CUT + match[0][1:], text)

    def _encode(self, text: str) -> list[int]:
        try:
            parts = [self._tokenizer.encode(part, add_special_tokens=False) for part in text.split(_CUT)]
        except (TypeError, UnicodeEncodeError) as error:
            raise ValueError("the text is not valid Unicode") from error
        return parts[0] if len(parts) == 1 else [token for part in parts for token in part]
