"""Blocks of a KV cache against figures computed by hand."""

import pytest

from kvstore.geometry import KVGeometry, KVGroup
from kvstore.ledger import KVLedger, Prefix, TooLarge

LLAMA_3_70B = KVGeometry((KVGroup(80, 2 * 8 * 128 * 2 * 16, 16),), 80 * 65_536)
"""80 layers, a key and a value of 8 heads of 128 numbers of 2 bytes."""
ALTERNATING = KVGeometry((KVGroup(2, 32_768, 32, 5), KVGroup(2, 32_768, 32)), 65_536)
"""Every second layer looks back over a window that takes 5 blocks."""


def test_bytes() -> None:
    assert LLAMA_3_70B.bytes_per_token == 327_680
    assert ALTERNATING.bytes_per_token == 2_048
    assert LLAMA_3_70B.blocks_in((1 << 30) - 1) == 204
    assert LLAMA_3_70B.blocks_in(-1) == 0


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(-1, 0), (0, 0), (1, 2), (32, 2), (33, 4), (160, 10), (161, 11), (3200, 105)]
)
def test_a_sliding_window_is_full_after_some_blocks(tokens: int, blocks: int) -> None:
    assert ALTERNATING.blocks_for(tokens) == blocks
    assert KVGeometry.of([[2, 32_768, 32, 5], [2, 32_768, 32, None]], 65_536) == ALTERNATING


def test_a_ledger_counts_the_blocks_of_all_groups() -> None:
    ledger = KVLedger.of(100, ALTERNATING)
    prefix = Prefix.of(range(65), ledger.block_size)
    hold = ledger.reserve(prefix, growth=31)
    assert hold is not None
    assert ledger.reserved == ALTERNATING.blocks_for(96)
    sibling = ledger.reserve(prefix, growth=31)
    assert sibling is not None
    # Two shared blocks of the layers that keep all; a block behind them and three of the window for each.
    assert ledger.reserved == 2 + 2 * (1 + 3)
    sibling.release()
    hold.release()
    assert ledger.reserved == 0


def test_a_long_request_fits_though_its_windows_would_not_if_they_kept_all() -> None:
    longest = 32 * 95  # leaves five blocks of a hundred for the window
    ledger = KVLedger.of(100, ALTERNATING)
    ledger.check(Prefix.of(range(longest - 1), ledger.block_size))
    with pytest.raises(TooLarge):
        ledger.check(Prefix.of(range(longest), ledger.block_size))


def test_a_model_of_windows_alone() -> None:
    ledger = KVLedger.of(10, KVGeometry((KVGroup(4, 8_192, 16, 3),), 32_768))
    holds = [ledger.reserve(Prefix.of(range(1_000), ledger.block_size), growth=20) for _ in range(4)]
    assert [hold is not None for hold in holds] == [True, True, True, False]
