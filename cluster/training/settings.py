"""Settings of one training. The same settings and the same input give the same weights on one machine."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MAX_LAYERS = 128
MAX_TOKENS = 1 << 17
MAX_EPOCHS = 1_000


class TrainingSettings(BaseModel):
    """What the weights depend on, beside the input."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    backbone: str
    """A model directory, a hub id, or ``embedded:generator``."""
    layers: Annotated[int, Field(ge=0, le=MAX_LAYERS)] = 0
    """Top layers that are trained together with the head; 0: the backbone is frozen."""
    depth: Annotated[int, Field(ge=1, le=MAX_LAYERS)] | None = None
    """Layers of the reward model. Fewer than the backbone has: it is cut. More: new layers are put on top, which at
    first change nothing. None: as many as the backbone has."""
    max_tokens: Annotated[int, Field(ge=64, le=MAX_TOKENS)] = 4096
    """Longer solutions are cut after the last step that fits."""
    held_out: Annotated[float, Field(gt=0, le=0.5)] = 0.2
    """Share of the problems for the card. Half as many more end the training early and calibrate the head."""
    epochs: Annotated[int, Field(ge=1, le=MAX_EPOCHS)] = 30
    """Most passes over the training problems."""
    patience: Annotated[int, Field(ge=1, le=MAX_EPOCHS)] = 3
    """Passes without a lower loss on held-out problems after which the training ends."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    """Peak learning rate of the trained layers; None: `LAYER_RATE` divided by the model's width."""
    seed: Annotated[int, Field(ge=0, lt=2**53)] = 0
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """CPU threads; rounding depends on their number."""
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d{1,3})?)$")] = "cpu"


class TrainingPaths:
    """Files of a training in its output directory."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.work = output / "training"
        """Everything that a resumed training reads; can be deleted after it."""
        self.identity = self.work / "identity.json"
        self.solved = self.work / "solved.jsonl"
        """Results of the problems, if the input is problems."""
        self.checkpoint = self.work / "checkpoint.pt"
        self.metrics = output / "metrics.json"
        """Written last: a directory that has it is complete."""
        self.card = output / "README.md"

    def shards(self, part: str) -> Path:
        return self.work / "features" / part
