"""Compares reward models that read the generator at different depths, on the problems that training holds out.

One pass of the frozen backbone gives the hidden states behind every compared layer. A head is then fitted on each as
`banyan train-prm --depth` does, with the same split, batches and seeds.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cluster.training.backbone import Backbone
from cluster.training.card import measure
from cluster.training.features import EncodedSolution, Features, Shard, batches, encode_solutions
from cluster.training.fit import Fit, Scorer, deterministic
from cluster.training.head import RewardHead
from cluster.training.labels import Split
from cluster.training.run import score
from cluster.training.settings import TrainingSettings

SHOWN = ("step_auc", "calibration_error", "first_mistake_f1", "best_of_n", "weighted", "majority", "any_right")
"""Metrics that are compared."""


class Kept(Features):
    """Shards in memory in place of the disk."""

    def __init__(self, rows: list[list[EncodedSolution]]) -> None:
        self.rows = rows
        self.shards: list[Shard] = []

    def load(self, index: int) -> Shard:
        return self.shards[index]


async def compared(split: Split, backbone: str, depths: Sequence[int], threads: int) -> list[dict[str, Any]]:
    """Metrics on the held-out problems for a head behind each of these numbers of layers."""
    settings = TrainingSettings(backbone=backbone, threads=threads)
    deterministic(settings)
    model = Backbone(settings)
    parts = {name: _states(model, part, depths, settings) for name, part in split._asdict().items()}
    found: list[dict[str, Any]] = []
    for depth in depths:
        torch.manual_seed(settings.seed)
        scorer = Scorer(model, RewardHead(model.form, model.width))
        with tempfile.TemporaryDirectory() as directory:
            train, stop = parts["train"][depth], parts["stop"][depth]
            fitted = Fit(scorer, train, stop, settings, Path(directory) / "checkpoint").run(lambda done, note: None)
        metrics = (await measure(split.card, score(scorer, parts["card"][depth]))).metrics
        shown = metrics.model_dump(include=set(SHOWN))
        found.append({"depth": depth, "epochs": fitted.best_epoch, **{name: shown[name] for name in SHOWN}})
    return found


@torch.no_grad()
def _states(model: Backbone, part: Any, depths: Sequence[int], settings: TrainingSettings) -> Mapping[int, Kept]:
    """The shards of a part of the problems, by depth."""
    rows = batches(encode_solutions(model, part, settings.max_tokens), settings.seed)
    kept = {depth: Kept(rows) for depth in depths}
    for batch in rows:
        token_ids = _padded([torch.tensor(row.token_ids) for row in batch])
        tags = [row.tags for row in batch]
        labels = _padded([torch.tensor(row.labels)[row.tags] for row in batch])
        weights = _padded([torch.full((len(row.tags),), float(row.count)) for row in batch])
        marked = _padded([torch.ones(len(row.tags), dtype=torch.bool) for row in batch])
        hidden = model.embed(token_ids)
        positions = model.rotary(hidden, torch.arange(hidden.shape[1])[None])
        for depth, layer in enumerate(model.frozen, 1):
            hidden = layer(hidden, position_embeddings=positions, attention_mask=None)
            if depth in kept:
                at_tags = [model.norm(row[index]) for row, index in zip(hidden, tags, strict=True)]
                kept[depth].shards.append(Shard(_padded(at_tags), marked, labels, weights))
    return kept


def _padded(rows: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
