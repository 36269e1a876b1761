"""A Qwen2 trunk that reads token paths piece by piece, in batches, and keeps the KV of all that it has read."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Qwen2Model

Slots = NDArray[np.int64]
"""Cache slots with the keys and values of a path's tokens, in order: one slot per token."""

NOTHING: Slots = np.zeros(0, dtype=np.int64)
"""The empty path."""
_SPARE = 0
"""The slot of padding: padded tokens are written to it, and the mask hides it from reads."""
FIRST_SLOTS = 1 << 14
MAX_ROWS = 512
"""Most pieces of one forward pass."""
MAX_STRETCH = 2
"""Longest piece of a batch relative to its shortest; the others are padded to the longest."""
QUIET_ROUNDS = 16
"""Event loop rounds without a further request before a batch is read: by then all running tasks wait."""

Out = TypeVar("Out")


class Piece(NamedTuple):
    """Tokens to read after a path that has been read."""

    path: Slots
    token_ids: Sequence[int]


class Read(NamedTuple, Generic[Out]):
    """Result of reading a piece."""

    path: Slots
    """Slots of the whole path; those of the piece come last."""
    out: Out
    """Output of the head at the last token."""


class PagedTrunk:
    """Keys and values of every token that was read, by slot; and the forward pass."""

    def __init__(self, trunk: Qwen2Model) -> None:
        self._trunk = trunk
        config = trunk.config
        width = 2 * config.num_key_value_heads * config.hidden_size // config.num_attention_heads
        self._pages = [torch.zeros(FIRST_SLOTS, width) for _ in range(config.num_hidden_layers)]
        """One tensor per layer; each row is a slot: keys of all heads, then values."""
        self._free = list(range(FIRST_SLOTS - 1, _SPARE, -1))

    def __len__(self) -> int:
        """Number of tokens whose keys and values are kept."""
        return len(self._pages[0]) - 1 - len(self._free)

    @torch.inference_mode()
    def read(self, pieces: Sequence[Piece]) -> tuple[list[Slots], Tensor]:
        """Returns each path with its piece appended, and hidden states (pieces, width) at the last token of each."""
        lengths = torch.tensor([len(piece.path) for piece in pieces])
        longest = max(len(piece.token_ids) for piece in pieces)
        paths = [np.append(piece.path, self._take(len(piece.token_ids))) for piece in pieces]
        slots = _padded(paths)
        tokens = _padded([np.array(piece.token_ids) for piece in pieces])
        written = _padded([path[len(piece.path) :] for path, piece in zip(paths, pieces, strict=True)])
        positions = lengths[:, None] + torch.arange(longest)
        mask = torch.arange(slots.shape[1]) <= positions[:, :, None]  # a padded key comes after every real token
        hidden = self._trunk(
            input_ids=tokens,
            position_ids=positions,
            attention_mask={"full_attention": mask[:, None]},
            past_key_values=_Pages(self._pages, slots, written),
            use_cache=False,
        ).last_hidden_state
        last = torch.tensor([len(piece.token_ids) - 1 for piece in pieces])
        return paths, hidden[torch.arange(len(pieces)), last]

    def forget(self, slots: Sequence[int]) -> None:
        """Frees slots. No path with one of them may be continued."""
        self._free += slots

    def _take(self, count: int) -> list[int]:
        if len(self._free) < count:
            size = len(self._pages[0])
            self._pages[:] = [torch.cat((pages, torch.zeros_like(pages))) for pages in self._pages]
            self._free += range(2 * size - 1, size - 1, -1)
        taken = self._free[-count:]
        del self._free[-count:]
        return taken


class _Pages:
    """The cache that the model uses in one forward pass: the keys and values of these slots."""

    def __init__(self, pages: Sequence[Tensor], slots: Tensor, written: Tensor) -> None:
        self._pages = pages
        self._slots = slots
        self._written = written

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Stores (rows, heads, new tokens, size), and returns the same of the whole paths, new tokens included."""
        _, heads, _, size = keys.shape
        new = torch.stack((keys, values)).permute(1, 3, 0, 2, 4)
        pages = self._pages[layer]
        pages.index_copy_(0, self._written.flatten(), new.reshape(-1, pages.shape[1]))
        # Rows are copied whole: several times faster than indexing with the matrix.
        whole = pages.index_select(0, self._slots.flatten()).view(*self._slots.shape, 2, heads, size)
        return whole[:, :, 0].transpose(1, 2), whole[:, :, 1].transpose(1, 2)


class _Waiting(NamedTuple, Generic[Out]):
    piece: Piece
    slots: list[int]
    """The owner's list, to which the piece's slots are appended."""
    future: asyncio.Future[Read[Out]]


class PathReader(Generic[Out]):
    """Reads pieces for many tasks of one event loop: all that wait at the same time, in as few passes as possible.

    ``head`` turns hidden states (rows, width) into one output per row.
    """

    def __init__(self, trunk: PagedTrunk, head: Callable[[Tensor], Sequence[Out]]) -> None:
        self.trunk = trunk
        self._head = head
        self._waiting: list[_Waiting[Out]] = []
        self.pieces = 0
        """Pieces read so far."""
        self.passes = 0

    def read(self, piece: Piece, slots: list[int]) -> asyncio.Future[Read[Out]]:
        """Appends the piece's slots to ``slots``; their owner frees them with `PagedTrunk.forget`."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._when_quiet, 0, QUIET_ROUNDS)
        future: asyncio.Future[Read[Out]] = loop.create_future()
        self._waiting.append(_Waiting(piece, slots, future))
        return future

    def _when_quiet(self, last_count: int, rounds: int) -> None:
        if len(self._waiting) > last_count:
            rounds = QUIET_ROUNDS
        if rounds:
            asyncio.get_running_loop().call_soon(self._when_quiet, len(self._waiting), rounds - 1)
            return
        waiting, self._waiting = self._waiting, []
        for batch in _batches(waiting):
            try:
                self._read(batch)
            except Exception as error:  # passed on to the tasks that wait
                for each in batch:
                    each.future.set_exception(error)

    def _read(self, batch: Sequence[_Waiting[Out]]) -> None:
        self.pieces += len(batch)
        self.passes += 1
        paths, hidden = self.trunk.read([each.piece for each in batch])
        for each, path, out in zip(batch, paths, self._head(hidden), strict=True):
            each.slots.extend(path[len(each.piece.path) :].tolist())
            each.future.set_result(Read(path, out))


def _batches(waiting: Sequence[_Waiting[Out]]) -> Iterator[list[_Waiting[Out]]]:
    """Batches of pieces with similar lengths, which need little padding."""
    ordered = sorted(waiting, key=lambda each: (len(each.piece.token_ids), len(each.piece.path)))
    while ordered:
        longest = MAX_STRETCH * len(ordered[0].piece.token_ids)
        fitting = sum(len(each.piece.token_ids) <= longest for each in ordered[:MAX_ROWS])
        yield ordered[:fitting]
        ordered = ordered[fitting:]


def _padded(rows: Sequence[Slots]) -> Tensor:
    """(rows, longest), the shorter rows padded with `_SPARE`: the slot of padding, or an arbitrary token id."""
    padded = np.full((len(rows), max(map(len, rows))), _SPARE, dtype=np.int64)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return torch.from_numpy(padded)
