"""A set that forgets the oldest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.recent import Lately, Recent


@given(st.lists(st.sets(st.sampled_from("abcdefghij"), max_size=4), max_size=30), st.integers(0, 5))
def test_it_holds_what_was_added_last(added: list[set[str]], most: int) -> None:
    recent = Recent(most)
    order: list[str] = []
    for names in added:
        # In the order in which the set gives them, as `update` sees them.
        order += [name for name in names if name not in order]
        order = order[max(0, len(order) - most) :]
        recent.update(names)
        assert recent == set(order)
        assert len(recent._order) == len(recent)


def test_notes_grow_old_and_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("kvstore.recent.time.monotonic", lambda: now)
    lately = Lately(seconds=30.0, most=2)
    lately.note("a")
    now += 20.0
    lately.note("b")
    assert "a" in lately
    now += 11.0
    assert ("a" in lately, "b" in lately) == (False, True)
    lately.note("a")
    lately.note("c")
    assert ("a" in lately, "b" in lately, "c" in lately) == (True, False, True)
