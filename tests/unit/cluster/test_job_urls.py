"""A batch may ask for all that the endpoint does for a client."""

from cluster.jobs.inputs import URLS
from deployments.admission.proxy import WORK


def test_a_batch_may_ask_for_whatever_takes_a_place() -> None:
    assert set(URLS) == set(WORK)
