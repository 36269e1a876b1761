"""Which generator gets a call: a search's own, and another one for a call that has failed."""

from uuid import uuid4

from ray import serve

from search.ports import Branch, ExpandItem, ExpandRequest, Lane, Sampling, StopCondition
from tests.serve.application import Application, new_prefix


async def writers(application: Application, search_id: str, attempt: int, calls: int = 1) -> set[str]:
    """The replicas that write for a search."""
    handle = serve.get_deployment_handle("Generator", application.NAME).options(stream=True)
    part = ExpandItem((), new_prefix(), (Branch(0, 1, 1),))
    request = ExpandRequest(search_id, (part,), Sampling(), StopCondition.STEP, Lane.DEMAND, 60.0, attempt=attempt)
    wrote = set()
    for _ in range(calls):
        async for group in handle.expand.remote(request):
            if group.headroom is not None:
                wrote.add(group.headroom.replica)
    return wrote


def test_a_search_stays_with_one_replica_and_a_call_that_failed_goes_to_another(idle: Application) -> None:
    homes, elsewhere = [], []
    for search_id in (uuid4().hex for _ in range(16)):
        homes.append(idle.run(writers(idle, search_id, attempt=0, calls=4)))
        elsewhere.append(idle.run(writers(idle, search_id, attempt=1)))
        assert idle.run(writers(idle, search_id, attempt=2)) == homes[-1]

    assert all(len(home) == len(other) == 1 for home, other in zip(homes, elsewhere, strict=True))
    assert set.union(*homes) == set.union(*elsewhere)
    assert len(set.union(*homes)) == 2, "16 searches have both replicas for homes"
    assert all(home != other for home, other in zip(homes, elsewhere, strict=True))
