"""The ledger and the clamp: nothing is promised twice, nothing is lost, somebody always goes on."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvstore.clamp import AHEAD_MOST, FEWEST, KVClamp, Lengths, Ticket
from kvstore.ledger import Hold, KVLedger, Prefix, TooLarge

BLOCK = 4


def prefix(*token_ids: int, salt: str = "") -> Prefix:
    return Prefix.of(token_ids, BLOCK, salt)


def reserved(ledger: KVLedger, path: Prefix, growth: int, spare: int = 0, ahead: int = 0) -> Hold | None:
    return ledger.reserve(path, ledger.needs(path, growth), spare, ahead)


def test_blocks_that_branches_share_are_counted_once() -> None:
    ledger = KVLedger(100, BLOCK)
    path = prefix(*range(17))  # four whole blocks and a token

    holds = [reserved(ledger, path, growth=6) for _ in range(3)]

    assert ledger.reserved == 4 + 3 * 2
    for hold in holds:
        assert hold is not None
        hold.release()
    assert ledger.reserved == 0


def test_a_longer_path_shares_what_it_begins_with() -> None:
    ledger = KVLedger(100, BLOCK)
    short = reserved(ledger, prefix(*range(9)), growth=1)
    long = reserved(ledger, prefix(*range(17)), growth=1)
    other = reserved(ledger, prefix(*range(8), 99, 98, 97, 96, 95), growth=1)

    assert ledger.reserved == (2 + 1) + (2 + 1) + (1 + 1)
    for hold in (short, other, long):
        assert hold is not None
        hold.release()
    assert ledger.reserved == 0


def test_another_salt_shares_nothing() -> None:
    ledger = KVLedger(100, BLOCK)
    reserved(ledger, prefix(*range(9)), growth=1)
    reserved(ledger, prefix(*range(9), salt="other"), growth=1)

    assert ledger.reserved == 6


def test_the_block_of_a_prompts_last_token_is_the_branchs_own() -> None:
    """The engine computes that token again for each of them."""
    assert len(prefix(*range(8)).keys) == 1
    assert len(prefix(*range(9)).keys) == 2
    assert prefix().keys == prefix(1).keys == ()


def test_the_last_block_is_promised_once() -> None:
    ledger = KVLedger(3, BLOCK)
    assert reserved(ledger, prefix(1), growth=7) is not None
    assert ledger.free == 1

    granted = [reserved(ledger, prefix(1), growth=1) for _ in range(64)]

    assert sum(hold is not None for hold in granted) == 1
    assert ledger.free == 0


def test_what_is_alone_gets_all_there_is() -> None:
    ledger = KVLedger(3, BLOCK)

    hold = reserved(ledger, prefix(*range(6)), growth=1000)

    assert hold is not None
    assert ledger.reserved == 3


def test_what_can_never_fit_is_refused() -> None:
    ledger = KVLedger(3, BLOCK)

    assert reserved(ledger, prefix(*range(11)), growth=50) is not None
    with pytest.raises(TooLarge, match="needs 4 KV blocks, there are 3"):
        reserved(ledger, prefix(*range(12)), growth=1)


@pytest.mark.parametrize(("capacity", "block_size"), [(0, 4), (4, 0)])
def test_a_ledger_of_nothing_is_none(capacity: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        KVLedger(capacity, block_size)


def test_the_clamp_keeps_order_and_takes_no_small_one_past_a_large_one() -> None:
    clamp = KVClamp(KVLedger(4, BLOCK))
    first = clamp.ask(0, prefix(1), 10, nothing)
    woken: list[str] = []
    large = clamp.ask(1, prefix(2), 15, lambda _: woken.append("large"))
    small = clamp.ask(2, prefix(3), 1, lambda _: woken.append("small"))
    sooner = clamp.ask(0, prefix(4), 1, lambda _: woken.append("sooner"))

    assert (first.granted, large.granted, small.granted, sooner.granted) == (True, False, False, True)
    first.close()
    assert not woken  # the large one needs all four
    sooner.close()
    assert woken == ["large"]
    large.close()
    assert woken == ["large", "small"]
    small.close()
    assert clamp.ledger.reserved == clamp.waiting == 0
    assert clamp.held_back == 2


def test_who_will_not_wait_is_refused_and_leaves_nothing_behind() -> None:
    clamp = KVClamp(KVLedger(4, BLOCK))
    first = clamp.ask_now(1, prefix(1), 10)
    assert first is not None
    assert clamp.ask_now(1, prefix(2), 8) is None
    second = clamp.ask_now(1, prefix(2), 1)
    assert second is not None
    third = clamp.ask_now(1, prefix(3), 1)
    assert third is not None, "half of the two that the first was promised for what it writes are free"
    assert clamp.ask_now(1, prefix(3), 1) is None
    third.close()
    waiting = clamp.ask(2, prefix(4), 9, nothing)
    second.close()
    assert clamp.ask_now(2, prefix(3), 1) is None, "behind the one that waits"
    ahead = clamp.ask_now(1, prefix(3), 1)
    assert ahead is not None
    assert (clamp.held_back, clamp.wanted) == (1, 3)
    for ticket in (first, ahead, waiting):
        ticket.close()
    assert clamp.ledger.reserved == clamp.waiting == clamp.wanted == clamp.pressure == 0
    with pytest.raises(TooLarge):
        clamp.ask_now(0, prefix(*range(40)), 1)


def test_speculative_branches_are_refused_below_the_watermark() -> None:
    clamp = KVClamp(KVLedger(100, BLOCK))
    for number in range(74):
        clamp.ask(0, prefix(number), 1, nothing)
    assert clamp.ask_now(0, prefix(1), 1, speculative=True) is not None
    assert clamp.ask_now(0, prefix(1), 1, speculative=True) is None
    assert clamp.ask_now(0, prefix(1), 1) is not None


def test_speculative_branches_leave_a_quarter_free() -> None:
    clamp = KVClamp(KVLedger(100, BLOCK))
    demand = [clamp.ask(0, prefix(n), 1, nothing) for n in range(74)]
    speculative = [clamp.ask(9, prefix(n), 1, nothing, speculative=True) for n in range(2)]

    assert [ticket.granted for ticket in speculative] == [True, False]
    assert all(ticket.granted for ticket in demand)
    assert clamp.ask(0, prefix(1), 1, nothing).granted, "behind none of them"
    demand[0].close()
    demand[1].close()
    assert speculative[1].granted


def test_what_a_cache_holds_is_granted_to_nobody_and_its_end_wakes_who_waits() -> None:
    clamp = KVClamp(KVLedger(10, BLOCK))
    first = clamp.ask(0, prefix(1), 10, nothing)
    woken: list[str] = []

    clamp.stepped(6, preempted=0)

    assert clamp.ledger.free == 10 - 3 - 6
    assert not clamp.ask(0, prefix(2), 7, lambda _: woken.append("second")).granted
    clamp.stepped(0, preempted=0)
    assert woken == ["second"], "one block fewer than a moment ago is enough"
    assert clamp.ledger.withheld == 5, "the others may be held again in the next step"
    for _ in range(100):
        clamp.stepped(0, preempted=0)
    assert clamp.ledger.withheld == 0
    first.close()


def busy_clamp(branches: int) -> tuple[KVClamp, list[Ticket]]:
    """A hundred blocks, branches of two."""
    clamp = KVClamp(KVLedger(100, BLOCK))
    return clamp, [clamp.ask(0, prefix(number), 2 * BLOCK - 1, nothing) for number in range(branches)]


def turn_over(clamp: KVClamp, tickets: list[Ticket], times: int, preempted: int = 0) -> None:
    """So many times as many branches end and come as go on, so many of which were put back each time."""
    for _ in range(times):
        for number in range(clamp.going):
            tickets.remove(ended := next(ticket for ticket in tickets if ticket.granted))
            ended.close(finished=True)
            tickets.append(clamp.ask(0, prefix(number), 2 * BLOCK - 1, nothing))
        clamp.stepped(0, preempted)


def test_more_is_promised_than_there_is_while_others_wait_for_it() -> None:
    clamp, tickets = busy_clamp(60)
    assert [clamp.going, clamp.waiting] == [49, 11]

    turn_over(clamp, tickets, times=20)

    assert clamp.waiting == 0
    assert [clamp.ledger.held, clamp.ledger.growth] == [60, 60]
    assert clamp.ledger.reserved == 100
    ahead = clamp.ahead
    assert 20 <= ahead < 24
    assert clamp.pressure == 90 / 100
    turn_over(clamp, tickets, times=20)
    assert clamp.ahead == ahead, "nobody waited"
    for ticket in tickets:
        ticket.close()
    assert clamp.ledger.reserved == clamp.ledger.held == clamp.ledger.growth == 0


def test_less_is_promised_ahead_where_too_many_are_put_back() -> None:
    clamp, tickets = busy_clamp(200)
    turn_over(clamp, tickets, times=20)
    before = clamp.ahead
    turn_over(clamp, tickets, times=10, preempted=1)
    assert clamp.ahead > before, "few of them were"
    for _ in range(20):
        clamp.stepped(0, preempted=clamp.going // 4)
    assert clamp.ahead == 0.0
    turn_over(clamp, tickets, times=1)
    assert clamp.going <= 51


def test_what_is_speculated_takes_nothing_ahead_and_is_no_reason_for_more() -> None:
    clamp, tickets = busy_clamp(49)
    waiting = clamp.ask(9, prefix(1), 10 * BLOCK, nothing, speculative=True)
    turn_over(clamp, tickets, times=10)
    assert (clamp.ahead, waiting.granted) == (0.0, False)
    clamp.ahead = 50.0
    clamp.stepped(0, preempted=0)
    assert not waiting.granted


def test_who_brings_a_long_prefix_in_is_promised_little_ahead() -> None:
    """It would push out what others have, and wait for it meanwhile."""
    ledger = KVLedger(100, BLOCK)
    long = prefix(*range(100, 100 + 40 * BLOCK + 1))
    first = reserved(ledger, long, 5 * BLOCK)
    assert first is not None
    for number in range(9):
        assert reserved(ledger, prefix(number), 5 * BLOCK) is not None
    assert ledger.reserved == ledger.held + ledger.growth == 46 + 9 * 6

    assert reserved(ledger, long, 5 * BLOCK) is None
    assert reserved(ledger, long, 5 * BLOCK, ahead=60) is not None, "it shares all of it"
    assert reserved(ledger, prefix(*range(2 * BLOCK + 1)), BLOCK, ahead=60) is not None
    assert reserved(ledger, prefix(*range(50, 50 + 4 * BLOCK + 1)), BLOCK, ahead=60) is None
    assert reserved(ledger, prefix(*range(50, 50 + 4 * BLOCK + 1)), 2 * BLOCK, ahead=60) is not None, "for more"
    assert reserved(ledger, Prefix((), 5 * BLOCK), 1, ahead=60) is None, "of its own"
    assert ledger.reserved == 100


def test_who_gets_all_there_is_keeps_all_of_it() -> None:
    ledger = KVLedger(100, BLOCK)
    alone = reserved(ledger, prefix(1), 1000 * BLOCK)
    assert alone is not None
    assert ledger.reserved == 100
    assert reserved(ledger, prefix(2), 1) is None


def test_the_length_of_steps_is_learned() -> None:
    lengths = Lengths()
    for _ in range(FEWEST - 1):
        lengths.saw(10)
    assert lengths.expected(256) == 256
    lengths.saw(10)
    assert lengths.expected(256) == 10
    assert lengths.expected(4) == 4
    for _ in range(512):
        lengths.saw(30)
    assert lengths.expected(256) == 30


def nothing(_: Ticket) -> None:
    pass


paths = st.lists(st.integers(0, 1), max_size=40)
growths = st.integers(0, 30)


class Ledger(RuleBasedStateMachine):
    """Against counting the blocks of all that hold any."""

    CAPACITY = 12

    def __init__(self) -> None:
        super().__init__()
        self.ledger = KVLedger(self.CAPACITY, BLOCK)
        self.held: list[tuple[Hold, Prefix, int]] = []
        self.ahead = 0
        """The most that anybody was promised of blocks that are not there."""

    @rule(blocks=st.integers(0, 14))
    def withhold(self, blocks: int) -> None:
        self.ledger.withheld = blocks

    @rule(path=paths, growth=growths, spare=st.integers(0, 3), ahead=st.sampled_from([0, 0, 1, 7, 12]))
    def reserve(self, path: list[int], growth: int, spare: int, ahead: int) -> None:
        wanted = prefix(*path)
        held, growing = self.ledger.held, self.ledger.growth
        alone = not self.held
        hold = reserved(self.ledger, wanted, growth, spare, ahead)
        fixed = -(-len(path) // BLOCK) - len(wanted.keys)
        own = -(-(len(path) + max(growth, 1)) // BLOCK) - len(wanted.keys)
        new = len(set(wanted.keys) - {key for _, each, _ in self.held for key in each.keys})
        left = self.CAPACITY - spare - self.ledger.withheld
        fits = held + growing + new + own <= left + (min(ahead, 1) if new + fixed > 4 * max(own - fixed, 1) else ahead)
        assert (hold is not None) == (alone or fits)
        if hold is not None:
            self.ahead = max(self.ahead, ahead)
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
        assert promised <= self.CAPACITY + self.ahead

    def teardown(self) -> None:
        for hold, _, _ in self.held:
            hold.release()
        assert self.ledger.reserved == 0


TestLedger = Ledger.TestCase


class Clamp(RuleBasedStateMachine):
    """Branches come, end, die in the queue: somebody always goes on and nothing stays."""

    def __init__(self) -> None:
        super().__init__()
        self.clamp = KVClamp(KVLedger(12, BLOCK))
        self.open: list[Ticket] = []
        self.woken: list[Ticket] = []

    @rule(path=paths, growth=growths, order=st.integers(0, 5), speculative=st.booleans())
    def ask(self, path: list[int], growth: int, order: int, speculative: bool) -> None:
        self.open.append(self.clamp.ask(order, prefix(*path), growth, self.woken.append, speculative))

    @rule(path=paths, growth=growths, order=st.integers(0, 5), speculative=st.booleans())
    def ask_now(self, path: list[int], growth: int, order: int, speculative: bool) -> None:
        alone, before = not self.open, self.clamp.ledger.reserved
        ticket = self.clamp.ask_now(order, prefix(*path), growth, speculative)
        assert ticket is not None or not alone
        assert ticket is not None or self.clamp.ledger.reserved == before
        if ticket is not None:
            assert ticket.granted
            self.open.append(ticket)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        ticket = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        ticket.close(finished=data.draw(st.booleans()))
        ticket.close()

    @rule(withheld=st.integers(0, 14), preempted=st.integers(0, 3))
    def step(self, withheld: int, preempted: int) -> None:
        self.clamp.stepped(withheld, preempted)

    @invariant()
    def somebody_goes_on(self) -> None:
        assert not self.open or any(ticket.granted for ticket in self.open)
        assert self.clamp.waiting == sum(not ticket.granted for ticket in self.open)
        assert self.clamp.going == sum(ticket.granted for ticket in self.open)
        assert self.clamp.wanted == sum(not ticket.speculative for ticket in self.open)
        assert self.clamp.ledger.reserved <= self.clamp.ledger.capacity
        assert 0.0 <= self.clamp.ahead <= AHEAD_MOST * self.clamp.ledger.capacity
        assert all(ticket.granted for ticket in self.woken)
        assert len(self.woken) == len(set(map(id, self.woken))), "woken twice"

    def teardown(self) -> None:
        for ticket in self.open:
            ticket.close()
        assert self.clamp.ledger.reserved == self.clamp.waiting == 0


TestClamp = Clamp.TestCase


@given(lengths=st.lists(st.integers(1, 400), max_size=600), most=st.integers(1, 400))
@settings(max_examples=50)
def test_the_expected_length_is_within_what_is_allowed_and_was_seen(lengths: list[int], most: int) -> None:
    seen = Lengths()
    for length in lengths:
        seen.saw(length)

    expected = seen.expected(most)

    assert 1 <= expected <= most
    assert len(lengths) < FEWEST or expected == most or expected in lengths
