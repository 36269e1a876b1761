"""First half of the recipe: a Qwen2 language model of arithmetic chains, from which both embedded models are made.

The model is trained on correct solutions until it is rarely wrong. This is the trunk of the process reward model,
which must know more than the generator does. The generator is the same model after further training on solutions with
slips (`scripts.embedded.slips`).
"""

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from deployments.embedded.problems import LEVELS, Problem, Split, draw_problems
from scripts.embedded.conversations import CHARS, Conversation, conversations, system_text
from scripts.embedded.slips import solution_with_slips
from scripts.embedded.tokenizer import CONTEXT_TOKENS, STEP_DELIMITER, TURN_END

BATCH = 64
SEED = 1
LOG_EVERY = 100
VALIDATION_PROBLEMS = 400
MAX_SOLUTION_TOKENS = 110


class TrainingRun(NamedTuple):
    """One training run, with an optimizer of its own whose learning rate falls to zero."""

    name: str
    steps: int
    learning_rate: float
    warm_up_steps: int
    seed: int
    solve: Callable[[Problem, random.Random], tuple[str, ...]]
    """Returns the steps to learn for a problem."""


TRUNK_RUN = TrainingRun("trunk", 3_500, 2e-3, 200, SEED, lambda problem, _: problem.solution)
GENERATOR_RUN = TrainingRun("generator", 400, 1e-3, 50, SEED + 1, solution_with_slips)


class Batch(NamedTuple):
    tokens: Tensor
    """(batch, length) token ids, padded on the right."""
    loss_mask: Tensor
    """(batch, length) true for tokens that the model has to write."""


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


def encode_prompt(tokenizer: PreTrainedTokenizerFast, conversation: Conversation) -> list[int]:
    text = tokenizer.apply_chat_template(conversation.turns, tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(text, add_special_tokens=False))


def train_trunk(tokenizer: PreTrainedTokenizerFast, work: Path) -> None:
    """Trains the language model from random weights; writes ``trunk.pt``."""
    torch.manual_seed(SEED)
    _train(Qwen2ForCausalLM(qwen2_config(tokenizer)), tokenizer, work, TRUNK_RUN)


def train_generator(tokenizer: PreTrainedTokenizerFast, work: Path) -> None:
    """Trains the trunk further on solutions with slips; writes ``generator.pt``."""
    _train(load_checkpoint(tokenizer, work, TRUNK_RUN), tokenizer, work, GENERATOR_RUN)


def _train(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, work: Path, run: TrainingRun) -> None:
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=run.learning_rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / run.warm_up_steps, 1.0) * (1.0 - step / run.steps)
    )
    started = time.monotonic()
    running_loss = 0.0
    log = work / f"{run.name}.jsonl"
    model.train()
    for step, batch in zip(range(1, run.steps + 1), _batches(tokenizer, run), strict=False):
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
        if step % LOG_EVERY == 0:
            _log(log, step=step, loss=round(running_loss / LOG_EVERY, 5), seconds=round(time.monotonic() - started))
            running_loss = 0.0
    validation = list(islice(draw_problems(Split.VALIDATION, SEED), VALIDATION_PROBLEMS))
    _log(log, greedy_accuracy_validation=greedy_accuracy(model.eval(), tokenizer, list(map(Conversation, validation))))
    _log(log, under_system_turns=greedy_accuracy(model, tokenizer, under_system_turns(validation)))
    torch.save(model.state_dict(), work / f"{run.name}.pt")


def _log(log: Path, **row: object) -> None:
    with log.open("a") as lines:
        lines.write(json.dumps(row) + "\n")


def load_checkpoint(tokenizer: PreTrainedTokenizerFast, work: Path, run: TrainingRun) -> Qwen2ForCausalLM:
    """The model that a training run has written to the work folder."""
    model = Qwen2ForCausalLM(qwen2_config(tokenizer))
    model.load_state_dict(torch.load(work / f"{run.name}.pt", weights_only=True))
    return model.eval()


def under_system_turns(problems: Sequence[Problem]) -> list[Conversation]:
    """``problems`` after short system turns that are not in the training data."""
    rng = random.Random("validation")
    turns = [{"role": "system", "content": system_text(rng, rng.randint(*CHARS["short"]))} for _ in problems]
    return [Conversation(problem, (turn,)) for problem, turn in zip(problems, turns, strict=True)]


def greedy_accuracy(
    model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, questions: Sequence[Conversation]
) -> dict[str, float]:
    """Share of problems with a correct greedy answer, over all problems and by level."""
    solutions = write_solutions(model, tokenizer, questions, temperature=0.0)
    right: dict[str, list[bool]] = {}
    for (problem, _), steps in zip(questions, solutions, strict=True):
        for key in ("all", str(problem.level)):
            right.setdefault(key, []).append(steps[-1:] == [problem.solution[-1]])
    return {key: round(sum(hits) / len(hits), 3) for key, hits in sorted(right.items())}


@torch.inference_mode()
def write_solutions(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    questions: Sequence[Conversation],
    temperature: float,
) -> list[list[str]]:
    """One sampled solution for each problem (greedy at temperature 0), as a list of steps."""
    tokenizer.padding_side = "left"
    prompts = tokenizer.pad({"input_ids": [encode_prompt(tokenizer, each) for each in questions]}, return_tensors="pt")
    written = model.generate(
        **prompts,
        max_new_tokens=MAX_SOLUTION_TOKENS,
        do_sample=temperature > 0,
        temperature=temperature or None,
        top_k=0 if temperature else None,
        top_p=1.0 if temperature else None,
    )
    texts = tokenizer.batch_decode(written[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)
    return [text.split(STEP_DELIMITER) for text in texts]


def _batches(tokenizer: PreTrainedTokenizerFast, run: TrainingRun) -> Iterator[Batch]:
    """Each batch has problems of one level, so its rows are about equally long and need little padding."""
    streams = [draw_problems(Split.TRAIN, run.seed, level) for level in LEVELS]
    rng = random.Random(run.seed)
    while True:
        for stream in streams:
            questions = conversations(list(islice(stream, BATCH)), rng, STEP_DELIMITER)
            yield _encode_batch(tokenizer, [(each, run.solve(each.problem, rng)) for each in questions])


def _encode_batch(tokenizer: PreTrainedTokenizerFast, solved: Sequence[tuple[Conversation, tuple[str, ...]]]) -> Batch:
    rows, masks = [], []
    for conversation, steps in solved:
        prompt = encode_prompt(tokenizer, conversation)
        solution = tokenizer.encode(STEP_DELIMITER.join(steps) + TURN_END, add_special_tokens=False)
        rows.append(torch.tensor(prompt + solution))
        masks.append(torch.tensor([False] * len(prompt) + [True] * len(solution)))
    pad = torch.nn.utils.rnn.pad_sequence
    return Batch(
        pad(rows, batch_first=True, padding_value=tokenizer.pad_token_id),
        pad(masks, batch_first=True, padding_value=False),
    )
