"""The two interfaces a search depends on: a generator, which writes steps, and a scorer, which scores them.

The deployments implement them over Ray Serve handles, the benchmarks over engines in the same process, the unit tests
over plain dictionaries. Values here cross process boundaries: keep them small, immutable and picklable.
"""

import hashlib
from collections.abc import AsyncIterator, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeAlias

from search.answers.checks import Checks
from search.token_beam import BeamSequence, TokenBeamSettings
from search.tree import NodeId, Step


class Lane(StrEnum):
    """The priority of a call in a replica's queue."""

    FIRST_STEPS = "first_steps"
    """First steps of a new search. They go before later steps of searches that have had as many turns."""
    DEMAND = "demand"
    """All other calls: later steps of a search, and scoring."""
    FLEX_FIRST_STEPS = "flex_first_steps"
    """As `FIRST_STEPS`, of a flex search, which yields to other searches."""
    FLEX_DEMAND = "flex_demand"
    """As `DEMAND`, of a flex search."""

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
    """Where the generator stops writing."""

    STEP = "step"
    """Up to the next step delimiter."""
    SOLUTION = "solution"
    """Up to the end of the sequence; the text is then split into steps."""


class Sampling(NamedTuple):
    """Sampling parameters, the same for every step of a search."""

    temperature: float = 0.8
    top_p: float = 1.0
    top_k: int = 0
    """Number of most likely tokens to sample from; 0: all."""
    min_p: float = 0.0
    """Minimum probability of a token, as a share of the most likely token's probability."""


class Branch(NamedTuple):
    """One child to write: its index below the parent, its own seed, its token limit."""

    index: int  # type: ignore[assignment]  # the field's own word, over tuple.index
    seed: int
    max_tokens: int


class ExpandItem(NamedTuple):
    """The branches requested below one node."""

    parent: NodeId
    prefix: tuple[int, ...]
    """Token ids of prompt and path, which every branch continues; empty where the generator takes text."""
    branches: tuple[Branch, ...]
    least: int = 1
    """Number of required branches, the first of ``branches``: they wait for KV memory and are always written. The
    replica may give back the others: see `Child`."""
    solution: int = 0
    """Number of tokens in ``prefix`` before the path's solution: those of prompt and thought. Only for a tool."""
    room: int = 0
    """Most tokens behind ``prefix``, given ones included. Only for a tool."""
    messages: str = ""
    """The prompt's chat as JSON, where the generator takes text (`search.prompt.Prompt`)."""
    text: str = ""
    """The text of the path behind it."""


class Ahead(NamedTuple):
    """What a replica has to know to write children of this call's steps before the search asks for them: all from
    which their seeds and lengths follow. Nobody depends on whether it does."""

    seed: int
    """The search's seed; see `branch_seed`."""
    children: int
    """Children that a step may expect in the next round for each time that it was written."""
    most_children: int
    """Most children that it may get."""
    step_tokens: int
    """Most tokens of a step."""
    path_tokens: int
    """Most tokens of prompt and path, thoughts excluded."""
    max_depth: int
    """Most steps of a path."""
    merges: bool
    """Whether the search merges siblings of the same text, and only asks for children of the first of them."""
    thoughts: tuple[tuple[NodeId, str], ...] = ()
    """Parents whose paths end in a thought, each with its mark: a box in a thought ends no path."""
    thought_tokens: tuple[tuple[NodeId, int], ...] = ()
    """Parents whose paths have thoughts, each with its number of tokens, which ``path_tokens`` does not count."""
    context_tokens: int = 0
    """Most tokens of prompt and path where there are thoughts."""


class ThoughtRequest(NamedTuple):
    """How the branches below the root think, before the solution that the stop condition asks for."""

    opened: bool
    """Whether the prompt ends in an open thought."""
    max_tokens: int
    """Most tokens of a thought."""
    closes: bool
    """Whether a thought with so many tokens is closed, and the solution follows; otherwise the path ends in it."""
    solution_tokens: int
    """Most tokens behind the thought. ``Branch.max_tokens`` bounds both together."""

    def is_apart(self, holds_solution: bool) -> bool:
        """Whether the thought of a whole solution is generated by a request of its own, before the solution's:
        something is to follow it that the model does not write, or that holds for the solution alone, such as a
        schema or a tool."""
        return self.closes or holds_solution


class ToolRequest(NamedTuple):
    """How the programs that branches write are run: those of one path one after another, with the variables of the
    earlier ones."""

    calls: int
    """Most programs of a path that are run."""
    seconds: float
    """Time limit of one program."""
    memory_bytes: int
    """Memory limit of a path's programs."""
    output_chars: int
    """Most characters of an output that the model is given."""
    function: str = ""
    """An async function, as ``package.module:function``, that runs them; empty: the sandbox."""


class ToolUse(NamedTuple):
    """What became of the programs in one branch."""

    calls: int = 0
    """Programs that the model closed."""
    errors: int = 0
    """Number of them that failed, for whatever reason."""
    limits: int = 0
    """Number of them that met the time limit."""
    tokens: int = 0
    """Tokens of their outputs, which the model was given."""


NO_TOOL_USE = ToolUse()


class AheadSamples(NamedTuple):
    """What a replica has to know to write solutions of later rounds of this search before it asks for them, as `Ahead`
    for single steps."""

    seed: int
    """As in `Ahead`."""
    first: int
    """Index below the root of the first solution that this call does not ask for."""
    number: int
    """Number of solutions that the search may still ask for, from ``first`` on."""
    tokens: int
    """Most tokens of a solution."""


class ExpandRequest(NamedTuple):
    """All branches that a search requests from one generator replica in one call. Without any, it says that the search
    asks for nothing more: what was written ahead for it is given up, and its tokens are in the one group of the
    reply."""

    search_id: str
    expansions: tuple[ExpandItem, ...]
    sampling: Sampling
    stop_condition: StopCondition
    lane: Lane
    deadline_s: float
    """Seconds from now after which the caller no longer needs the reply."""
    logprobs: bool = False
    """Whether steps come with the log-probability of each token."""
    cache_salt: str = ""
    """Only requests with the same salt may reuse cache entries of this one."""
    model: str = ""
    """The model to write with; empty: the replica's own. A replica refuses any other model."""
    json_schema: str = ""
    """A JSON schema, as JSON, that what is written satisfies unless a limit cuts it off; empty: any text. Only for
    whole solutions from the root."""
    ahead: Ahead | AheadSamples | None = None
    """For writing children ahead; None: there are none to expect."""
    thought: ThoughtRequest | None = None
    """Where the generator thinks: its thoughts are no steps (`search.tree.Step.thought`); None: they are cut like any
    other text. With a ``json_schema``, the text behind the thought satisfies it."""
    tool: ToolRequest | None = None
    """Where programs are run: each is part of its step, with its output behind it; None: they are text as any other."""
    counts_unfinished: bool = False
    """Whether groups say how many tokens the unfinished branches have at least (`ChildGroup.unfinished_tokens`). They
    come more often then."""


class Child(NamedTuple):
    """A branch that has been written. Without steps it is a branch that the replica gave back: there was no KV memory
    for it, and this call will not write it."""

    parent: NodeId
    index: int  # type: ignore[assignment]
    steps: tuple[Step, ...]
    """One step, or all steps of a whole solution in order; empty if the branch was given back."""
    cached_tokens: int
    """Prefix tokens whose KV came from a cache, this replica's own or LMCache."""
    waited: bool = False
    """Whether it had to wait for KV memory."""
    ahead: bool = False
    """Whether the replica had begun it before it was asked for."""
    tool: ToolUse = NO_TOOL_USE
    prefix_tokens: int | None = None
    """Tokens of its prefix, prompt included, where they are counted by a server that encodes it; None: the item's."""
    estimated: bool = False
    """Whether numbers of its tokens are estimates: the server has not told them."""


class Headroom(NamedTuple):
    """Free KV memory and load of a replica, reported with every reply."""

    free_blocks: int
    """KV blocks that no branch holds or has reserved."""
    total_blocks: int
    running: int
    waiting: int
    """Branches in the replica's queue and in the engine's."""


class ChildGroup(NamedTuple):
    """Children that were finished at about the same time."""

    children: tuple[Child, ...]
    headroom: Headroom | None = None
    unused_tokens: int = 0
    """Tokens written ahead for this search and given up since the last group."""
    samples_ahead: int = 0
    """In the last group of a call: number of solutions of later rounds that the replica has begun. It begins no more
    until the next call."""
    unfinished_tokens: int = 0
    """If the call ``counts_unfinished``: least number of tokens of the branches that have not arrived with this group
    or before. 0: nothing is known."""


class ScoreItem(NamedTuple):
    """A path whose last ``unscored`` steps need a reward; the steps before already have one."""

    steps: tuple[str, ...]
    """Texts of all steps from the first, delimiters included."""
    unscored: int = 1
    ended: bool = False
    """Whether the path ends with the last step."""


class ScoreRequest(NamedTuple):
    """Paths of one search to be scored in one call."""

    search_id: str
    question: str
    items: tuple[ScoreItem, ...]
    deadline_s: float
    """As in `ExpandRequest`."""
    cache_salt: str = ""
    """As in `ExpandRequest`."""
    lane: Lane = Lane.DEMAND
    checks: Checks | None = None
    """Where the answer is a program: what it has to pass; None: the question asks for no program."""


class TokenBeamRequest(NamedTuple):
    """Token-level beam search over some prompts, on one generator replica."""

    search_id: str
    prompts: tuple[tuple[int, ...], ...]
    settings: TokenBeamSettings
    deadline_s: float
    """As in `ExpandRequest`."""
    cache_salt: str = ""
    """As in `ExpandRequest`."""
    lane: Lane = Lane.DEMAND


PortRequest: TypeAlias = ExpandRequest | ScoreRequest | TokenBeamRequest


class WrittenSequence(NamedTuple):
    """One of a prompt's best continuations."""

    text: str
    """Without special tokens."""
    sequence: BeamSequence


class TokenBeamReply(NamedTuple):
    """The result of a token-level beam search."""

    prompts: tuple[tuple[WrittenSequence, ...], ...]
    """For each prompt its best continuations, the best first."""
    generated_tokens: int
    """Tokens that the engine generated for all prompts: one per beam and iteration."""
    recomputed_tokens: int = 0
    """Tokens that the engine computed again for them, where the call skips the prefix cache."""


class Generator(Protocol):
    """Writes steps."""

    def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
        """Streams the finished children in groups; ends when every branch was written or given back.

        Closing the iterator aborts the unfinished branches. Each branch comes exactly once. All branches that are given
        back come in the first group.

        Raises:
            GeneratorError: no replica could write the missing branches.
        """
        ...


class StepScorer(Protocol):
    """Scores steps."""

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        """For each item its ``unscored`` rewards in [0, 1], in order.

        Raises:
            ScorerError: the scorer gave no usable rewards.
        """
        ...


def branch_seed(search_seed: int, parent: NodeId, index: int) -> int:
    """The sampling seed of child ``index`` of ``parent``: a hash of the three arguments.

    Returns a non-negative 63-bit integer, as torch and vLLM require.
    """
    name = f"{search_seed}:{'.'.join(map(str, parent))}:{index}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1
