"""One training from solved problems to a directory that `prm.model` takes, resumed where it was killed."""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from cluster.training.backbone import Backbone
from cluster.training.card import Measured, ScoredSolution, card_text, measure
from cluster.training.errors import DirectoryTaken, TrainingError
from cluster.training.features import Features, batches, encode_solutions
from cluster.training.fit import Fit, Fitted, Scorer, deterministic
from cluster.training.head import RewardHead
from cluster.training.labels import Split, split_problems
from cluster.training.settings import TrainingPaths, TrainingSettings
from cluster.training.solutions import SolvedProblem
from deployments.engines.rewards.card_file import CARD_FILE

FORMAT = 1

OnProgress = Callable[[str, int, int, str], None]
"""Called with a stage, how much of it is done, how much there is, and a note."""


@contextmanager
def claimed(paths: TrainingPaths, identity: dict[str, Any]) -> Iterator[None]:
    """Holds the output directory for one training, which ``identity`` describes.

    Raises:
        DirectoryTaken: it holds files of something else, belongs to a training with another identity, or another
            process trains there now.
    """
    identity = json.loads(json.dumps(identity))
    if paths.output.exists() and not paths.identity.exists() and any(paths.output.iterdir()):
        raise DirectoryTaken(f"{paths.output} exists but is not the output of a training; choose another directory")
    paths.work.mkdir(parents=True, exist_ok=True)
    with (paths.work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryTaken(f"another process is training in {paths.output}") from None
        if not paths.identity.exists():
            _write(paths.identity, json.dumps(identity, indent=2))
        found = json.loads(paths.identity.read_text())
        other = [name for name in identity if found.get(name) != identity[name]]
        if other:
            was = "; ".join(f"{name} was {found.get(name)} and is {identity[name]}" for name in other)
            raise DirectoryTaken(f"{paths.output} belongs to another training: {was}. Choose another directory")
        yield


def identity_of(given: Path, settings: TrainingSettings) -> dict[str, Any]:
    """What a training depends on: a hash of its input, and its settings."""
    with given.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"format": FORMAT, "input": digest, **settings.model_dump(mode="json")}


async def train(
    problems: list[SolvedProblem], settings: TrainingSettings, paths: TrainingPaths, on_progress: OnProgress
) -> Measured:
    """Trains and writes the model, `metrics.json` and the cards. The caller has claimed the directory.

    Raises:
        TrainingError: the problems do not suffice, or the backbone cannot be used.
    """
    deterministic(settings)
    split = split_problems(problems, settings.held_out, settings.seed)
    backbone = Backbone(settings)
    scorer = Scorer(backbone, RewardHead(backbone.form, backbone.width).to(settings.device))
    features = _features(backbone, split, settings, paths, on_progress)
    fit = Fit(scorer, features["train"], features["stop"], settings, paths.checkpoint)
    batches_per_epoch = len(features["train"])
    fitted = fit.run(lambda done, note: on_progress("training", done, batches_per_epoch, note))
    measured = await measure(split.card, score(scorer, features["card"]))
    _write_model(scorer, paths)
    if measured.card is not None:
        _write(paths.output / CARD_FILE, measured.card.model_dump_json(indent=2))
    _write(paths.card, card_text(measured, settings, backbone.layout, fitted, str(paths.output.absolute())))
    _write(paths.metrics, json.dumps(_report(measured, settings, split, fitted), indent=2))
    return measured


@torch.no_grad()
def score(scorer: Scorer, features: Features) -> list[ScoredSolution]:
    """Rewards of all solutions of a part, in its order."""
    found: list[ScoredSolution] = []
    for shard, rows in zip(features, features.rows, strict=True):
        rewards = torch.sigmoid(scorer(shard.hidden)).cpu()
        for row, values, labels, tags in zip(rows, rewards, shard.labels.cpu(), shard.tags.cpu(), strict=True):
            found.append(ScoredSolution(row.problem, row.solution, values[tags].tolist(), labels[tags].tolist()))
    return sorted(found, key=lambda each: (each.problem, each.solution))


def _features(
    backbone: Backbone, split: Split, settings: TrainingSettings, paths: TrainingPaths, on_progress: OnProgress
) -> dict[str, Features]:
    """The shards of every part, computed as far as they are not there."""
    parts = {
        name: Features(
            paths.shards(name), batches(encode_solutions(backbone, part, settings.max_tokens), settings.seed), backbone
        )
        for name, part in split._asdict().items()
    }
    if empty := [name for name, part in parts.items() if not len(part)]:
        raise TrainingError(
            f"no solution of the problems of part {empty[0]!r} has a step within max_tokens ({settings.max_tokens})"
        )
    total, done = sum(map(len, parts.values())), 0

    def on_shard() -> None:
        nonlocal done
        done += 1
        on_progress("reading", done, total, "")

    for part in parts.values():
        part.compute(on_shard)
    return parts


def _write_model(scorer: Scorer, paths: TrainingPaths) -> None:
    backbone = scorer.backbone
    backbone.config.save_pretrained(paths.output)
    backbone.tokenizer.save_pretrained(paths.output)
    draft = paths.work / "model.tmp"
    save_file(backbone.weights() | scorer.head.exported(), draft, metadata={"format": "pt"})
    draft.chmod(0o644)  # safetensors makes it the owner's alone
    draft.replace(paths.output / "model.safetensors")


def _report(measured: Measured, settings: TrainingSettings, split: Split, fitted: Fitted) -> dict[str, Any]:
    return {
        "recommended": measured.card is not None and measured.card.helps,
        "held_out": measured.metrics.model_dump(mode="json"),
        "problems": {name: len(part) for name, part in split._asdict().items()},
        "training": fitted._asdict(),
        "settings": settings.model_dump(mode="json"),
    }


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    draft.write_text(text + "\n", encoding="utf-8")
    draft.replace(path)
