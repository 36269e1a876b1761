"""How sure the generator was of each solution of the pool, without a second model.

The solutions are read again, each whole, by the generator's own weights: the log-probabilities of a token under the
whole vocabulary do not depend on whether it is being written or read. So one pass gives all figures, also those for
which an engine would have to return the log-probabilities of the most likely tokens.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.published.problems import MathProblem
from benchmarks.published.rows import Row, RowFile

TOP_K = 20
WINDOW = 64
"""Tokens of DeepConf's sliding window. Its authors take 2,048, of solutions that are a hundred times as long."""
TAIL = 64
"""Tokens of its tail; 2,048 there."""
DIGITS = 4
AT_ONCE = 4
"""Solutions read in one batch."""
CHUNK = 32
"""Tokens whose distributions are computed at a time, so that they stay in the processor's cache."""


class Reader:
    """The generator's weights in transformers."""

    def __init__(self, model: str, threads: int) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(threads)
        self._tokenizer = AutoTokenizer.from_pretrained(model)
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()

    def row(self, problem: MathProblem, solutions: Sequence[dict[str, Any]]) -> Row:
        """The figures of each solution of a problem."""
        turns = [{"role": "user", "content": problem.text}]
        text = self._tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        prompt = self._tokenizer.encode(text, add_special_tokens=False)
        bodies = [self._tokenizer.encode("".join(each["steps"]), add_special_tokens=False) for each in solutions]
        order = sorted(range(len(bodies)), key=lambda index: len(bodies[index]))
        found: list[dict[str, float] | None] = [None] * len(bodies)
        for begin in range(0, len(order), AT_ONCE):
            chosen = order[begin : begin + AT_ONCE]
            for index, figures in zip(chosen, self._figures(prompt, [bodies[each] for each in chosen]), strict=True):
                found[index] = figures
        return {"problem": problem.id, "n": len(solutions), "figures": found}

    @torch.inference_mode()
    def _figures(self, prompt: list[int], bodies: list[list[int]]) -> list[dict[str, float]]:
        longest = max(map(len, bodies))
        ids = torch.tensor([[*prompt, *body, *[0] * (longest - len(body))] for body in bodies])
        # Padded on the right: attention is causal, so the padding changes nothing before it.
        hidden = self._model.model(input_ids=ids, use_cache=False).last_hidden_state
        begin = len(prompt) - 1
        return [
            figures_of(*self._tokens(hidden[row, begin : begin + len(body)], body)) for row, body in enumerate(bodies)
        ]

    def _tokens(self, hidden: Tensor, written: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """For each token: its log-probability, the mean of all log-probabilities, and that of the most likely."""
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        for begin in range(0, len(written), CHUNK):
            logits = self._model.lm_head(hidden[begin : begin + CHUNK]).float()
            norm = logits.logsumexp(dim=1)
            chosen = torch.tensor(written[begin : begin + CHUNK])[:, None]
            top = logits.topk(TOP_K, dim=1).values.mean(dim=1)
            parts.append((logits.gather(1, chosen)[:, 0] - norm, logits.mean(dim=1) - norm, top - norm))
        drawn, mean, top = (torch.cat(each) for each in zip(*parts, strict=True))
        return drawn, mean, top


def figures_of(drawn: Tensor, mean: Tensor, top: Tensor) -> dict[str, float]:
    """The confidence figures of a text; each is higher where the model was surer.

    Args:
        drawn: log-probability of each token (nats).
        mean: of each token's distribution, the mean log-probability over the vocabulary.
        top: the same over the `TOP_K` most likely tokens.

    The mean log-probability; self-certainty (Kang et al. 2025, arXiv 2502.18581), but for a constant: minus the mean
    over the vocabulary; DeepConf's confidence of a token (Fu et al. 2025, arXiv 2508.15260), minus the mean over the
    most likely tokens: its mean over the text, the lowest of any window, and that of the tail.
    """
    confidence = -top
    windows = confidence.unfold(0, min(WINDOW, len(confidence)), 1).mean(dim=1)
    found = {
        "logprob": drawn.mean(),
        "self_certainty": -mean.mean(),
        "confidence": confidence.mean(),
        "lowest_window": windows.min(),
        "tail": confidence[-TAIL:].mean(),
    }
    return {name: round(float(value), DIGITS) for name, value in found.items()}


def read_pool(
    reader: Reader, problems: Sequence[MathProblem], n: int, pool: RowFile, rows: RowFile, ends_at: float
) -> None:
    """Reads the ``n`` solutions of each problem that has no figures yet, until ``ends_at`` (of ``time.monotonic``).
    Problems whose solutions are all right, or all wrong, are left out: no vote can win or lose them."""
    for problem in problems:
        if time.monotonic() > ends_at:
            return
        solutions = pool.rows[problem.id, n]["solutions"] if (problem.id, n) in pool else []
        if (problem.id, n) not in rows and len({each["correct"] for each in solutions}) == 2:
            rows.append(reader.row(problem, solutions))
