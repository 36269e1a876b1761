"""All that a search needs from the world: something that writes steps and something that scores them.

The deployments implement these over Ray Serve handles, the benchmarks over engines in the same
process, the unit tests over plain dictionaries. Values here cross process boundaries: keep them small,
immutable and picklable.
"""

import hashlib
from collections.abc import AsyncIterator, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from search.token_beam import BeamSequence, TokenBeamSettings
from search.tree import NodeId, Step


class Lane(StrEnum):
    """The priority of a call in a replica's queue."""

    FIRST_STEPS = "first_steps"
    """First steps of a new search: before later steps of searches that have had as many turns."""
    DEMAND = "demand"
    FLEX_FIRST_STEPS = "flex_first_steps"
    """As `FIRST_STEPS`, of a flex search: one that yields to others."""
    FLEX_DEMAND = "flex_demand"

    @property
    def first_steps(self) -> bool:
        return self in (Lane.FIRST_STEPS, Lane.FLEX_FIRST_STEPS)

    @property
    def flex(self) -> bool:
        return self in (Lane.FLEX_DEMAND, Lane.FLEX_FIRST_STEPS)

    @classmethod
    def of(cls, first_steps: bool, flex: bool) -> "Lane":
        if flex:
            return cls.FLEX_FIRST_STEPS if first_steps else cls.FLEX_DEMAND
        return cls.FIRST_STEPS if first_steps else cls.DEMAND


class StopCondition(StrEnum):
    """How far the generator writes before it hands back."""

    STEP = "step"
    """Up to the next step delimiter."""
    SOLUTION = "solution"
    """Up to the end of the sequence, cut into steps afterwards."""


class Sampling(NamedTuple):
    """How tokens are drawn, the same for every step of a search."""

    temperature: float = 0.8
    top_p: float = 1.0
    top_k: int = 0
    """Only the likeliest so many tokens; 0: all."""
    min_p: float = 0.0
    """Only tokens whose chance is at least this part of the likeliest one's."""


class Branch(NamedTuple):
    """One child to be written: its index below the parent and the seed that is its alone."""

    index: int  # type: ignore[assignment]  # the field's own word, over tuple.index
    seed: int
    max_tokens: int


class ExpandItem(NamedTuple):
    """The children wanted below one node."""

    parent: NodeId
    prefix: tuple[int, ...]
    """Token ids of prompt and path, what every child continues."""
    branches: tuple[Branch, ...]
    least: int = 1
    """The number of them, the first ones, that are written in any case and wait for KV memory where there is none. The
    replica may give back the others: see `Child`."""


class ExpandRequest(NamedTuple):
    """All that one search needs now from one generator replica, in one call."""

    search_id: str
    expansions: tuple[ExpandItem, ...]
    sampling: Sampling
    stop_condition: StopCondition
    lane: Lane
    deadline_s: float
    """Seconds from now after which the caller no longer wants the answer."""
    logprobs: bool = False
    """Whether steps come with their log-probabilities, token by token."""
    cache_salt: str = ""
    """What this leaves in caches serves requests of the same salt only."""
    model: str = ""
    """The model that writes them; empty: whichever the replica has. A replica refuses any but its own."""
    avoid: tuple[str, ...] = ()
    """Replicas at which the same has failed already: another one should get it."""
    attempt: int = 1
    """Above 1: earlier calls for these branches were interrupted."""


class Child(NamedTuple):
    """A branch that has been written, or, without steps, one that the replica gave back: there was no KV memory for it,
    and the call never writes it."""

    parent: NodeId
    index: int  # type: ignore[assignment]
    steps: tuple[Step, ...]
    """One step, or all steps of a whole solution in order."""
    cached_tokens: int
    """Prefix tokens whose KV came from a cache, this replica's own or LMCache."""
    waited: bool = False
    """Whether it had to wait for KV memory."""


class Headroom(NamedTuple):
    """What a replica can still afford, sent along with every reply."""

    free_blocks: int
    """Blocks that no branch holds or has reserved."""
    total_blocks: int
    running: int
    waiting: int
    """Branches in the replica's queue and in the engine's."""


class ChildGroup(NamedTuple):
    """Children that were finished at about the same time."""

    children: tuple[Child, ...]
    headroom: Headroom | None = None


class ScoreItem(NamedTuple):
    """A path of which the last ``unscored`` steps want a reward; those before already have theirs."""

    steps: tuple[str, ...]
    """Texts of all steps from the first, delimiters included."""
    unscored: int = 1


class ScoreRequest(NamedTuple):
    """Paths of one search to be scored in one call."""

    search_id: str
    question: str
    items: tuple[ScoreItem, ...]
    deadline_s: float
    cache_salt: str = ""
    """What this leaves in caches serves requests of the same salt only."""
    lane: Lane = Lane.DEMAND
    avoid: tuple[str, ...] = ()
    """As of an `ExpandRequest`."""


class TokenBeamRequest(NamedTuple):
    """Token-level beam search over some prompts, on one generator replica."""

    search_id: str
    prompts: tuple[tuple[int, ...], ...]
    settings: TokenBeamSettings
    deadline_s: float
    cache_salt: str = ""
    """What this leaves in caches serves requests of the same salt only."""
    lane: Lane = Lane.DEMAND
    avoid: tuple[str, ...] = ()
    """As of an `ExpandRequest`."""


class WrittenSequence(NamedTuple):
    """One of a prompt's best continuations."""

    text: str
    """Without special tokens."""
    sequence: BeamSequence


class TokenBeamReply(NamedTuple):
    prompts: tuple[tuple[WrittenSequence, ...], ...]
    """For each prompt its best continuations, the best first."""
    generated_tokens: int
    """All that the engine generated for it: each beam a token at a time."""


class Generator(Protocol):
    """Writes steps."""

    def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
        """Streams the finished children in groups; ends when every branch was written.

        Closing the iterator aborts what is still being written. Each branch comes exactly once. Those that are given
        back are all in the first group.

        Raises:
            CallInterrupted: those that were not streamed should be asked for again now, in another attempt.
            GeneratorError: they could not be written anywhere.
        """
        ...


class StepScorer(Protocol):
    """Scores steps."""

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        """For each item its ``unscored`` rewards in [0, 1], in order.

        Raises:
            ScorerError: no usable rewards could be had.
        """
        ...


def branch_seed(search_seed: int, parent: NodeId, index: int) -> int:
    """The sampling seed of child ``index`` of ``parent``: a hash, so it depends on nothing else.

    Returns a non-negative 63-bit integer, what torch and vLLM take.
    """
    name = f"{search_seed}:{'.'.join(map(str, parent))}:{index}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1
