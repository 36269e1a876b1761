"""Requests that may have ended an engine, and requests that have.

When an engine dies, each request with work in its batch is a suspect. Suspects are tried again while the engine works
on nothing else (`deployments.calls.pool`). An engine that dies then was ended by the request: the request is harmful.
It fails, and for a while so do all requests that ask the same.

What is asked is remembered as a digest: of the owner, the prompt, and the settings that change what an engine does
with it. Seeds and the kind and width of a search are left out, so that a retry with other ones is recognized. The owner
is part of it, so that nobody can have the questions of others refused. An owner with several harmful requests is
refused altogether: a prompt with a random number in it is a new one every time.
"""

import hashlib
import logging
import math
import time
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial

from cachetools import TTLCache

from search.errors import HarmfulRequest

logger = logging.getLogger("banyan.suspects")

MAX_REMEMBERED = 1024
"""Number of harmful requests that are remembered, and of suspects that were not cleared. The oldest are forgotten."""
REMEMBERED_S = 3600.0
MAX_HARMFUL = 8
"""Number of an owner's harmful requests that are remembered from which on all its requests are refused."""
MAX_LEFT = 256
"""Number of requests without a reply that may still become suspects."""


@dataclass(eq=False, slots=True)
class Standing:
    """What is held against a request at one pool of replicas."""

    apart_for_good: bool = False
    """Whether none of its calls may share an engine."""
    deaths: int = 0
    """Number of engines that died with its work in the batch, and other work beside it."""
    owed: int = 0
    """Number of its interrupted calls that were not made again yet, apart from others."""
    last_replica: str | None = None
    """The replica that may still write ahead for it."""

    @property
    def apart(self) -> bool:
        """Whether its next call must not share an engine."""
        return self.apart_for_good or self.owed > 0

    @property
    def blamed(self) -> bool:
        """Whether it must not share an engine the next time it is sent either."""
        return self.owed > 0 or self.deaths > 1

    def clear(self) -> None:
        """One of its interrupted calls was made again apart, and the engine lives."""
        self.owed = max(0, self.owed - 1)


@dataclass(eq=False)
class _WatchedRequest:
    """A request under way."""

    owner: str
    digest: Callable[[], bytes]
    """Returns the digest of what is asked."""
    known: bool = False
    """Whether a request that asked the same was left under suspicion."""
    standings: dict[str, Standing] = field(default_factory=dict)
    """By pool."""

    @property
    def suspected(self) -> bool:
        return self.known or any(standing.deaths for standing in self.standings.values())

    @property
    def blamed(self) -> bool:
        return any(standing.blamed for standing in self.standings.values())


class Suspects:
    """The suspects and the harmful requests of one controller. For use in one event loop."""

    def __init__(self, on_harmful: Callable[[], None] = lambda: None) -> None:
        """``on_harmful``: called once for each request that is found harmful."""
        self._on_harmful = on_harmful
        self._requests: dict[str, _WatchedRequest] = {}
        self._other_ended = -math.inf
        """When a request last ended, monotonic seconds."""
        self._harmful: TTLCache[bytes, str] = TTLCache(MAX_REMEMBERED, REMEMBERED_S)
        """Digests of harmful requests, with their owners."""
        self._suspected: TTLCache[bytes, bool] = TTLCache(MAX_REMEMBERED, REMEMBERED_S)
        self._left: deque[tuple[str, bytes]] = deque(maxlen=MAX_LEFT)
        """The last requests that did not end well, with their digests: perhaps an engine is about to die of one."""

    def check(self, owner: str, asked: Callable[[str], bytes]) -> None:
        """
        Args:
            owner: the API key or address that asks.
            asked: returns the digest of what an owner asks; called only where any is remembered.

        Raises:
            HarmfulRequest: a request that asked the same is harmful, or `MAX_HARMFUL` of the owner's were.
        """
        self._check(owner, partial(asked, owner))

    def _check(self, owner: str, digest: Callable[[], bytes]) -> None:
        if not self._harmful:
            return
        if digest() in self._harmful:
            raise HarmfulRequest("a request that asks the same crashed an engine twice; it is refused for an hour")
        if (harmful := [*self._harmful.values()].count(owner)) >= MAX_HARMFUL:
            raise HarmfulRequest(
                f"{harmful} requests of this client crashed an engine twice each; its requests are refused for an hour"
            )

    @contextmanager
    def request(self, search_id: str, owner: str, asked: Callable[[str], bytes]) -> Iterator[None]:
        """Context of one request. ``owner``, ``asked``: see `check`.

        Raises:
            HarmfulRequest: see `check`.
        """
        digest = cache(partial(asked, owner))
        self._check(owner, digest)
        known = bool(self._suspected) and digest() in self._suspected
        request = self._requests[search_id] = _WatchedRequest(owner, digest, known)
        finished = False
        try:
            yield
            finished = True
        finally:
            del self._requests[search_id]
            self._other_ended = time.monotonic()
            # Blame is remembered when it arises.
            if request.suspected and not request.blamed and (finished or not request.known):
                self._suspected.pop(digest(), None)
            elif not finished and digest() not in self._harmful:
                self._left.append((search_id, digest()))

    def standing(self, search_id: str, pool: str) -> Standing:
        """What is held against a request at a pool. A new one if the request is not under way.

        Raises:
            HarmfulRequest: a request that asks the same was found harmful meanwhile.
        """
        request = self._requests.get(search_id)
        if request is None:
            return Standing()
        self._check(request.owner, request.digest)
        standing = request.standings.get(pool)
        if standing is None:
            standing = request.standings[pool] = Standing(apart_for_good=request.known)
        return standing

    def others_idle_s(self, search_id: str) -> float:
        """Seconds since another request was last under way."""
        return time.monotonic() - self._other_ended if self._requests.keys() <= {search_id} else 0.0

    def blame(self, search_id: str, standing: Standing) -> None:
        """An engine died with work of a request in its batch, and work of others. The second time the request stays
        apart: perhaps it ends engines only in company."""
        standing.deaths += 1
        standing.owed += 1
        standing.apart_for_good = standing.apart_for_good or standing.deaths > 1
        if (request := self._requests.get(search_id)) is not None:
            self._suspected[request.digest()] = True

    def heard(self, words: Collection[str]) -> None:
        """Takes note of which searches had requests at an engine that died. A client may have left before."""
        for search_id, digest in self._left:
            if search_id in words:
                self._suspected[digest] = True

    def found_harmful(self, search_id: str) -> HarmfulRequest:
        """Remembers that a request is harmful. Returns its error."""
        digest = b""
        if (request := self._requests.get(search_id)) is not None:
            digest = request.digest()
            self._harmful[digest] = request.owner
            self._suspected.pop(digest, None)
        logger.error(
            "request %s crashed an engine twice, the second time alone; requests that ask the same are refused "
            "for %g s (%s)",
            search_id,
            REMEMBERED_S,
            digest.hex(),
        )
        self._on_harmful()
        return HarmfulRequest("this request crashed an engine twice")

    def check_integrity(self) -> list[str]:
        """Requests that are still open, when none is at work."""
        return [f"request {search_id} is still registered" for search_id in self._requests]


def digest_of(owner: str, kind: str, prompts: Sequence[Sequence[int]], *more: object) -> bytes:
    """The digest of what a request asks.

    Args:
        kind: the kind of request.
        prompts: token ids.
        more: everything else that an engine reads of it.
    """
    digest = hashlib.blake2b(repr((owner, kind, *map(len, prompts), *more)).encode(), digest_size=16)
    for prompt in prompts:
        digest.update(array("q", prompt).tobytes())
    return digest.digest()
