"""The answers of finished searches, for the same question, or for one that means the same.

Every controller has its own cache, in memory: it ends with the process, so no answer outlives the model, the prompt or
the settings that it came from.

A wrong hit is worse than none. So only complete answers are kept, and a question that means the same is answered only
within one conversation: same API key, same settings, identical earlier messages (the context chain of MeanCache,
arXiv 2403.02694), equal marks (`question_guard`), and vectors whose cosine reaches the threshold.
"""

import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from cachetools import TTLCache

from deployments.config import AnswerCacheSettings
from deployments.service.embedding import Embedder, Vector
from deployments.service.question_guard import marks_of
from search.run.report import ContextStarted, SearchOutcome, ShownEvent, StepScored, StepsPruned
from search.tools.import_path import imported_function
from search.tree import Node, NodeId, SearchTree, StepEnd

MAX_ENTRY_BYTES = 1 << 20
"""A search that takes more memory than this is not kept: giving it again would hold the event loop for milliseconds."""
MAX_QUESTION_CHARS = 2_000
"""A longer question is matched by its text alone: embeddings cut long texts, and a difference may be behind the cut."""
MAX_COMPARED = 1_024
"""Maximum number of entries, the newest, that one question is compared with."""
_ENTRY_BYTES = 4_096
_PART_BYTES = 512
"""About the memory of an entry, and of an event or a step in it, without texts and tokens."""
_TOKEN_BYTES = 72
"""About the memory of a token's id and its log-probability."""
_ID_BYTES = 96
"""About the memory of a node's id in an event."""
MAX_EVENTS = MAX_ENTRY_BYTES // _PART_BYTES
"""A search of more events is too large."""

"""The events that clients see."""


@dataclass(frozen=True)
class Question:
    """A question as the cache knows it."""

    digest: bytes
    """Of everything that the answer depends on."""
    context: bytes | None
    """Digest of everything but the text of the question: key, settings and earlier messages. None: no question that
    only means the same may be answered."""
    text: str

    @cached_property
    def bucket(self) -> bytes | None:
        """Digest of the context and the marks: only entries with the same may be compared. None: no others."""
        if self.context is None or len(self.text) > MAX_QUESTION_CHARS:
            return None
        return digest_of(self.context, marks_of(self.text))


@dataclass(frozen=True)
class CachedOutcome(SearchOutcome):
    """The outcome of an earlier search. Its tree has the paths of the answers alone."""

    asked: str
    """The question of that search."""
    similarity: float | None
    """Cosine of the two questions; None if they are the same."""


class Kept(NamedTuple):
    """An answer, with the events of its search."""

    question: Question
    vector: Vector | None
    """None: no other question finds this answer."""
    outcome: SearchOutcome
    events: tuple[ShownEvent, ...]
    size: int
    """About its memory, bytes."""

    def found(self, search_id: str, similarity: float | None = None) -> CachedOutcome:
        same = {each.name: getattr(self.outcome, each.name) for each in fields(SearchOutcome)}
        return CachedOutcome(**same | {"search_id": search_id}, asked=self.question.text, similarity=similarity)


class Match(NamedTuple):
    """An answer that was found, and the cosine by which; None: by the same question."""

    kept: Kept
    similarity: float | None


class _Entries(TTLCache[bytes, Kept]):
    """Entries by the digests of their questions: the least recently used one leaves first, each at its age."""

    def __init__(self, settings: AnswerCacheSettings, left: Callable[[Kept], None], timer: Callable[[], float]) -> None:
        super().__init__(settings.memory_bytes, settings.seconds, timer, getsizeof=lambda kept: kept.size)
        self._left = left

    def expire(self, time: float | None = None) -> list[tuple[bytes, Kept]]:
        expired = list(super().expire(time))
        for _, kept in expired:
            self._left(kept)
        return expired

    def popitem(self) -> tuple[bytes, Kept]:
        digest, kept = super().popitem()
        self._left(kept)
        return digest, kept


class AnswerCache:
    """The answers that one controller keeps. For use in one event loop."""

    def __init__(self, settings: AnswerCacheSettings, timer: Callable[[], float] = time.monotonic) -> None:
        self._entries = _Entries(settings, self._forget, timer)
        self._buckets: dict[bytes, dict[bytes, Kept]] = {}
        """The entries that a question may be compared with, the oldest first."""
        self._threshold = settings.threshold or 1.0
        self._embedder = (
            Embedder(imported_function(settings.embedding), settings.embedding_timeout_s)
            if settings.embedding
            else None
        )
        self.lookups = {"same": 0, "similar": 0, "miss": 0}
        """Number of lookups by what was found."""
        self.evictions = 0
        """Number of entries that left for want of memory, or of age."""

    @classmethod
    def of(cls, settings: AnswerCacheSettings | None) -> "AnswerCache | None":
        return None if settings is None else cls(settings)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def memory_bytes(self) -> int:
        """About the memory of all entries."""
        return int(self._entries.currsize)

    @property
    def embedding_failures(self) -> int:
        return self._embedder.failures if self._embedder else 0

    async def match(self, question: Question) -> tuple[Match | None, Vector | None]:
        """Returns the answer to a question, if one is known, and the question's vector, if it was computed."""
        if (same := self._entry(question)) is not None:
            self.lookups["same"] += 1
            return Match(same, None), None
        vector = await self.vector_of(question)
        similar = None if vector is None else self._similar(question, vector)
        self.lookups["miss" if similar is None else "similar"] += 1
        return similar, vector

    async def vector_of(self, question: Question) -> Vector | None:
        """Returns the vector of a question; None if it may be compared with no other one, or the function failed."""
        if self._embedder is None or question.bucket is None:
            return None
        return await self._embedder.vector_of(question.text)

    def keep(
        self, question: Question, vector: Vector | None, outcome: SearchOutcome, events: Sequence[ShownEvent]
    ) -> None:
        """Keeps an answer, if it is complete and not too large, in place of an earlier one."""
        if not is_complete(outcome) or len(events) > MAX_EVENTS:
            return
        slim = _answers_alone(outcome)
        size = _bytes_of(slim, events, question, vector)
        if size > min(MAX_ENTRY_BYTES, self._entries.maxsize):
            return
        if (earlier := self._entry(question)) is not None:
            self._take_from_bucket(earlier)
        self._entries[question.digest] = kept = Kept(question, vector, slim, tuple(events), size)
        if vector is not None and question.bucket is not None:
            self._buckets.setdefault(question.bucket, {})[question.digest] = kept

    def check_integrity(self) -> list[str]:
        """A sentence if other answers can be compared than are kept; empty when all is well."""
        self._entries.expire()
        compared = {digest for bucket in self._buckets.values() for digest in bucket}
        kept = {digest for digest, each in self._entries.items() if each.vector is not None}
        return [] if compared == kept else [f"{len(compared ^ kept)} answers are compared or kept, not both"]

    def close(self) -> None:
        if self._embedder is not None:
            self._embedder.close()

    def _entry(self, question: Question) -> Kept | None:
        try:  # Not `get`, which asks twice whether the entry has expired.
            return self._entries[question.digest]
        except KeyError:
            return None

    def _similar(self, question: Question, vector: Vector) -> Match | None:
        self._entries.expire()
        bucket = self._buckets.get(question.bucket or b"", {})
        newest = list(islice(reversed(bucket.values()), MAX_COMPARED))
        cosines = [0.0 if kept.vector is None else float(kept.vector @ vector) for kept in newest]
        if not cosines or (highest := max(cosines)) < self._threshold:
            return None
        found = newest[cosines.index(highest)]
        self._entry(found.question)  # As a use of the entry.
        return Match(found, min(1.0, highest))

    def _forget(self, kept: Kept) -> None:
        self.evictions += 1
        self._take_from_bucket(kept)

    def _take_from_bucket(self, kept: Kept) -> None:
        name = kept.question.bucket if kept.vector is not None else None
        if name is not None and (bucket := self._buckets.get(name)) is not None:
            bucket.pop(kept.question.digest, None)
            if not bucket:
                del self._buckets[name]


def digest_of(*parts: object) -> bytes:
    """SHA-256 of the parts, which have the same ``repr`` exactly if they are equal."""
    return hashlib.sha256(repr(parts).encode()).digest()


def is_complete(outcome: SearchOutcome) -> bool:
    """Whether the same search would give no better answer: it was not cut off, and no failure and no shortage had a
    part in it."""
    node = outcome.selection.node
    ended = outcome.stopped or (node.step is not None and node.step.end is StepEnd.END_OF_SEQUENCE)
    return not (
        outcome.partial
        or outcome.degraded
        or outcome.selection.unread
        or outcome.cost.given_back_branches
        or not (ended or outcome.selection.answer is not None)
    )


def _answers_alone(outcome: SearchOutcome) -> SearchOutcome:
    """The outcome with the paths of its answers in place of the whole tree."""
    tree = SearchTree(outcome.seed)
    tree.stop, tree.prefill, tree.open_thought = outcome.tree.stop, outcome.tree.prefill, outcome.tree.open_thought
    tree.answers_without_thought = outcome.tree.answers_without_thought
    copies: dict[NodeId, Node] = {(): tree.root}

    def copy_of(node: Node) -> Node:
        for each in node.path:
            if each.id not in copies:
                copies[each.id] = Node(
                    each.id,
                    copies.get(each.id[:-1], tree.root),  # Of a context only its paths are kept.
                    status=each.status,
                    step=each.step,
                    hook=each.hook,
                )
        return copies[node.id]

    selection = outcome.selection
    groups = tuple(group._replace(best=copy_of(group.best)) for group in selection.groups)
    return replace(outcome, tree=tree, selection=selection._replace(node=copy_of(selection.node), groups=groups))


def _bytes_of(outcome: SearchOutcome, events: Sequence[ShownEvent], question: Question, vector: Vector | None) -> int:
    """About the memory that an answer takes."""
    ends = [outcome.selection.node, *(group.best for group in outcome.selection.groups)]
    steps = {node.id: node.step for end in ends for node in end.path if node.step is not None}
    texts = [question.text, *(step.text for step in steps.values())]
    scored = [event for event in events if isinstance(event, StepScored)]
    texts += [text for event in scored for text in (event.text, event.hook.text if event.hook else "")]
    parts = len(steps) + len(outcome.selection.groups) + len(events)
    tokens = sum(step.size for step in steps.values())
    ids = sum(map(_ids_in, events))
    plain = _ENTRY_BYTES + _PART_BYTES * parts + _TOKEN_BYTES * tokens + _ID_BYTES * ids
    return plain + sum(map(sys.getsizeof, texts)) + (0 if vector is None else vector.nbytes)


def _ids_in(event: ShownEvent) -> int:
    """Number of node ids in an event."""
    if isinstance(event, StepsPruned):
        return len(event.pruned)
    return len(event.sources if isinstance(event, ContextStarted) else event.repeated_by)
