"""The first half of the recipe: one Qwen2 language model of arithmetic chains, saved as it learns.

One run gives both embedded models their start. An early checkpoint, which still errs often, becomes
the generator; the last one, which errs seldom, is what the process reward model is fine-tuned from: it
must know more than the generator does. The run has two phases: a constant learning rate, then one that
falls to zero, with a fresh optimizer.
"""

import json
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from deployments.models.problems import LEVELS, Problem, Split, draw_problems
from deployments.models.tokenizer import CONTEXT_TOKENS, STEP_DELIMITER, TURN_END

DECAY_FROM_STEP = 2_500
DECAY_TO_STEP = 4_000
"""Where the learning rate would be zero."""
PRM_TRUNK_STEP = 3_500
"""The last step: right in nine of ten problems, and the process reward model starts from here."""
BATCH = 64
LEARNING_RATE = 2e-3
WARM_UP_STEPS = 200
CHECKPOINT_EVERY = 500
SEED = 1
LONGEST_SOLUTION_TOKENS = 110


class Batch(NamedTuple):
    tokens: Tensor
    """(batch, length) token ids, padded on the right."""
    loss_mask: Tensor
    """(batch, length) true where the token is one the model has to write."""


def qwen2_config(tokenizer: PreTrainedTokenizerFast) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=384,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=512,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(TURN_END),
        pad_token_id=tokenizer.pad_token_id,
    )


def encode_prompt(tokenizer: PreTrainedTokenizerFast, problem: Problem) -> list[int]:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": problem.text}], tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer.encode(text, add_special_tokens=False))


def train_language_model(tokenizer: PreTrainedTokenizerFast, work: Path) -> None:
    """Trains for PRM_TRUNK_STEP steps; leaves ``step-N.pt`` every CHECKPOINT_EVERY steps and ``curve.jsonl``."""
    torch.manual_seed(SEED)
    model = Qwen2ForCausalLM(qwen2_config(tokenizer))
    _train_phase(model, tokenizer, work, range(1, DECAY_FROM_STEP + 1), decay=False)
    _train_phase(model, tokenizer, work, range(DECAY_FROM_STEP + 1, PRM_TRUNK_STEP + 1), decay=True)


def _train_phase(
    model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, work: Path, steps: range, decay: bool
) -> None:
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: (
            min((step + 1) / WARM_UP_STEPS, 1.0) * (1.0 - step / (DECAY_TO_STEP - DECAY_FROM_STEP) if decay else 1.0)
        ),
    )
    validation = list(islice(draw_problems(Split.VALIDATION, seed=SEED), 200))
    started = time.monotonic()
    running_loss = 0.0
    for step, batch in zip(steps, _batches(tokenizer, seed=SEED + steps.start - 1), strict=False):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = model.model(input_ids=batch.tokens[:, :-1], use_cache=False).last_hidden_state
            wanted = batch.loss_mask[:, 1:]
            logits = model.lm_head(hidden[wanted])
        loss = torch.nn.functional.cross_entropy(logits.float(), batch.tokens[:, 1:][wanted])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        running_loss += loss.item()
        if step % CHECKPOINT_EVERY == 0:
            torch.save(model.state_dict(), work / f"step-{step}.pt")
            row = {
                "step": step,
                "loss": round(running_loss / CHECKPOINT_EVERY, 5),
                "greedy_accuracy": greedy_accuracy(model, tokenizer, validation),
                "seconds": round(time.monotonic() - started),
            }
            running_loss = 0.0
            with (work / "curve.jsonl").open("a") as curve:
                curve.write(json.dumps(row) + "\n")


def load_checkpoint(tokenizer: PreTrainedTokenizerFast, work: Path, step: int) -> Qwen2ForCausalLM:
    model = Qwen2ForCausalLM(qwen2_config(tokenizer))
    model.load_state_dict(torch.load(work / f"step-{step}.pt", weights_only=True))
    return model


def greedy_accuracy(
    model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, problems: Sequence[Problem]
) -> dict[str, float]:
    """The share of problems whose greedy solution is right in every step, over all and by level."""
    solutions = write_solutions(model, tokenizer, problems, temperature=0.0)
    right: dict[str, list[bool]] = {}
    for problem, steps in zip(problems, solutions, strict=True):
        for key in ("all", str(problem.level)):
            right.setdefault(key, []).append(steps[-1:] == [problem.solution[-1]])
    return {key: round(sum(hits) / len(hits), 3) for key, hits in sorted(right.items())}


@torch.inference_mode()
def write_solutions(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[Problem],
    temperature: float,
) -> list[list[str]]:
    """One sampled solution (greedy at temperature 0) for each problem, as its list of steps."""
    tokenizer.padding_side = "left"
    prompts = tokenizer.pad({"input_ids": [encode_prompt(tokenizer, p) for p in problems]}, return_tensors="pt")
    written = model.generate(
        **prompts,
        max_new_tokens=LONGEST_SOLUTION_TOKENS,
        do_sample=temperature > 0,
        temperature=temperature or None,
        top_k=0 if temperature else None,
        top_p=1.0 if temperature else None,
    )
    texts = tokenizer.batch_decode(written[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)
    return [text.split(STEP_DELIMITER) for text in texts]


def _batches(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[Batch]:
    """Each batch is of one level, so its rows are about equally long and little is padded."""
    streams = [draw_problems(Split.TRAIN, seed, level) for level in LEVELS]
    while True:
        for stream in streams:
            yield encode_batch(tokenizer, list(islice(stream, BATCH)))


def encode_batch(tokenizer: PreTrainedTokenizerFast, problems: Sequence[Problem]) -> Batch:
    rows, masks = [], []
    for problem in problems:
        prompt = encode_prompt(tokenizer, problem)
        solution = tokenizer.encode(STEP_DELIMITER.join(problem.solution) + TURN_END, add_special_tokens=False)
        rows.append(torch.tensor(prompt + solution))
        masks.append(torch.tensor([False] * len(prompt) + [True] * len(solution)))
    pad = torch.nn.utils.rnn.pad_sequence
    return Batch(
        pad(rows, batch_first=True, padding_value=tokenizer.pad_token_id),
        pad(masks, batch_first=True, padding_value=False),
    )
