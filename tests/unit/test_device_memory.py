"""The split of a device's memory, against examples by hand and for random sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.memory.device_memory import STEP, DoesNotFit, Role, Share, split
from kvstore.memory.geometry import KVGeometry, KVGroup

GIB = 1 << 30
MIB = 1 << 20


def role(name: str, layers: int, kv_heads: int, weights: int, tokens: float = 1.0, longest: int = 4096) -> Role:
    """A role with heads of 128 numbers of 2 bytes, in blocks of 16 tokens."""
    page = 2 * kv_heads * 128 * 2 * 16
    return Role(name, weights, 2 * GIB, KVGeometry((KVGroup(layers, page, 16),), layers * page), longest, tokens)


def test_both_engines_get_memory_for_the_same_number_of_tokens() -> None:
    generator, prm = split([role("generator", 28, 4, 15 * GIB), role("prm", 28, 8, 15 * GIB)], 80 * GIB)
    # The reward model has twice the heads: the same number of tokens takes twice the memory.
    assert generator.blocks == pytest.approx(prm.blocks, rel=1e-3)
    assert prm.kv_bytes == pytest.approx(2 * generator.kv_bytes, rel=1e-3)
    assert generator.kv_bytes + prm.kv_bytes == pytest.approx((0.95 * 80 - 34) * GIB, rel=0.01)
    assert generator.sequences == pytest.approx(generator.blocks / 256, rel=0.01)


def test_both_engines_get_memory_in_the_measured_ratio_of_tokens() -> None:
    generator, prm = split([role("generator", 28, 4, GIB, tokens=300), role("prm", 28, 4, GIB, tokens=100)], 40 * GIB)
    assert generator.blocks == pytest.approx(3 * prm.blocks, rel=1e-3)


def test_every_engine_gets_memory_for_one_long_sequence() -> None:
    generator, prm = split([role("generator", 28, 4, GIB, tokens=1e6), role("prm", 28, 4, GIB)], 16 * GIB)
    assert prm.sequences == 1.0
    assert generator.sequences > 30


def test_an_impossible_split_names_the_missing_bytes() -> None:
    roles = [role("generator", 28, 4, 15 * GIB), role("prm", 28, 4, 15 * GIB)]
    with pytest.raises(DoesNotFit, match=r"are missing: .*weights and working memory need 36,507,222,016 bytes"):
        split(roles, 24 * GIB)


sizes = st.integers(1, 64)
roles_ = st.builds(
    lambda layers, heads, weights, tokens, longest: role("any", layers, heads, weights * 64 * MIB, tokens, longest),
    sizes, st.sampled_from([1, 2, 8]), sizes, st.floats(0.001, 1000), st.integers(64, 32_768),
)  # fmt: skip


@given(roles=st.lists(roles_, min_size=1, max_size=3), device=st.integers(1, 192))
def test_the_split_never_exceeds_the_device(roles: list[Role], device: int) -> None:
    try:
        shares: list[Share] = split(roles, device * GIB)
    except DoesNotFit:
        return
    assert sum(share.device for share in shares) <= 0.95 + 1e-9
    for share in shares:
        taken = share.role.weight_bytes + share.role.working_bytes + share.kv_bytes
        assert taken <= share.device * device * GIB < taken + device * GIB / STEP + 1
        assert share.sequences >= 1.0
