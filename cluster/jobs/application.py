"""The batches of an application's store, run by its batch runner. ``deployments.app`` names this module by its path."""

from cluster.client.client import Client
from cluster.client.handles import URL, HandleTransport
from cluster.jobs.batches import BatchJobs
from deployments.store import Store

GRACE_S = 60.0
"""Seconds that a request may take beyond the limit of a search."""


def batch_jobs(store: Store, application: str, seconds: float, in_flight: int) -> BatchJobs:
    """Returns what runs the batches in ``store``: each as its owner, through the controllers' handles.

    ``seconds``: longest time that a controller lets a request take. ``in_flight``: requests of a batch at a time.
    """

    def connect(owner: str) -> Client:
        transport = HandleTransport(application, owner)
        return Client(URL, None, seconds + GRACE_S, in_flight, transport=transport, waits_for_room=False)

    return BatchJobs(store, connect)
