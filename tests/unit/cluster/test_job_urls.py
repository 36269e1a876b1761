"""A batch may use every route on which the endpoint does work for a client."""

from cluster.jobs.inputs import URLS
from deployments.admission.proxy import WORK


def test_a_batch_may_use_every_route_that_takes_a_place() -> None:
    assert set(URLS) == set(WORK)
