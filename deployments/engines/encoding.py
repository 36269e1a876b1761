"""Encodes text so that no text of a user or a model can pose as the chat template's own tokens.

A tokenizer turns ``<|im_end|>`` inside a question into the token that ends the turn. Here such a text
is cut after its first character before it is tokenized, so its letters reach the model as letters.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from deployments.engines.chat_template import ChatTemplate
from deployments.engines.reasoning import Marks
from deployments.engines.token_guard import CUT, EDGE, TokenGuard
from deployments.engines.tool_parsers import tool_parser_name
from deployments.engines.tool_support import ToolSupport
from search.answers.thoughts import has_marks, open_thought
from search.errors import PromptTooLong

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Turn = Mapping[str, Any]
"""A message: ``role`` and ``content``, and what it has of tools."""
Tool = Mapping[str, Any]
"""A function that a model may call, in OpenAI's shape."""
_BUILTIN_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now")
"""Variables of chat templates that are set by transformers."""


TAIL = 32
"""Tokens at the end of a prompt that may close a thought: the mark, and whitespace behind it."""


class ChatEncoder:
    """Encodes chats and plain texts for one tokenizer."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        marks: Marks | None = None,
        call_marks: frozenset[int] = frozenset(),
    ) -> None:
        """``marks``: those between which the tokenizer's model thinks; None: it does not. ``call_marks``: special
        tokens that mark its tool calls."""
        self.marks = marks
        self._tokenizer = tokenizer
        added = tokenizer.get_added_vocab()
        # Runs of whitespace are added tokens in some vocabularies; they end no turn.
        guarded = {text: token for text, token in added.items() if text.strip()}
        self._added = tokenizer.added_tokens_decoder
        kept = marks.tokens if marks and marks.tokens else ()
        special = {token for token, details in self._added.items() if details.special and token not in kept}
        self._texts: dict[int, str] = {}
        """Cache of decoded tokens: decoding a token takes longer than everything else that is done with it."""
        self._texts.update({token: self._added[token].content for token in call_marks.union(kept)})
        self._guarded = TokenGuard.of(guarded)
        self._special = TokenGuard.of({text: token for text, token in guarded.items() if token in special})

    @property
    def vocabulary(self) -> int:
        """Number of tokens: every id is below this."""
        return len(self._tokenizer)

    @cached_property
    def longest_token(self) -> int:
        """Upper bound on the characters of a token: a text has at least its length over this many tokens."""
        return max(map(len, self._tokenizer.get_vocab()))

    @property
    def spelling(self) -> tuple[list[str], str, int | None]:
        """For compilers of grammars: the tokens by id, the parts of the tokenizer, as JSON, that say how tokens spell
        bytes (empty for a tokenizer without such parts), and the token that ends a text."""
        vocabulary = self._tokenizer.get_vocab()
        tokens = [""] * (max(vocabulary.values()) + 1)
        for token, index in vocabulary.items():
            tokens[index] = token
        backend, parts = getattr(self._tokenizer, "backend_tokenizer", None), ""
        if backend is not None:
            # Not all of the tokenizer: as JSON it has the vocabulary once more.
            given = {name: getattr(backend, name) for name in ("normalizer", "pre_tokenizer", "decoder")}
            parts = json.dumps({name: part and json.loads(part.__getstate__()) for name, part in given.items()})
        eos = self._tokenizer.eos_token_id
        return tokens, parts, eos if isinstance(eos, int) else None

    def encode_text(self, text: str, written: bool = False, max_tokens: int | None = None) -> list[int]:
        """Ids of a text, without any special token even if the text spells one.

        Args:
            written: As the model would have written it. The marks of its thinking and added tokens that are not
                special are then tokens, because they are part of the text of what a model writes.
            max_tokens: A text that certainly has more tokens is not tokenized.

        Raises:
            ValueError: the text is not valid Unicode.
            PromptTooLong: it has more than ``max_tokens``.
        """
        guard = self._special if written else self._guarded
        ids = self._encode(guard.cut(text), max_tokens)
        if not guard.ids.isdisjoint(ids):
            raise ValueError("the text cannot be encoded without special tokens")
        return ids

    def encode_joined(self, texts: Sequence[str], separator: str) -> list[int]:
        """Ids of texts with ``separator`` between them, encoded as one text. The separator alone may spell special
        tokens.

        Raises:
            ValueError: a text is not valid Unicode.
        """
        ids = self._encode(separator.join(map(self._guarded.cut, texts)))
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
        """The text of each token by itself; empty for special tokens but for marks of thinking and calls."""
        if new := list(set(token_ids) - self._texts.keys()):
            texts = self._tokenizer.batch_decode([[token] for token in new], skip_special_tokens=True)
            self._texts.update(zip(new, texts, strict=True))
        return [self._texts[token] for token in token_ids]

    @cached_property
    def tool_parser(self) -> str | None:
        """The parser that certainly reads the calls that the chat template shows the model."""
        return tool_parser_name(self._tokenizer)

    @cached_property
    def tool_support(self) -> ToolSupport:
        """What of a conversation with tools reaches the prompt."""

        def rendered(messages: Sequence[Turn], tools: Sequence[Tool]) -> str:
            return self._rendered(self._cut(messages), False, None, tools)

        return ToolSupport.of(rendered)

    def encode_chat(
        self,
        messages: Sequence[Turn],
        answered: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        opening: str = "",
        max_tokens: int | None = None,
        tools: Sequence[Tool] = (),
    ) -> list[int]:
        """Ids of ``role``/``content`` messages in the model's chat template, which may leave out parts of the earlier
        answers, such as their thoughts. An assistant's message may have ``tool_calls``, and one of role ``tool`` a
        ``tool_call_id``; ``tools`` are the functions that may be called, both in OpenAI's shapes. The assistant's
        ``reasoning_content`` and ``reasoning`` reach the template if it looks for them.

        They end where the assistant's turn begins, with ``opening`` as its first text, which may spell special tokens;
        or, if ``answered``, with that turn as the last message. Of
        ``template_kwargs`` the template gets those that it reads (``template_variables``). What certainly has more than
        ``max_tokens`` is not tokenized.

        Raises:
            ValueError: the text is not valid Unicode, there is no chat template, or it refuses the messages.
            PromptTooLong: there are more than ``max_tokens``.
        """
        rendered = self._rendered(self._cut(messages), answered, template_kwargs, tools)
        return self._encode(self._template.restored(rendered) + opening, max_tokens)

    def open_thought(
        self,
        messages: Sequence[Turn],
        template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Tool] = (),
    ) -> str:
        """The mark of the thought in which the assistant's turn begins, as ``encode_chat`` ends; empty if it begins in
        none, or if the texts that are written lack the marks of thoughts, because they are special tokens.

        Raises:
            ValueError: as ``encode_chat``.
        """
        if not self._template.names_thoughts:
            return ""
        # Only what the template writes behind the last message opens a thought, not a text that speaks of the mark.
        *earlier, last = self._cut(messages)
        ended = {**last, "content": last["content"] + EDGE}
        rendered = self._rendered([*earlier, ended], False, template_kwargs, tools)
        written = rendered.rpartition(EDGE)[2].strip()
        mark = open_thought(written) or open_thought(written.rpartition("\n")[2])
        return "" if self._writes_no_marks or self._special.pattern.search(mark) else mark

    @cached_property
    def _writes_no_marks(self) -> bool:
        return any(map(has_marks, self._special.texts))

    def thought_is_over(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt ends behind a thought, as where the template is told that there is to be no thinking."""
        marks, tail = self.marks, list(prompt[-TAIL:])
        if marks is None:
            return True
        texts = self.token_texts(tail)
        while tail and not texts[-1].strip():
            tail.pop()
            texts.pop()
        if marks.tokens is not None:
            return tail[-1:] == [marks.tokens[1]]
        return "".join(texts).rstrip().endswith(marks.closing)

    @property
    def given_tokens(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The ids of the opening mark, and of the texts that close a thought which was cut off, or is not wanted."""
        assert self.marks is not None
        texts = (self.marks.opening, self.marks.end, self.marks.no_thought)
        opening, end, no_thought = (tuple(self._tokenizer.encode(text, add_special_tokens=False)) for text in texts)
        return opening, end, no_thought

    @cached_property
    def _template(self) -> ChatTemplate:
        try:
            source = self._tokenizer.get_chat_template()
        except (AttributeError, ValueError):  # there is none, or it is none of Jinja's
            source = ""
        return ChatTemplate.of(source, self._guarded)

    def _cut(self, messages: Sequence[Turn]) -> list[dict[str, Any]]:
        cut: list[dict[str, Any]] = [
            self._guarded.cut_json(
                {
                    field: value
                    for field, value in message.items()
                    if not field.startswith("reasoning") or field in self._template.thinking_fields
                }
            )
            | {"role": message["role"]}
            for message in messages
        ]
        for message in cut[:-1]:
            if message["role"] == "assistant":
                message["content"] = self._template.searchable(message["content"])
        return cut

    def _rendered(
        self,
        messages: Sequence[dict[str, Any]],
        answered: bool,
        template_kwargs: Mapping[str, Any] | None,
        tools: Sequence[Tool],
    ) -> str:
        """Raises ValueError: there is no template, or it refuses the messages."""
        if not self.has_chat_template:
            raise ValueError("the model has no chat template")
        kwargs = {
            name: self._guarded.cut(value) if isinstance(value, str) else value
            for name, value in (template_kwargs or {}).items()
            if name in self.template_variables
        }
        if self._template.stand_ins:
            kwargs["chat_template"] = self._template.source
        if tools:
            kwargs["tools"] = self._guarded.cut_json(list(tools))
        try:
            rendered = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=not answered, **kwargs
            )
        except TemplateError as error:  # raised by the template, with a message for the messages' author
            raise ValueError(f"the chat template refuses these messages: {error.message}") from error
        except Exception as error:
            raise ValueError("the chat template cannot take these messages") from error
        assert isinstance(rendered, str)
        return rendered

    def _special_tokens(self, ids: Sequence[int]) -> int:
        return sum(token in self._guarded.ids for token in ids)

    def _encode(self, text: str, max_tokens: int | None = None) -> list[int]:
        parts = [part for part in text.split(CUT) if part]
        # Each part has at least one token, and none has more characters than the longest.
        if (
            max_tokens is not None
            and (least := sum(-(-len(part) // self.longest_token) for part in parts)) > max_tokens
        ):
            raise PromptTooLong(f"at least {least} tokens")
        try:
            if len(parts) < 2:
                return list(self._tokenizer.encode("".join(parts), add_special_tokens=False))
            # In one call, and equal parts once: a call takes 30 µs, and a megabyte of special tokens has 100,000 parts.
            different = list(dict.fromkeys(parts))
            encoded = self._tokenizer(different, add_special_tokens=False, return_attention_mask=False)["input_ids"]
        except (TypeError, UnicodeEncodeError) as error:
            raise ValueError("the text is not valid Unicode") from error
        ids = dict(zip(different, encoded, strict=True))
        return [token for part in parts for token in ids[part]]
