"""How the memory of one device is split between the engines on it, before they start.

Weights and what an engine works with are given; what is left holds keys and values, in the ratio of the tokens that
each holds.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kvstore.memory.geometry import KVGeometry

STEP = 1000
"""Shares of a device are told in thousandths: rounded up, so that an engine finds what it was promised."""

TOKENS = {"generator": 4.0, "prm": 1.0}
"""What the engines hold where nobody has measured it: the generator its branches for as long as it writes them, the
reward model a path for the one pass that reads it. Chosen by `benchmarks.memory_split`."""


class DoesNotFit(ValueError):
    """The device is too small; says by how much."""


class Role(NamedTuple):
    """An engine that is to run."""

    name: str
    weight_bytes: int
    working_bytes: int
    """Beside weights and KV: the runtime's own, activations, captured graphs."""
    geometry: KVGeometry
    longest: int
    """Tokens of the longest sequence: less memory than for one is no use."""
    tokens: float = 1.0
    """Tokens that it holds, against those of the others."""

    @property
    def token_bytes(self) -> float:
        """What a token takes in a sequence of the longest."""
        return self.geometry.blocks_for(self.longest) * self.geometry.bytes_per_block / self.longest


class Share(NamedTuple):
    """What one engine gets."""

    role: Role
    blocks: int
    device: float
    """Of the device, all in all: vLLM's ``gpu_memory_utilization``, Ray's ``num_gpus``."""

    @property
    def kv_bytes(self) -> int:
        """vLLM's ``kv_cache_memory_bytes``."""
        return self.blocks * self.role.geometry.bytes_per_block

    @property
    def sequences(self) -> float:
        """Of the longest that fit at once, without any prefix that they share."""
        return (self.blocks - 1) / self.role.geometry.blocks_for(self.role.longest)


def split(roles: Sequence[Role], device_bytes: int, used: float = 0.95) -> list[Share]:
    """The shares of engines that start on an empty device.

    Args:
        device_bytes: the whole of it.
        used: at most so much of it is given out: others' contexts and fragments take some.

    Raises:
        DoesNotFit: not even one sequence of the longest for each.
    """
    granted = int(device_bytes * used)
    fixed = sum(role.weight_bytes + role.working_bytes for role in roles)
    least = [role.geometry.blocks_to_start(role.longest) * role.geometry.bytes_per_block for role in roles]
    # Shares are rounded up.
    left = granted - fixed - len(roles) * (device_bytes // STEP + 1)
    if left < sum(least):
        raise DoesNotFit(
            f"{device_bytes:,} bytes, of which {used:.0%} are given out, are {sum(least) - left:,} too few: weights "
            f"and working memory take {fixed:,}, and one sequence of the longest for each engine {sum(least):,} of KV"
        )
    return [_share(role, kv, device_bytes) for role, kv in zip(roles, _proportions(roles, least, left), strict=True)]


def _proportions(roles: Sequence[Role], least: Sequence[int], left: int) -> list[int]:
    """Bytes of KV for each: by the tokens that it holds and what they take, and never less than the least."""
    bytes_of = [0] * len(roles)
    open_ = set(range(len(roles)))
    while open_:
        wanted = {place: roles[place].tokens * roles[place].token_bytes for place in open_}
        whole = sum(wanted.values())
        bytes_of = [int(left * wanted[place] / whole) if place in open_ else kv for place, kv in enumerate(bytes_of)]
        short = {place for place in open_ if bytes_of[place] < least[place]}
        if not short:
            break
        for place in short:
            bytes_of[place] = least[place]
            left -= least[place]
        open_ -= short
    return bytes_of


def _share(role: Role, kv_bytes: int, device_bytes: int) -> Share:
    blocks = role.geometry.blocks_in(kv_bytes)
    taken = role.weight_bytes + role.working_bytes + blocks * role.geometry.bytes_per_block
    return Share(role, blocks, -(-taken * STEP // device_bytes) / STEP)
