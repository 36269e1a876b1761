"""The envelope of a call: what travels beside a request, for the router and the replica."""

from typing import NamedTuple


class Envelope(NamedTuple):
    """How one attempt of a call is made: the second argument of a replica's method."""

    avoid: tuple[str, ...] = ()
    """Actor ids of the replicas at which the call has failed: it goes to another one, if there is one."""
    alone: bool = False
    """Whether the engine works on nothing else meanwhile."""
    ahead: bool = True
    """Whether the replica may write ahead; otherwise the request goes without ``ExpandRequest.ahead``. What was written
    ahead ended an engine perhaps, and nobody misses it."""


FIRST_ATTEMPT = Envelope()
