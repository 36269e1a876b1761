"""How the generator marks its thinking, by the names of vLLM's reasoning parsers.

vLLM's parsers cut a reply into reasoning and content. Banyan needs less of them, and earlier: the marks, where the
engine stops. They are told here without vLLM, because controllers need them too.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NO_REASONING = "none"
PLAIN_TEXT = "think_text"
"""The parser of models that were told to think between ``<think>`` and ``</think>``, and have no tokens for them."""
_THINK = "<think>", "</think>"
_THINK_PARSERS = (
    *("deepseek_r1", "deepseek_v3", "deepseek_v4", "deepseek_v41", "ernie45", "glm45", "glm47"),
    *("granite_thinking_parser", "holo2", "hy_v3", "hy_v4", "kimi_k2", "ling3", "mimo", "minicpmv", "minimax_m2"),
    *("nemotron_v3", "olmo3", "poolside_v1", "qwen3", "step3", "step3p5"),
)
MARKS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(_THINK_PARSERS, _THINK),
    PLAIN_TEXT: _THINK,
    "cohere_command3": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "cohere_command4": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "gemma4": ("<|channel>", "<channel|>"),
    "granite": ("Here is my thought process:", "Here is my response:"),
    "k2_horizon": ("<ifm|think>", "</ifm|think>"),
    "minimax_m3": ("<mm:think>", "</mm:think>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "seed_oss": ("<seed:think>", "</seed:think>"),
}
"""Opening and closing mark, by parser."""
_TEXTS = (PLAIN_TEXT, "granite")
"""Parsers whose marks are plain text."""
_SEVERAL_TOKENS = "its marks are several tokens each, some of which are dropped from texts"
REFUSED = {
    "hf": "its marks are told by the tokenizer's configuration: name the parser of the model's family",
    "hunyuan_a13b": f"{PLAIN_TEXT} finds the same marks, and leaves <answer> and </answer> in the content",
    "inkling": "not only its thinking, but every message ends with its closing mark",
    "kimi_k3": _SEVERAL_TOKENS,
    "minimax_m2_append_think": "minimax_m2 finds the same marks",
    "muse_glimmer": "it thinks in messages to itself, which have no marks of their own",
    "openai_gptoss": "it thinks in a channel, whose beginning and end are several tokens",
    "plamo3": _SEVERAL_TOKENS,
}
"""vLLM's parsers that are not offered, and why, or which one to name instead."""
_SENTENCES = {
    # Published with Qwen3, in the example of a thinking budget in its documentation.
    "qwen3": "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly "
    "now.",
}
_QWEN3_SWITCH = "enable_thinking is defined and enable_thinking is false"
"""How Qwen3's chat templates ask for no thinking."""
_FOUND = ("mistral", "seed_oss", "cohere_command3", "minimax_m3", "k2_horizon")
"""Parsers of marks that no other family has."""


class Marks(NamedTuple):
    """The marks between which a model thinks."""

    opening: str
    closing: str
    tokens: tuple[int, int] | None
    """Their tokens; None: they are plain text."""
    sentence: str = ""
    """With which the model closes a thought that was cut off, if its makers name one."""

    @property
    def end(self) -> str:
        """The text that closes a thought which was cut off."""
        return f"{self.sentence}\n{self.closing}\n\n"

    @property
    def no_thought(self) -> str:
        """The text that follows the opening mark where there is to be no thinking."""
        return f"\n\n{self.closing}\n\n"


def parser_name(given: str) -> str:
    """Raises ValueError unless it is the name of a parser, or ``none``."""
    if given in REFUSED:
        raise ValueError(
            f"{given!r} is not offered: {REFUSED[given]}. With {NO_REASONING} its thinking is split into steps like "
            "the solution, has no budget, and is told from the answer only if its marks are in the text"
        )
    if given not in MARKS and given != NO_REASONING:
        raise ValueError(f"no parser {given!r}; there are {', '.join(sorted(MARKS))}; {NO_REASONING} for no thinking")
    return given


def marks_of(name: str | None, tokenizer: "PreTrainedTokenizerBase") -> Marks | None:
    """The marks by which a parser finds the thinking of a tokenizer's model. None: the model does not think.

    Args:
        name: the parser; None: found from the chat template, where that is certain.

    Raises:
        ValueError: the tokenizer has no tokens for the parser's marks.
    """
    found = next(_of_template(tokenizer), None) if name is None else name
    if found is None or found == NO_REASONING:
        return None
    opening, closing = MARKS[found]
    sentence = _SENTENCES.get(found, "")
    if found in _TEXTS:
        return Marks(opening, closing, None, sentence)
    added = tokenizer.get_added_vocab()
    if missing := [mark for mark in (opening, closing) if mark not in added]:
        also = f"; {PLAIN_TEXT} reads them as plain text" if (opening, closing) == _THINK else ""
        raise ValueError(
            f"the tokenizer has no token {' and no token '.join(missing)}, by which {found} finds the thinking: name "
            f"the parser of this model, or {NO_REASONING} if it does not think{also}"
        )
    return Marks(opening, closing, (added[opening], added[closing]), sentence)


def _of_template(tokenizer: "PreTrainedTokenizerBase") -> Iterator[str]:
    """The parsers whose marks the chat template writes, and the vocabulary has as tokens. DeepSeek-R1's first template
    writes none, but leaves out what stands before the closing mark in earlier answers."""
    templates = tokenizer.chat_template
    source = "\n".join(templates.values()) if isinstance(templates, dict) else templates or ""
    added = tokenizer.get_added_vocab()
    if all(mark in added for mark in _THINK) and _THINK[1] in source:
        yield "qwen3" if _QWEN3_SWITCH in source and "<|im_start|>" in added else "deepseek_r1"
    for name in _FOUND:
        if all(mark in added and mark in source for mark in MARKS[name]):
            yield name
