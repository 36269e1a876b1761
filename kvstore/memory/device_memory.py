"""Splits the memory of one device between its engines, before they start.

Weights and working memory are given. The rest is KV memory, split in proportion to the tokens that each engine holds
and to the bytes of a token.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kvstore.memory.geometry import KVGeometry

STEP = 1000
"""Shares of a device are rounded up to thousandths, so that an engine gets at least what was planned."""

USED = 0.95
"""Default share of a device that is given out."""

TOKENS = {"generator": 4.0, "prm": 1.0}
"""Default ratio of the tokens that the engines hold, where it was not measured. The generator holds a branch while it
writes it, the reward model holds a path for one forward pass. Chosen by the figures of `memory_split-817a735.json`."""
VERIFIER_TOKENS = 4.0
"""The same for a reward model that writes critiques: it holds a path while it writes, as the generator does. Not
measured."""


class DoesNotFit(ValueError):
    """The device is too small; the message says by how much."""


class Role(NamedTuple):
    """An engine that gets a share of the device."""

    name: str
    weight_bytes: int
    working_bytes: int
    """Memory beside weights and KV: runtime, activations, captured graphs."""
    geometry: KVGeometry
    longest: int
    """Tokens of the longest sequence. KV memory must hold at least one of these."""
    tokens: float = 1.0
    """Tokens that it holds, relative to the other engines."""
    fixed_kv_bytes: int | None = None
    """Its KV memory, where the settings name it."""

    @property
    def least_kv_bytes(self) -> int:
        """KV memory with which the engine starts: for one longest sequence."""
        return self.geometry.blocks_to_start(self.longest) * self.geometry.bytes_per_block

    @property
    def token_bytes(self) -> float:
        """KV bytes per token in a sequence of ``longest`` tokens."""
        return self.geometry.blocks_for(self.longest) * self.geometry.bytes_per_block / self.longest


class Share(NamedTuple):
    """The share of one engine."""

    role: Role
    blocks: int
    device: float
    """Share of the device's whole memory: vLLM's ``gpu_memory_utilization``, Ray's ``num_gpus``."""

    @property
    def kv_bytes(self) -> int:
        """vLLM's ``kv_cache_memory_bytes``."""
        return self.blocks * self.role.geometry.bytes_per_block

    @property
    def sequences(self) -> float:
        """Number of longest sequences that fit at once without a shared prefix."""
        return (self.blocks - 1) / self.role.geometry.blocks_for(self.role.longest)


def split(roles: Sequence[Role], device_bytes: int, used: float = USED) -> list[Share]:
    """The shares of engines that start on an empty device.

    Args:
        device_bytes: all memory of the device.
        used: share of it that is given out at most; contexts of other processes and fragmentation take the rest.

    Raises:
        DoesNotFit: there is too little memory for one longest sequence per engine.
    """
    granted = int(device_bytes * used)
    fixed = sum(role.weight_bytes + role.working_bytes for role in roles)
    least = [role.least_kv_bytes if role.fixed_kv_bytes is None else role.fixed_kv_bytes for role in roles]
    # Shares are rounded up.
    left = granted - fixed - len(roles) * (device_bytes // STEP + 1)
    if left < sum(least):
        raise DoesNotFit(
            f"the device has {device_bytes:,} bytes, and {sum(least) - left:,} are missing: engines may use {used:.0%} "
            f"of it, weights and working memory need {fixed:,} bytes, and KV at least {sum(least):,} (where "
            "kv_cache_memory_bytes is unset, one sequence of maximum length for each engine)"
        )
    return [_share(role, kv, device_bytes) for role, kv in zip(roles, _proportions(roles, least, left), strict=True)]


def _proportions(roles: Sequence[Role], least: Sequence[int], left: int) -> list[int]:
    """KV bytes of each engine: in proportion to its tokens times their bytes, but at least its ``least``; just that
    where its KV memory is fixed."""
    bytes_of = [*least]
    flexible = {index for index, role in enumerate(roles) if role.fixed_kv_bytes is None}
    left -= sum(kv for index, kv in enumerate(least) if index not in flexible)
    while flexible:
        wanted = {index: roles[index].tokens * roles[index].token_bytes for index in flexible}
        total = sum(wanted.values())
        bytes_of = [int(left * wanted[index] / total) if index in flexible else kv for index, kv in enumerate(bytes_of)]
        short = {index for index in flexible if bytes_of[index] < least[index]}
        if not short:
            break
        for index in short:
            bytes_of[index] = least[index]
            left -= least[index]
        flexible -= short
    return bytes_of


def _share(role: Role, kv_bytes: int, device_bytes: int) -> Share:
    blocks = role.geometry.blocks_in(kv_bytes)
    taken = role.weight_bytes + role.working_bytes + blocks * role.geometry.bytes_per_block
    return Share(role, blocks, -(-taken * STEP // device_bytes) / STEP)
