"""A model that calls functions, and says something else once it has their results: certain, whatever it is asked."""

import json
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from deployments.engines.settings import EMBEDDED_MODELS
from tests.engine.markov_model import save_markov_model
from tests.engine.vocabularies import EOS, byte_level
from tests.tool_templates import HERMES, MARKS

Call = tuple[str, dict[str, Any]]
"""A function's name, and its arguments."""
SAID = "Let me see.\n"
"""What it says before its calls."""
ANSWER = "It is \\boxed{21}."
"""What it says when the last message is a function's result."""
_TURN = "<|im_start|>assistant\n"


def agent_settings(directory: Path, calls: Sequence[Call], context: int) -> dict[str, Any]:
    """Settings of an application whose generator writes these calls, and whose reward model is the embedded one.

    ``context``: tokens of both; each letter of most texts is one. The reward model has not learned such long texts.
    """
    save_agent_model(directory / "generator", calls, context)
    generator = {"model": str(directory / "generator"), "dtype": "float32", "max_model_len": context}
    return {"generator": generator, "prm": longer_context("prm", directory, context)}


def longer_context(name: str, directory: Path, context: int) -> dict[str, Any]:
    """Settings of an embedded model with a context of so many tokens, in which it is not trained: what it writes there
    means nothing."""
    model = directory / name
    shutil.copytree(EMBEDDED_MODELS / name, model)
    config = model / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": context}))
    return {"model": str(model), "max_model_len": context}


def save_agent_model(directory: Path, calls: Sequence[Call], context: int) -> None:
    """A Markov model: what it writes depends on the last token of the prompt, which the template chooses."""
    written = [
        SAID,
        *(f"<tool_call>\n{json.dumps({'name': name, 'arguments': given})}\n</tool_call>\n" for name, given in calls),
    ]
    tokenizer = byte_level([])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (*MARKS, *written, ANSWER)])
    answering = "<|im_start|>assistant{{ ' ' if messages[-1].role == 'tool' else '\n' }}"
    assert _TURN + "{% endif %}" in HERMES
    tokenizer.chat_template = HERMES.replace(_TURN + "{% endif %}", answering + "{% endif %}")
    chain = {"\n": written[0], **dict(pairwise(written)), written[-1]: EOS, " ": ANSWER, ANSWER: EOS}
    save_markov_model(directory, tokenizer, {last: {text: 1.0} for last, text in chain.items()}, context)
