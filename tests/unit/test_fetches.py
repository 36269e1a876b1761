"""A prefix that several requests lack is fetched by one of them."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvstore.connector.fetches import Fetches


def test_other_requests_wait_for_the_fetch() -> None:
    fetches = Fetches()
    fetches.asks("block", "first")

    assert not fetches.awaits("block", "first")
    assert fetches.awaits("block", "second")
    assert not fetches.awaits("another", "second")
    fetches.answered("first")
    assert not fetches.awaits("block", "second"), "found, and no room for it yet: the second may have some"
    fetches.loads("first")
    assert fetches.awaits("block", "second")
    fetches.ends("first")
    assert not fetches.awaits("block", "second")


def test_a_block_stays_with_the_request_that_loads_it_first() -> None:
    fetches = Fetches()
    fetches.asks("block", "first")
    fetches.answered("first")
    fetches.asks("block", "second")
    fetches.loads("first")

    assert fetches.awaits("block", "first")
    fetches.ends("first")
    assert fetches.awaits("block", "third")
    fetches.ends("second")
    assert not fetches.awaits("block", "third")


def test_no_request_waits_for_one_of_lower_priority() -> None:
    fetches = Fetches()
    fetches.asks("block", "speculative", 9)

    assert not fetches.awaits("block", "first", 3)
    fetches.asks("block", "first", 3)
    assert fetches.awaits("block", "speculative", 9)
    assert not fetches.awaits("block", "sooner", 2)
    fetches.loads("first")
    assert fetches.awaits("block", "sooner", 2), "what is being loaded comes"
    fetches.ends("first")
    fetches.ends("speculative")
    assert not fetches.awaits("block", "anybody", 99)


names = st.sampled_from("abcd")
blocks = st.sampled_from([1, 2])


class Requests(RuleBasedStateMachine):
    """In any order of events: while a request waits, another one is still fetching."""

    def __init__(self) -> None:
        super().__init__()
        self.fetches = Fetches()
        self.lacks: dict[str, int] = {}
        self.fetching: set[str] = set()

    @rule(name=names, block=blocks)
    def ask(self, name: str, block: int) -> None:
        if not self.fetches.awaits(block, name):
            self.fetches.asks(block, name)
            self.lacks[name] = block
            self.fetching.add(name)

    @rule(name=names)
    def answer(self, name: str) -> None:
        self.fetches.answered(name)
        self.fetching.discard(name)

    @rule(name=names)
    def load(self, name: str) -> None:
        self.fetches.loads(name)
        if name in self.lacks:
            self.fetching.add(name)

    @rule(name=names)
    def end(self, name: str) -> None:
        self.fetches.ends(name)
        self.fetching.discard(name)
        self.lacks.pop(name, None)

    @invariant()
    def every_wait_has_a_fetch(self) -> None:
        for block in (1, 2):
            if self.fetches.awaits(block, "stranger"):
                assert any(self.lacks[name] == block for name in self.fetching)

    def teardown(self) -> None:
        for name in "abcd":
            self.fetches.ends(name)
        assert not any(self.fetches.awaits(block, "stranger") for block in (1, 2))


TestRequests = Requests.TestCase
