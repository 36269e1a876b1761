"""Text to token ids, so that no text of a user or a model can pose as the chat template's own tokens.

A tokenizer turns ``<|im_end|>`` inside a question into the token that ends the turn. Here such a text
is cut after its first character before it is tokenized, so its letters reach the model as letters.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CUT = "\ufdd0"
"""A Unicode noncharacter: it marks a cut inside a rendered template and is dropped from every input."""
_GIVEN = ("messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now")
"""Variables of chat templates that are set by transformers."""


class ChatEncoder:
    """Encodes chats and plain texts for one tokenizer."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_vocab()
        # Runs of whitespace are added tokens in some vocabularies; they end no turn.
        guarded = {text: token for text, token in added.items() if text.strip()}
        self._guarded_ids = frozenset(guarded.values())
        self._texts: dict[int, str] = {}
        """Of the tokens that were asked for: decoding one takes longer than all else that is done with it."""
        longest_first = sorted(guarded, key=len, reverse=True)
        self._guarded = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    @property
    def vocabulary(self) -> int:
        """How many tokens there are: every id is below this."""
        return len(self._tokenizer)

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token, at least: a text has no fewer tokens than its length over this."""
        return max(map(len, self._tokenizer.get_vocab()))

    def encode_text(self, text: str) -> list[int]:
        """Ids of a text without any special token, whatever the text says.

        Raises:
            ValueError: the text is not valid Unicode.
        """
        ids = self._encode(self._cut(text))
        if not self._guarded_ids.isdisjoint(ids):
            raise ValueError("the text cannot be encoded without special tokens")
        return ids

    @cached_property
    def template_variables(self) -> frozenset[str]:
        """What the model's chat template reads beside the messages and the special tokens, as ``enable_thinking``."""
        # Private, but the parser of templates is transformers' own dialect of Jinja's.
        from transformers.utils.chat_template_utils import _get_template_variables

        read: frozenset[str] = _get_template_variables(self._tokenizer.get_chat_template())
        return read - {*_GIVEN, *self._tokenizer.special_tokens_map}

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """What each token says alone; special ones say nothing."""
        if new := list(set(token_ids) - self._texts.keys()):
            said = self._tokenizer.batch_decode([[token] for token in new], skip_special_tokens=True)
            self._texts.update(zip(new, said, strict=True))
        return [self._texts[token] for token in token_ids]

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, str]],
        answered: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Ids of ``role``/``content`` messages in the model's chat template, ready for the assistant's turn; or with
        that turn as the last, ``answered``. The template is told ``template_kwargs`` as far as it reads them
        (``template_variables``).

        Raises:
            ValueError: the text is not valid Unicode, or the template refuses the messages.
        """
        cut = [{"role": message["role"], "content": self._cut(message["content"])} for message in messages]
        told = {
            name: self._cut(value) if isinstance(value, str) else value
            for name, value in (template_kwargs or {}).items()
            if name in self.template_variables
        }
        try:
            rendered = self._tokenizer.apply_chat_template(
                cut, tokenize=False, add_generation_prompt=not answered, **told
            )
        except TemplateError as error:  # what the template itself raises is written for who wrote the messages
            raise ValueError(f"the chat template refuses these messages: {error.message}") from error
        except Exception as error:
            raise ValueError("the chat template cannot take these messages") from error
        assert isinstance(rendered, str)
        return self._encode(rendered)

    def _cut(self, text: str) -> str:
        text = text.replace(_CUT, "")
        return self._guarded.sub(lambda match: match[0][0] + _CUT + match[0][1:], text)

    def _encode(self, text: str) -> list[int]:
        try:
            parts = [self._tokenizer.encode(part, add_special_tokens=False) for part in text.split(_CUT)]
        except (TypeError, UnicodeEncodeError) as error:
            raise ValueError("the text is not valid Unicode") from error
        return parts[0] if len(parts) == 1 else [token for part in parts for token in part]
