"""Trains the head and the top layers on shards, ends early on held-out loss, and goes on from its checkpoint."""

import copy
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from cluster.training.backbone import Backbone
from cluster.training.features import Features, Shard
from cluster.training.head import RewardHead, platt
from cluster.training.settings import TrainingSettings

HEAD_RATE = 0.3
"""Times the inverse width, the peak learning rate of the head: 3.3e-4 at a width of 896. There, with 900 solutions,
1e-3 is past the lowest held-out loss before the third epoch ends (0.569 and 0.560 for two seeds; 0.536 and 0.532 at
3e-4)."""
LAYER_RATE = 0.1
"""Times the inverse width, the peak learning rate of the trained layers: 8e-4 at a width of 128, 1.1e-4 at 896."""
WEIGHT_DECAY = 0.01
WARM_UP_BATCHES = 50
MAX_NORM = 1.0
STATISTICS_SHARDS = 16
"""Shards from which the head's input is standardized."""
CHECKPOINT_S = 60.0
"""Seconds between checkpoints, beside those after every epoch."""


class OnBatch(Protocol):
    """Told after every batch: batches done of the current epoch, and a note."""

    def __call__(self, done: int, note: str) -> None: ...


class Fitted(NamedTuple):
    """How a training ended."""

    epochs: int
    best_epoch: int
    losses: list[float]
    """Loss on the held-out problems after each epoch."""
    scale: float
    offset: float
    """Of the calibration, which is folded into the head."""


class Scorer(nn.Module):
    """The trained layers and the head."""

    def __init__(self, backbone: Backbone, head: RewardHead) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, hidden: Tensor) -> Tensor:
        """The differences of the two logits, (rows, columns), for the hidden states of a shard."""
        logits = self.head(self.backbone.above(hidden))
        difference: Tensor = logits[..., 1] - logits[..., 0]
        return difference

    def state(self) -> dict[str, Tensor]:
        """The trained weights and what the head's input is standardized by."""
        kept = {name for name, part in self.named_parameters() if part.requires_grad} | {"head.mean", "head.std"}
        return {name: part for name, part in self.state_dict().items() if name in kept}

    @torch.no_grad()
    def at_tags(self, shards: Iterable[Shard]) -> tuple[Tensor, Tensor, Tensor]:
        """Differences, labels and weights of all steps, each (steps,)."""
        found = [
            (self(shard.hidden)[shard.tags].cpu(), shard.labels[shard.tags].cpu(), shard.weights[shard.tags].cpu())
            for shard in shards
        ]
        differences, labels, weights = (torch.cat(part) for part in zip(*found, strict=True))
        return differences, labels, weights


class Fit:
    """A training: its state is in the scorer, the optimizer and the fields of `_progress`."""

    def __init__(
        self, scorer: Scorer, train: Features, stop: Features, settings: TrainingSettings, checkpoint: Path
    ) -> None:
        self._scorer, self._train, self._stop = scorer, train, stop
        self._settings = settings
        self._checkpoint = checkpoint
        width = scorer.backbone.width
        rate = settings.learning_rate or LAYER_RATE / width
        layers = [part for part in scorer.backbone.parameters() if part.requires_grad]
        groups: list[dict[str, Any]] = [{"params": list(scorer.head.parameters()), "lr": HEAD_RATE / width}]
        if layers:
            groups.append({"params": layers, "lr": rate})
        self._optimizer = torch.optim.AdamW(groups, weight_decay=WEIGHT_DECAY)
        total = settings.epochs * len(train)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda batch: min((batch + 1) / WARM_UP_BATCHES, 1.0) * (1.0 - batch / total)
        )
        self._epoch = self._batch = 0
        self._losses: list[float] = []
        self._best: dict[str, Tensor] = {}
        self._saved_at = time.monotonic()

    def run(self, on_batch: OnBatch) -> Fitted:
        """Trains until the held-out loss has not fallen for `patience` epochs; leaves the best weights, calibrated, in
        the scorer. Begins where the checkpoint is."""
        settings = self._settings
        if self._checkpoint.exists():
            self._load()
        else:
            self._standardize()
        while self._epoch < settings.epochs and self._stale < settings.patience:
            self._run_epoch(on_batch)
            self._losses.append(self._held_out_loss())
            if self._stale == 0:
                self._best = copy.deepcopy(self._scorer.state())
            self._epoch, self._batch = self._epoch + 1, 0
            self._save()
        self._scorer.load_state_dict(self._best, strict=False)
        scale, offset = platt(*self._scorer.at_tags(self._stop))
        self._scorer.head.calibrate(scale, offset)
        return Fitted(self._epoch, self._best_epoch, self._losses, scale, offset)

    @property
    def _best_epoch(self) -> int:
        return min(range(len(self._losses)), key=self._losses.__getitem__) + 1 if self._losses else 0

    @property
    def _stale(self) -> int:
        """Epochs since the best one."""
        return len(self._losses) - self._best_epoch

    def _run_epoch(self, on_batch: OnBatch) -> None:
        generator = torch.Generator().manual_seed(self._settings.seed + self._epoch)
        order = torch.randperm(len(self._train), generator=generator).tolist()
        best = f"held-out loss {min(self._losses):.4f}" if self._losses else ""
        while self._batch < len(order):
            loss = self._loss(self._train.load(order[self._batch]))
            loss.backward()
            nn.utils.clip_grad_norm_(self._scorer.parameters(), MAX_NORM)
            self._optimizer.step()
            self._optimizer.zero_grad()
            self._schedule.step()
            self._batch += 1
            on_batch(self._batch, f"epoch {self._epoch + 1} {best}")
            if time.monotonic() - self._saved_at > CHECKPOINT_S:
                self._save()

    def _loss(self, shard: Shard) -> Tensor:
        """Cross entropy of the steps, and of all tokens where layers are trained."""
        each = binary_cross_entropy_with_logits(self._scorer(shard.hidden), shard.labels, reduction="none")
        masks = [shard.tags, ~shard.tags] if self._settings.layers else [shard.tags]
        weights = [shard.weights * mask for mask in masks]
        return torch.stack([(each * weight).sum() / weight.sum().clamp_min(1e-6) for weight in weights]).sum()

    def _held_out_loss(self) -> float:
        differences, labels, weights = self._scorer.at_tags(self._stop)
        each = binary_cross_entropy_with_logits(differences, labels, reduction="none")
        return float((each * weights).sum() / weights.sum())

    @torch.no_grad()
    def _standardize(self) -> None:
        shards = (self._train.load(index) for index in range(min(len(self._train), STATISTICS_SHARDS)))
        states = [self._scorer.backbone.above(shard.hidden)[shard.tags] for shard in shards]
        self._scorer.head.standardize(torch.cat(states))

    def _save(self) -> None:
        draft = self._checkpoint.with_suffix(".tmp")
        torch.save(
            {
                "scorer": self._scorer.state(),
                "optimizer": self._optimizer.state_dict(),
                "schedule": self._schedule.state_dict(),
                "epoch": self._epoch,
                "batch": self._batch,
                "losses": self._losses,
                "best": self._best,
            },
            draft,
        )
        draft.replace(self._checkpoint)
        self._saved_at = time.monotonic()

    def _load(self) -> None:
        state = torch.load(self._checkpoint, weights_only=True, map_location="cpu")
        self._scorer.load_state_dict(state["scorer"], strict=False)
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        self._epoch, self._batch = state["epoch"], state["batch"]
        self._losses, self._best = state["losses"], state["best"]


def deterministic(settings: TrainingSettings) -> None:
    """Makes torch's results depend on the settings alone."""
    torch.manual_seed(settings.seed)
    torch.set_num_threads(settings.threads)
    torch.use_deterministic_algorithms(True)
