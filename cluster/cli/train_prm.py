"""``banyan train-prm``: a reward model from solved problems, or from problems that it solves first."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.text import Text

from cluster.cli.batch import BatchOptions, run_batch
from cluster.cli.progress import progress_bar
from cluster.training.backbone import backbone_config
from cluster.training.errors import TrainingError
from cluster.training.run import OnProgress, claimed, identity_of, train
from cluster.training.settings import TrainingPaths, TrainingSettings
from cluster.training.solutions import InputForm, form_of, read_solved


@dataclass(frozen=True)
class TrainingOptions:
    """Options of the command."""

    given: Path
    output: Path
    settings: TrainingSettings
    solving: BatchOptions | None = None
    """How problems are solved, if the input is problems; the output file is set here."""
    url: str | None = None
    config: Path | None = None


def run_training(options: TrainingOptions, console: Console) -> None:
    """Trains a reward model in ``options.output``, resuming what is there, and prints what it is worth.

    Raises:
        TrainingError, ProblemFileError: the input or a setting cannot be used.
    """
    paths = TrainingPaths(options.output)
    form = form_of(options.given)
    backbone_config(options.settings.backbone)  # refused before anything is solved
    identity = identity_of(options.given, options.settings)
    if form is InputForm.PROBLEMS and options.solving is not None:
        identity |= {"solving": options.solving.settings.search, "solving_seed": options.solving.settings.seed}
    with claimed(paths, identity):
        if paths.metrics.exists():
            console.print(Text(f"{options.output} is complete already; its card is {paths.card}"), soft_wrap=True)
            return
        solved = options.given
        if form is InputForm.PROBLEMS:
            if options.solving is None:
                raise TrainingError(f"{options.given} has problems without solutions")
            solved = paths.solved
            run_batch(options.solving, options.url, options.config, console)
        problems = asyncio.run(read_solved(solved))
        solutions = sum(solution.count for problem in problems for solution in problem.solutions)
        console.print(Text(f"{len(problems):,} problems, {solutions:,} solutions"), style="dim")
        with progress_bar(console) as bar:
            measured = asyncio.run(train(problems, options.settings, paths, _shown(bar)))
        helps = measured.card is not None and measured.card.helps
        console.print(Text(measured.verdict), style="green" if helps else "yellow", soft_wrap=True)
        console.print(Text(f"the model, its card and metrics.json are in {options.output}"), soft_wrap=True)


def _shown(bar: Progress) -> OnProgress:
    """Shows each stage as a bar of its own."""
    tasks: dict[str, TaskID] = {}

    def show(stage: str, done: int, total: int, note: str) -> None:
        if stage not in tasks:
            tasks[stage] = bar.add_task(stage, total=total, note=note)
        bar.update(tasks[stage], completed=done, note=note)

    return show
