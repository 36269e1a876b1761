"""A bounded set that forgets its oldest members."""

from hypothesis import given
from hypothesis import strategies as st

from kvstore.connector.recent import BoundedSet


@given(st.lists(st.sets(st.sampled_from("abcdefghij"), max_size=4), max_size=30), st.integers(0, 5))
def test_it_keeps_the_members_added_last(added: list[set[str]], most: int) -> None:
    recent = BoundedSet(most)
    order: list[str] = []
    for names in added:
        # In the set's own iteration order, in which `update` adds them.
        order += [name for name in names if name not in order]
        order = order[max(0, len(order) - most) :]
        recent.update(names)
        assert recent == set(order)
        assert len(recent._order) == len(recent)
