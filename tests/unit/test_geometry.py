"""Blocks of KV caches against numbers computed by hand."""

import pytest

from kvstore.memory.geometry import KVGeometry, KVGroup
from kvstore.memory.ledger import KVLedger, Prefix, TooLarge
from tests.unit.test_kv_ledger import reserved

LLAMA_3_70B = KVGeometry((KVGroup(80, 2 * 8 * 128 * 2 * 16, 16),), 80 * 65_536)
"""80 layers; keys and values of 8 heads with 128 numbers of 2 bytes each."""
ALTERNATING = KVGeometry((KVGroup(2, 32_768, 32, 5), KVGroup(2, 32_768, 32)), 65_536)
"""Every second layer has a sliding window, which takes 5 blocks."""


def test_blocks_in_a_number_of_bytes() -> None:
    assert LLAMA_3_70B.blocks_in((1 << 30) - 1) == 204
    assert LLAMA_3_70B.blocks_in(-1) == 0


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(-1, 0), (0, 0), (1, 2), (32, 2), (33, 4), (160, 10), (161, 11), (3200, 105)]
)
def test_a_sliding_window_takes_a_bounded_number_of_blocks(tokens: int, blocks: int) -> None:
    assert ALTERNATING.blocks_for(tokens) == blocks
    assert KVGeometry.of([[2, 32_768, 32, 5], [2, 32_768, 32, None]], 65_536) == ALTERNATING


def test_a_ledger_counts_the_blocks_of_all_groups() -> None:
    ledger = KVLedger.of(100, ALTERNATING)
    prefix = Prefix.of(range(65), ledger.block_size)
    hold = reserved(ledger, prefix, growth=31)
    assert hold is not None
    assert ledger.reserved == ALTERNATING.blocks_for(96)
    sibling = reserved(ledger, prefix, growth=31)
    assert sibling is not None
    # In both groups: two shared blocks of tokens, and one further block for each request.
    assert ledger.reserved == 2 * (2 + 2)
    sibling.release()
    hold.release()
    assert ledger.reserved == 0


def test_a_long_request_fits_because_windows_keep_only_their_last_blocks() -> None:
    longest = 32 * 95  # leaves five of a hundred blocks for the window
    ledger = KVLedger.of(100, ALTERNATING)
    ledger.needs(Prefix.of(range(longest - 1), ledger.block_size), 1)
    with pytest.raises(TooLarge):
        ledger.needs(Prefix.of(range(longest), ledger.block_size), 1)


def test_a_request_that_needs_all_blocks_runs_alone() -> None:
    ledger = KVLedger.of(100, ALTERNATING)
    prefix = Prefix.of(range(32 * 90), ledger.block_size)
    alone = reserved(ledger, prefix, growth=20)
    assert alone is not None
    assert ledger.reserved == ledger.capacity
    assert reserved(ledger, prefix, growth=20) is None
    alone.release()
    assert ledger.reserved == 0


def test_a_model_with_only_sliding_windows_shares_blocks() -> None:
    ledger = KVLedger.of(100, KVGeometry((KVGroup(4, 8_192, 16, 65),), 32_768))
    prefix = Prefix.of(range(1_000), ledger.block_size)
    assert all(reserved(ledger, prefix, growth=20) for _ in range(19))
    assert ledger.reserved == 62 + 19 * 2


def test_recurrent_states_are_not_shared() -> None:
    ledger = KVLedger.of(100, KVGeometry((KVGroup(3, 4_096, 528, 2, False), KVGroup(1, 4_096, 16)), 12_288))
    assert ledger.block_size == 16
    hold = reserved(ledger, Prefix.of(range(33), 16), growth=10)
    assert hold is not None
    assert ledger.reserved == 3 + 2


def test_groups_may_have_blocks_of_different_sizes() -> None:
    geometry = KVGeometry((KVGroup(1, 4_096, 16, 200), KVGroup(1, 16_384, 64)), 16_384)
    ledger = KVLedger.of(1_000, geometry)
    assert reserved(ledger, Prefix.of(range(1_590), ledger.block_size), growth=10) is not None
    assert ledger.reserved >= geometry.blocks_for(1_600)
