"""Trains the embedded models from random weights: ``python -m scripts.embedded.train``.

Deterministic on one machine with fixed versions; elsewhere different rounding gives other weights that learn the same
task. It takes about an hour and a half on one core. Each stage reads what the stage before it has left in the work
folder, so a stage can be repeated alone.
"""

import json
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers import PreTrainedTokenizerFast

from deployments.embedded.problems import Split, draw_problems
from deployments.engines.settings import EMBEDDED_MODELS
from scripts.embedded.conversations import Conversation
from scripts.embedded.language_model import (
    GENERATOR_RUN,
    TRUNK_RUN,
    greedy_accuracy,
    load_checkpoint,
    train_generator,
    train_trunk,
    under_system_turns,
)
from scripts.embedded.process_reward_model import (
    TRAINING_SEED,
    TRAINING_SOLUTIONS,
    label_samples,
    load_prm,
    measure_auc,
    save_prm,
    train_process_reward_model,
)
from scripts.embedded.tokenizer import build_tokenizer

HELD_OUT_SEED = 3
HELD_OUT_SOLUTIONS = 2_000
HELD_OUT_PROBLEMS = 1_000


class Stage(StrEnum):
    """Parts of the recipe, in order."""

    TRUNK = "trunk"
    GENERATOR = "generator"
    PRM = "prm"
    MEASURE = "measure"


def main(
    work: Annotated[Path, typer.Option(help="Folder of the checkpoints.")] = Path("training"),
    stage: Annotated[list[Stage] | None, typer.Option(help="Only these stages; all by default.")] = None,
    split: Annotated[Split, typer.Option(help="Measured on: validation to choose, test to report.")] = Split.TEST,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads; the weights depend on their number.")] = 1,
) -> None:
    torch.set_num_threads(threads)
    work.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    for part in stage or list(Stage):
        match part:
            case Stage.TRUNK:
                train_trunk(tokenizer, work)
            case Stage.GENERATOR:
                train_generator(tokenizer, work)
                _publish_generator(tokenizer, work)
            case Stage.PRM:
                _train_and_publish_prm(tokenizer, work)
            case Stage.MEASURE:
                _measure(tokenizer, work, split)


def _publish_generator(tokenizer: PreTrainedTokenizerFast, work: Path) -> None:
    model = load_checkpoint(tokenizer, work, GENERATOR_RUN)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(EMBEDDED_MODELS / "generator")
    tokenizer.save_pretrained(EMBEDDED_MODELS / "generator")


def _train_and_publish_prm(tokenizer: PreTrainedTokenizerFast, work: Path) -> None:
    generator = load_checkpoint(tokenizer, work, GENERATOR_RUN)
    samples = label_samples(generator, tokenizer, Split.TRAIN, TRAINING_SEED, TRAINING_SOLUTIONS)
    model = train_process_reward_model(load_checkpoint(tokenizer, work, TRUNK_RUN), tokenizer, samples)
    save_prm(model, tokenizer, EMBEDDED_MODELS / "prm")
    tokenizer.save_pretrained(EMBEDDED_MODELS / "prm")


def _measure(tokenizer: PreTrainedTokenizerFast, work: Path, split: Split) -> None:
    generator = load_checkpoint(tokenizer, work, GENERATOR_RUN)
    problems = list(islice(draw_problems(split, HELD_OUT_SEED), HELD_OUT_PROBLEMS))
    _record(
        "generator",
        {
            "split": split,
            "greedy_accuracy": greedy_accuracy(generator, tokenizer, list(map(Conversation, problems))),
            "greedy_accuracy_under_system_turns": greedy_accuracy(generator, tokenizer, under_system_turns(problems)),
        },
    )
    held_out = label_samples(generator, tokenizer, split, HELD_OUT_SEED, HELD_OUT_SOLUTIONS)
    steps = [right for solution in held_out for right in solution.right]
    auc = measure_auc(load_prm(tokenizer, EMBEDDED_MODELS / "prm"), tokenizer, held_out)
    _record(
        "prm",
        {
            "split": split,
            "steps": len(steps),
            "share_right": round(sum(steps) / len(steps), 3),
            "step_auc": round(auc.every_step, 4),
            "step_auc_up_to_first_mistake": round(auc.up_to_first_mistake, 4),
        },
    )


def _record(model: str, figures: dict[str, object]) -> None:
    """Writes measured figures beside the weights."""
    (EMBEDDED_MODELS / model / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    typer.echo(f"{model}: {json.dumps(figures)}")


if __name__ == "__main__":
    typer.run(main)
