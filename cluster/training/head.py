"""The head: numbers for two classes, wrong and right, out of a hidden state."""

import math

import torch
from torch import Tensor, nn

from cluster.training.backbone import Form

CLASSES = 2
NEWTON_STEPS = 50
MIN_SCALE = 0.05


class RewardHead(nn.Module):
    """Two layers for ``step_head``, as `Qwen2ForProcessRewardModel` has them, or one for ``token_class``.

    While it is trained its input is standardized by ``mean`` and ``std``; `exported` folds them into the first layer.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, form: Form, width: int) -> None:
        super().__init__()
        self.form = form
        inner = [nn.Linear(width, width), nn.ReLU()] if form == "step_head" else []
        self.score = nn.Sequential(*inner, nn.Linear(width, CLASSES))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("std", torch.ones(width))

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits (…, 2) of hidden states (…, width)."""
        logits: Tensor = self.score((hidden - self.mean) / self.std)
        return logits

    def standardize(self, hidden: Tensor) -> None:
        """Takes mean and standard deviation from hidden states (states, width)."""
        self.mean.copy_(hidden.mean(dim=0))
        self.std.copy_(hidden.std(dim=0).clamp_min(1e-4))

    @torch.no_grad()
    def calibrate(self, scale: float, offset: float) -> None:
        """Multiplies the difference of the two logits by ``scale``, then adds ``offset``."""
        last = self.score[-1]
        assert isinstance(last, nn.Linear)
        last.weight.mul_(scale)
        last.bias.mul_(scale)
        last.bias[1] += offset

    @torch.no_grad()
    def exported(self) -> dict[str, Tensor]:
        """Weights under the names of the checkpoint, in single precision."""
        first = self.score[0]
        assert isinstance(first, nn.Linear)
        weights = {f"score.{name}": part.clone() for name, part in self.score.state_dict().items()}
        weight = first.weight.double() / self.std.double()
        weights["score.0.weight"] = weight.float()
        weights["score.0.bias"] = (first.bias.double() - weight @ self.mean.double()).float()
        if self.form == "token_class":
            weights = {name.replace("score.0.", "score."): part for name, part in weights.items()}
        return {name: part.to("cpu").contiguous() for name, part in weights.items()}


def platt(differences: Tensor, shares: Tensor, weights: Tensor) -> tuple[float, float]:
    """Scale and offset with which the sigmoid of logit differences predicts ``shares`` best (cross entropy with these
    weights), by Newton's method. Identity where the best scale is not positive: such a model has learned nothing.

    Source: Platt 1999, with the shares in place of the two classes.
    """
    x, y, w = differences.double(), shares.double(), weights.double() / weights.double().sum()
    inputs = torch.stack([x, torch.ones_like(x)], dim=1)
    found = torch.tensor([1.0, 0.0], dtype=torch.double)
    ridge = 1e-6 * torch.eye(2, dtype=torch.double)
    for _ in range(NEWTON_STEPS):
        p = torch.sigmoid(inputs @ found)
        gradient = inputs.T @ (w * (p - y))
        hessian = (inputs * (w * p * (1 - p))[:, None]).T @ inputs + ridge
        step = torch.linalg.solve(hessian, gradient)
        found = found - step * min(1.0, 1.0 / float(step.norm().clamp_min(1e-12)))
        if float(step.norm()) < 1e-9:
            break
    scale, offset = found.tolist()
    return (scale, offset) if math.isfinite(scale) and scale > MIN_SCALE else (1.0, 0.0)
