"""Batches of solutions as the trained part reads them, kept on disk: the frozen layers run once, and nothing is held.

A shard is one batch. A shard that is there is not computed again, so a killed training goes on where it was.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from cluster.training.backbone import Backbone
from cluster.training.labels import prefix_shares
from cluster.training.solutions import SolvedProblem

BATCH = 32
"""Solutions in a shard."""
BUCKET = 16 * BATCH
"""Solutions among which those of similar length share a shard."""


@dataclass(frozen=True)
class EncodedSolution:
    """Token ids of a solution, with a label for each."""

    problem: int
    """Index of its problem among those of its part."""
    solution: int
    """Index among the problem's solutions."""
    token_ids: list[int]
    tags: list[int]
    """Positions at which the steps are scored."""
    labels: list[float]
    """Share of right answers among the problem's solutions that begin with the same tokens, up to each token."""
    begin: int
    """Position of the first token of the first step."""
    count: int


class Shard(NamedTuple):
    """Tensors of a batch: rows are solutions. Without trained layers the columns are steps, otherwise tokens."""

    hidden: Tensor
    """(rows, columns, width): the output of the frozen part."""
    tags: Tensor
    """(rows, columns): true where a step is scored."""
    labels: Tensor
    """(rows, columns), in [0, 1]."""
    weights: Tensor
    """(rows, columns): how often the solution was written; 0 for padding and the question."""


def encode_solutions(backbone: Backbone, problems: Sequence[SolvedProblem], max_tokens: int) -> list[EncodedSolution]:
    """Encodes all solutions as the served model will read them. Solutions over ``max_tokens`` are cut after the last
    step that fits, and left out if none does."""
    encoded: list[EncodedSolution] = []
    for index, (question, solutions) in enumerate(problems):
        paths = [backbone.reader.encode(question, solution.steps) for solution in solutions]
        shares = prefix_shares(
            [token_ids for token_ids, _ in paths],
            [solution.right for solution in solutions],
            [solution.count for solution in solutions],
        )
        begin = len(backbone.reader.encode(question, ())[0])
        for number, ((token_ids, tags), labels, solution) in enumerate(zip(paths, shares, solutions, strict=True)):
            fitting = [tag for tag in tags if tag < min(max_tokens, backbone.context)]
            if fitting:
                end = fitting[-1] + 1
                encoded.append(
                    EncodedSolution(index, number, token_ids[:end], fitting, labels[:end], begin, solution.count)
                )
    return encoded


def batches(encoded: Sequence[EncodedSolution], seed: int) -> list[list[EncodedSolution]]:
    """Batches of solutions of about the same length, otherwise in random order."""
    order = torch.randperm(len(encoded), generator=torch.Generator().manual_seed(seed)).tolist()
    found: list[list[EncodedSolution]] = []
    for start in range(0, len(order), BUCKET):
        bucket = sorted((encoded[index] for index in order[start : start + BUCKET]), key=lambda e: len(e.token_ids))
        found += [bucket[first : first + BATCH] for first in range(0, len(bucket), BATCH)]
    return found


class Features:
    """The shards of one part of the problems."""

    def __init__(self, directory: Path, rows: list[list[EncodedSolution]], backbone: Backbone) -> None:
        self.rows = rows
        """Solutions of each shard, in the order of its rows."""
        self._directory = directory
        self._backbone = backbone

    def __len__(self) -> int:
        return len(self.rows)

    def compute(self, on_shard: Callable[[], None]) -> None:
        """Writes the shards that are missing. Calls ``on_shard`` for each shard that is there."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for index, rows in enumerate(self.rows):
            path = self._path(index)
            if not path.exists():
                draft = path.with_suffix(".tmp")
                save_file(self._shard(rows)._asdict(), draft)
                draft.replace(path)
            on_shard()

    def load(self, index: int) -> Shard:
        """The shard, with its hidden states on the backbone's device."""
        shard = Shard(**load_file(self._path(index)))
        device = self._backbone.embed.weight.device
        return Shard(*(part.to(device) for part in shard))

    def __iter__(self) -> Iterator[Shard]:
        return (self.load(index) for index in range(len(self)))

    def _path(self, index: int) -> Path:
        return self._directory / f"{index:06d}.safetensors"

    def _shard(self, rows: list[EncodedSolution]) -> Shard:
        device = self._backbone.embed.weight.device
        hidden = self._backbone.below(_padded([torch.tensor(row.token_ids) for row in rows]).to(device)).cpu()
        tags = _padded([_marked(len(row.token_ids), row.tags) for row in rows])
        labels = _padded([torch.tensor(row.labels) for row in rows])
        weights = _padded(
            [torch.tensor([0.0] * row.begin + [float(row.count)] * (len(row.token_ids) - row.begin)) for row in rows]
        )
        if self._backbone.trained:
            return Shard(hidden.contiguous(), tags, labels, weights)
        # The head reads steps only: keep nothing else.
        parts = (hidden, tags, labels, weights)
        return Shard(*(_padded([row[mask] for row, mask in zip(part, tags, strict=True)]) for part in parts))


def _marked(length: int, positions: list[int]) -> Tensor:
    marked = torch.zeros(length, dtype=torch.bool)
    marked[positions] = True
    return marked


def _padded(rows: list[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)
