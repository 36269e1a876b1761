"""A branch's life: begun once, under an id of its own, and ended exactly once."""

import pytest

from deployments.engines.branches import BranchRegistry, Ending, RegistryError


def test_ids_are_unique_across_registries_and_never_used_again() -> None:
    registries = [BranchRegistry(), BranchRegistry()]
    ids = []
    for registry in registries:
        for _ in range(100):
            ids.append(registry.begin("search"))
            registry.end(ids[-1], Ending.FINISHED)
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("first", Ending)
@pytest.mark.parametrize("second", Ending)
def test_a_branch_ends_exactly_once(first: Ending, second: Ending) -> None:
    registry = BranchRegistry()
    branch = registry.begin("search")
    registry.end(branch, first)
    with pytest.raises(RegistryError, match=branch):
        registry.end(branch, second)
    assert registry.counts["begun"] == registry.counts[first.value] == 1


def test_integrity_names_the_searches_that_left_branches_behind() -> None:
    registry = BranchRegistry()
    left = [registry.begin("tidy"), registry.begin("sloppy"), registry.begin("sloppy")]
    registry.end(left[0], Ending.ABORTED)
    assert registry.check_integrity() == ["search sloppy has 2 branches alive"]
    for branch in left[1:]:
        registry.end(branch, Ending.FAILED)
    assert registry.check_integrity() == []
