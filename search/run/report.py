"""What a search tells while it runs and what it hands back in the end."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from search.answers.voting import AnswerSelection
from search.tree import NodeId, SearchTree


class StopReason(StrEnum):
    """Why a search ended. All but ``finished`` leave a partial answer."""

    FINISHED = "finished"
    """The strategy had all that it wanted."""
    TOKENS = "tokens"
    """The token budget could not pay for another step."""
    NODES = "nodes"
    """The node budget could not pay for another step."""
    SECONDS = "seconds"
    """The wall clock ran out."""
    GENERATOR_ERROR = "generator_error"
    """The generator failed on every replica; the candidates had until then answer."""


def _is_none(figure: int | None) -> bool:
    return figure is None


class SearchCost(BaseModel):
    """What a search cost. The one place where a figure is declared and counted: the runner counts here while the search
    runs; the log, the traces and a key's quota read it; it travels as it is into the reply, and from there through the
    client into the rows and the means of an evaluation.

    Every figure has a default, so that a client understands an endpoint that does not know it yet. Those of KV usage
    are None, and left out of a dump, unless the search was to report them (``kv_usage`` of its settings).
    """

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    nodes: int = 0
    """Nodes in the tree, the root not counted."""
    written_steps: int = 0
    """Of ``nodes``, those that were written."""
    repeated_steps: int = 0
    """Of ``nodes``, those that repeat a sibling: the same text, written again."""
    expand_calls: int = 0
    """Calls to the generator."""
    prm_calls: int = 0
    """Calls to the scorer, failed ones included."""
    scored_steps: int = 0
    """Steps that were given a reward, neutral ones included."""
    generated_tokens: int = 0
    """Tokens of all branches that arrived, pruned ones included. What the generator had written of
    branches that were given up before they arrived is known only to the generator."""
    answer_tokens: int = 0
    """Tokens of the answering path."""
    prefix_tokens: int = 0
    """Prefix lengths summed over the branches that arrived: what would be computed without a cache."""
    cached_tokens: int = 0
    """Of ``prefix_tokens``, those whose KV came from a cache."""
    root_cached_tokens: int = 0
    """Most cached prompt tokens of any child of the root: what was known before the search began."""
    given_back_branches: int = 0
    """Children that were asked for and that the generator gave back for want of KV memory (``clamp: shrink``)."""
    waiting_branches: int = 0
    """Children that had to wait for KV memory at the generator."""
    least_headroom: float = 1.0
    """The least share of its KV memory that a generator replica had free when it told; 1 where none did."""
    kv_tokens_peak: int | None = Field(None, exclude_if=_is_none)
    """Most tokens whose KV the branches under way needed at a time, each distinct path of tokens once, as a cache of
    prefixes holds it (`search.run.kv_usage`)."""
    kv_tokens_sum: int | None = Field(None, exclude_if=_is_none)
    """The same summed over all rounds: how much was held for how long."""
    kv_node_tokens_peak: int | None = Field(None, exclude_if=_is_none)
    """As ``kv_tokens_peak``, each node for itself, as ETS counts: siblings that were written alike count twice."""
    kv_node_tokens_sum: int | None = Field(None, exclude_if=_is_none)
    """The same summed over all rounds."""
    seconds: float = 0.0
    """From the start to the choice of the answer."""


@dataclass(frozen=True)
class SearchOutcome:
    """A search that ended with an answer, whole or partial."""

    search_id: str
    seed: int
    """The seed in force: the one asked for, or the one drawn."""
    tree: SearchTree
    selection: AnswerSelection
    text: str
    """The answering path: its steps' texts joined, up to the first text of ``stop``."""
    stop_reason: StopReason
    degraded: bool
    """Whether the tree has neutral rewards that stand in for what the scorer did not give, also from before it was
    saved."""
    cost: SearchCost

    @property
    def stopped(self) -> bool:
        """Whether a text of ``stop`` ended the answering text."""
        return self.text != self.selection.node.text

    @property
    def partial(self) -> bool:
        """Whether the search ended before its strategy was done."""
        return self.stop_reason is not StopReason.FINISHED


class SearchStarted(NamedTuple):
    """The first event of a search."""

    search_id: str
    strategy: str
    seed: int


class RoundStarted(NamedTuple):
    """The strategy has decided, and what it wants is asked for now."""

    number: int
    """From 1."""
    branches: int
    """Children that are asked for."""


class StepScored(NamedTuple):
    """A step is complete. Each step that was written and has its reward is exactly one of these, also one that repeats
    a sibling; which of these stands for their text is decided by their ids, not by which came first."""

    node: NodeId
    reward: float | None
    """The step's own reward in [0, 1]; None where the strategy asks for none."""
    score: float | None
    """The score of the path that ends here; None like the reward."""
    text: str
    """The text of this step alone."""
    tokens: int
    """Tokens generated by the search so far."""
    nodes: int
    """Nodes asked for by the search so far."""
    terminal: bool


class SearchFinished(NamedTuple):
    """The last event of a search that ended with an answer."""

    outcome: SearchOutcome


SearchEvent = SearchStarted | RoundStarted | StepScored | SearchFinished
EventSink = Callable[[SearchEvent], None]
"""Called from within the search, in order; it must not block. What it raises ends the search."""
