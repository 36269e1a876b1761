"""The ledger never promises a block twice and never loses one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvstore.memory.clamp import MIN_LENGTHS, StepLengths
from kvstore.memory.ledger import Hold, KVLedger, Prefix, TooLarge

BLOCK = 4


def prefix(*token_ids: int, salt: str = "") -> Prefix:
    return Prefix.of(token_ids, BLOCK, salt)


def reserved(ledger: KVLedger, path: Prefix, growth: int, spare: int = 0, overcommit: int = 0) -> Hold | None:
    return ledger.reserve(path, ledger.needs(path, growth), spare, overcommit)


def test_shared_blocks_are_counted_once() -> None:
    ledger = KVLedger(100, BLOCK)
    path = prefix(*range(17))  # four whole blocks and a token

    holds = [reserved(ledger, path, growth=6) for _ in range(3)]

    assert ledger.reserved == 4 + 3 * 2
    for hold in holds:
        assert hold is not None
        hold.release()
    assert ledger.reserved == 0


def test_a_longer_path_shares_its_common_prefix() -> None:
    ledger = KVLedger(100, BLOCK)
    short = reserved(ledger, prefix(*range(9)), growth=1)
    long = reserved(ledger, prefix(*range(17)), growth=1)
    other = reserved(ledger, prefix(*range(8), 99, 98, 97, 96, 95), growth=1)

    assert ledger.reserved == (2 + 1) + (2 + 1) + (1 + 1)
    for hold in (short, other, long):
        assert hold is not None
        hold.release()
    assert ledger.reserved == 0


def test_prefixes_with_different_salts_share_nothing() -> None:
    ledger = KVLedger(100, BLOCK)
    reserved(ledger, prefix(*range(9)), growth=1)
    reserved(ledger, prefix(*range(9), salt="other"), growth=1)

    assert ledger.reserved == 6


def test_the_block_of_the_prompts_last_token_is_not_shared() -> None:
    """The engine computes that token again for each branch."""
    assert len(prefix(*range(8)).keys) == 1
    assert len(prefix(*range(9)).keys) == 2
    assert prefix().keys == prefix(1).keys == ()


def test_the_last_free_block_is_promised_once() -> None:
    ledger = KVLedger(3, BLOCK)
    assert reserved(ledger, prefix(1), growth=7) is not None
    assert ledger.free == 1

    granted = [reserved(ledger, prefix(1), growth=1) for _ in range(64)]

    assert sum(hold is not None for hold in granted) == 1
    assert ledger.free == 0


def test_a_lone_request_is_limited_to_all_blocks() -> None:
    ledger = KVLedger(3, BLOCK)

    hold = reserved(ledger, prefix(*range(6)), growth=1000)

    assert hold is not None
    assert ledger.reserved == 3


def test_a_request_that_can_never_fit_is_refused() -> None:
    ledger = KVLedger(3, BLOCK)

    assert reserved(ledger, prefix(*range(11)), growth=50) is not None
    with pytest.raises(TooLarge, match="needs 4 KV blocks, but there are only 3"):
        reserved(ledger, prefix(*range(12)), growth=1)


@pytest.mark.parametrize(("capacity", "block_size"), [(0, 4), (4, 0)])
def test_capacity_and_block_size_must_be_positive(capacity: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        KVLedger(capacity, block_size)


def test_a_large_new_prefix_gets_little_overcommit() -> None:
    """It would evict other requests' blocks, and wait for them."""
    ledger = KVLedger(100, BLOCK)
    long = prefix(*range(100, 100 + 40 * BLOCK + 1))
    first = reserved(ledger, long, 5 * BLOCK)
    assert first is not None
    for number in range(9):
        assert reserved(ledger, prefix(number), 5 * BLOCK) is not None
    assert ledger.reserved == ledger.held + ledger.growth == 46 + 9 * 6

    assert reserved(ledger, long, 5 * BLOCK) is None
    assert reserved(ledger, long, 5 * BLOCK, overcommit=60) is not None, "it shares all of it"
    assert reserved(ledger, prefix(*range(2 * BLOCK + 1)), BLOCK, overcommit=60) is not None
    assert reserved(ledger, prefix(*range(50, 50 + 4 * BLOCK + 1)), BLOCK, overcommit=60) is None
    assert reserved(ledger, prefix(*range(50, 50 + 4 * BLOCK + 1)), 2 * BLOCK, overcommit=60) is not None, "for more"
    assert reserved(ledger, Prefix((), 5 * BLOCK), 1, overcommit=60) is None, "of its own"
    assert ledger.reserved == 100


def test_a_request_with_all_blocks_keeps_them() -> None:
    ledger = KVLedger(100, BLOCK)
    alone = reserved(ledger, prefix(1), 1000 * BLOCK)
    assert alone is not None
    assert ledger.reserved == 100
    assert reserved(ledger, prefix(2), 1) is None


def test_the_length_of_steps_is_learned() -> None:
    lengths = StepLengths()
    for _ in range(MIN_LENGTHS - 1):
        lengths.add(10)
    assert lengths.expected(256) == 256
    lengths.add(10)
    assert lengths.expected(256) == 10
    assert lengths.expected(4) == 4
    for _ in range(512):
        lengths.add(30)
    assert lengths.expected(256) == 30


paths = st.lists(st.integers(0, 1), max_size=40)
growths = st.integers(0, 30)


class Ledger(RuleBasedStateMachine):
    """Compared with counting the blocks of all holds."""

    CAPACITY = 12

    def __init__(self) -> None:
        super().__init__()
        self.ledger = KVLedger(self.CAPACITY, BLOCK)
        self.held: list[tuple[Hold, Prefix, int]] = []
        self.overcommit = 0
        """Most blocks promised to any request beyond the free ones."""

    @rule(blocks=st.integers(0, 14))
    def withhold(self, blocks: int) -> None:
        self.ledger.withheld = blocks

    @rule(path=paths, growth=growths, spare=st.integers(0, 3), overcommit=st.sampled_from([0, 0, 1, 7, 12]))
    def reserve(self, path: list[int], growth: int, spare: int, overcommit: int) -> None:
        wanted = prefix(*path)
        held, growing = self.ledger.held, self.ledger.growth
        alone = not self.held
        hold = reserved(self.ledger, wanted, growth, spare, overcommit)
        fixed = -(-len(path) // BLOCK) - len(wanted.keys)
        own = -(-(len(path) + max(growth, 1)) // BLOCK) - len(wanted.keys)
        new = len(set(wanted.keys) - {key for _, each, _ in self.held for key in each.keys})
        left = self.CAPACITY - spare - self.ledger.withheld
        is_large = new + fixed > 4 * max(own - fixed, 1)
        fits = held + growing + new + own <= left + (min(overcommit, 1) if is_large else overcommit)
        assert (hold is not None) == (alone or fits)
        if hold is not None:
            self.overcommit = max(self.overcommit, overcommit)
            most = self.CAPACITY - len(wanted.keys)
            self.held.append((hold, wanted, min(own, most) if alone else own))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        hold, _, _ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        hold.release()
        hold.release()

    @invariant()
    def counts_each_block_once(self) -> None:
        shared = {key for _, each, _ in self.held for key in each.keys}
        promised = len(shared) + sum(own for _, _, own in self.held)
        assert self.ledger.shared == len(shared)
        assert self.ledger.held + self.ledger.growth == promised
        assert self.ledger.reserved == min(self.CAPACITY, promised)
        assert promised <= self.CAPACITY + self.overcommit

    def teardown(self) -> None:
        for hold, _, _ in self.held:
            hold.release()
        assert self.ledger.reserved == 0


TestLedger = Ledger.TestCase


@given(lengths=st.lists(st.integers(1, 400), max_size=600), most=st.integers(1, 400))
@settings(max_examples=50)
def test_the_expected_length_is_one_that_was_seen_within_the_limit(lengths: list[int], most: int) -> None:
    seen = StepLengths()
    for length in lengths:
        seen.add(length)

    expected = seen.expected(most)

    assert 1 <= expected <= most
    assert len(lengths) < MIN_LENGTHS or expected == most or expected in lengths
