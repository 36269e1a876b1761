"""Makes the embedded models from nothing: ``python -m deployments.models.train``.

Deterministic on one machine with one set of versions; elsewhere rounding gives other weights that
learn the same task. Takes about two hours on two cores. Each stage finds what the one before left in
the work folder, so a stage can be repeated alone.
"""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast

from deployments.models.language_model import (
    PRM_TRUNK_STEP,
    greedy_accuracy,
    load_checkpoint,
    train_language_model,
)
from deployments.models.problems import Split, draw_problems
from deployments.models.process_reward_model import (
    HELD_OUT_SEED,
    HELD_OUT_SOLUTIONS,
    TRAINING_SEED,
    TRAINING_SOLUTIONS,
    judge_samples,
    measure_auc,
    prm_config,
    train_process_reward_model,
)
from deployments.models.tokenizer import build_tokenizer

GENERATOR_STEP = 2_000
"""Early enough that search has mistakes to mend: taken over step 1,500 by greedy accuracy on 1,000 test problems."""

HERE = Path(__file__).parent


class Stage(StrEnum):
    """The parts of the recipe, in order."""

    LANGUAGE_MODEL = "language-model"
    GENERATOR = "generator"
    PRM = "prm"


def main(
    work: Annotated[Path, typer.Option(help="Where checkpoints are kept.")] = Path("training"),
    stage: Annotated[list[Stage] | None, typer.Option(help="Only these; all by default.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads; the weights depend on it.")] = 2,
) -> None:
    torch.set_num_threads(threads)
    work.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    for part in stage or list(Stage):
        match part:
            case Stage.LANGUAGE_MODEL:
                train_language_model(tokenizer, work)
            case Stage.GENERATOR:
                _publish_generator(tokenizer, work)
            case Stage.PRM:
                _publish_prm(tokenizer, work)


def _publish_generator(tokenizer: PreTrainedTokenizerFast, work: Path) -> None:
    model = load_checkpoint(tokenizer, work, GENERATOR_STEP).eval()
    problems = draw_problems(Split.TEST, HELD_OUT_SEED)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(HERE / "generator")
    tokenizer.save_pretrained(HERE / "generator")
    accuracy = greedy_accuracy(model, tokenizer, [next(problems) for _ in range(1_000)])
    _record("generator", {"step": GENERATOR_STEP, "greedy_accuracy_test": accuracy})


def _publish_prm(tokenizer: PreTrainedTokenizerFast, work: Path) -> None:
    generator = load_checkpoint(tokenizer, work, GENERATOR_STEP).eval()
    samples = judge_samples(generator, tokenizer, Split.TRAIN, TRAINING_SEED, TRAINING_SOLUTIONS)
    trunk = load_checkpoint(tokenizer, work, PRM_TRUNK_STEP)
    model = train_process_reward_model(trunk, tokenizer, samples)
    folder = HERE / "prm"
    prm_config(tokenizer).save_pretrained(folder)
    save_file(
        {name: tensor.contiguous() for name, tensor in model.state_dict().items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    tokenizer.save_pretrained(folder)
    held_out = judge_samples(generator, tokenizer, Split.TEST, HELD_OUT_SEED, HELD_OUT_SOLUTIONS)
    steps = [right for solution in held_out for right in solution.right]
    auc = measure_auc(model, tokenizer, held_out)
    _record(
        "prm",
        {
            "trunk_step": PRM_TRUNK_STEP,
            "training_steps_judged": sum(len(solution.steps) for solution in samples),
            "held_out_steps": len(steps),
            "held_out_share_right": round(sum(steps) / len(steps), 3),
            "step_auc": round(auc.every_step, 4),
            "step_auc_up_to_first_mistake": round(auc.up_to_first_mistake, 4),
        },
    )


def _record(model: str, figures: dict[str, object]) -> None:
    """Keeps what was measured when the weights were made, beside them."""
    (HERE / model / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    typer.echo(f"{model}: {json.dumps(figures)}")


if __name__ == "__main__":
    typer.run(main)
