"""A model that writes programs into its solutions, whatever it is asked, and rewards for them."""

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from tests.engine.markov_model import save_markov_model
from tests.engine.vocabularies import EOS, byte_level

IMPORT, SET, SHOW, DRAW, FAIL, LOOP = (
    *("\nimport random\n\n", "x = 1\n\n", "x = x + 1\nprint(x)\n", "print(random.random())\n"),
    *("1 / 0\n", "while 1: pass\n"),
)
CHANCES = {
    "\n": {"ab": 0.9, "\n\n": 0.1},
    "\n\n": {"ab": 1.0},
    "ab": {"ab": 0.2, ".\n\n": 0.3, ".\n```python": 0.4, EOS: 0.1},
    ".\n\n": {"ab": 1.0},
    ".\n```python": {IMPORT: 1.0},
    IMPORT: {SET: 0.4, SHOW: 0.4, DRAW: 0.1, FAIL: 0.1},
    SET: {SHOW: 0.5, DRAW: 0.5},
    SHOW: {"```": 1.0},
    DRAW: {"```": 1.0},
    FAIL: {"```": 1.0},
    LOOP: {"```": 1.0},
}
"""Solutions with programs, which have the step delimiter in them. The variable ``x`` lasts from one to the next."""


def save_program_model(directory: Path) -> PreTrainedTokenizerFast:
    """Saves the model, and returns its tokenizer. A prompt is to end in a newline, as a chat does here."""
    tokenizer = byte_level(["ab", "\n\n", ".\n\n", ".\n```python", "```", IMPORT, SET, SHOW, DRAW, FAIL, LOOP])
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    save_markov_model(directory, tokenizer, CHANCES)
    return tokenizer


def reward(question: str, steps: Sequence[str]) -> float:
    """A reward that depends only on the last step."""
    return len(steps[-1]) % 16 / 15
