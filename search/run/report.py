"""The events that a search emits, its cost, and its outcome."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from search.answers.voting import AnswerSelection
from search.rewards import ScoringCost
from search.tree import NO_THOUGHT, HookEffect, Node, NodeId, NodeStatus, SearchTree, Span, StepEnd, Thought


class StopReason(StrEnum):
    """Why a search ended. See `SearchOutcome.partial`."""

    FINISHED = "finished"
    """The strategy was done."""
    TOKENS = "tokens"
    """The token budget was too small for another step. What it kept for one path has finished that path, if it was
    enough."""
    NODES = "nodes"
    """The node budget was too small for another step."""
    SECONDS = "seconds"
    """The wall clock ran out."""
    GENERATOR_ERROR = "generator_error"
    """The generator failed on every replica; the answer comes from the candidates found until then."""


def _is_none(figure: float | None) -> bool:
    return figure is None


def _is_zero(figure: int) -> bool:
    return figure == 0


class SearchCost(BaseModel):
    """What a search cost. The one place where a cost figure is declared: the runner updates it during the search; the
    log, the traces and API key quotas read it; it is sent unchanged in the reply, and from there through the client
    into the rows and means of an evaluation.

    Every figure has a default, so that a client can read the reply of an older endpoint without it. The KV figures are
    None, and left out of a dump, unless the settings ask for them (``kv_usage``); so are prices that nobody named.
    Figures of thinking, of wandering and of the step hook that are 0 are left out of a dump. The bill, what the search
    cost beside one sample, is known at its end.
    """

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    nodes: int = 0
    """Nodes in the tree, the root not counted."""
    written_steps: int = 0
    """Number of ``nodes`` that were written."""
    repeated_steps: int = 0
    """Number of ``nodes`` that repeat a sibling: the same text, written again."""
    wandering_paths: int = Field(0, exclude_if=_is_zero)
    """Paths that the strategy ended because they wandered (`search.strategies.levels.beam_search`)."""
    expand_calls: int = 0
    """Calls to the generator."""
    prm_calls: int = 0
    """Calls to the scorer, failed ones included."""
    prm_recomputed_tokens: int = 0
    """Tokens of scored paths, in whole blocks, that the reward model had computed for earlier steps and had in no cache
    any more."""
    prm_prompt_tokens: int = 0
    """Tokens of the prompts that the reward model read, cached ones included."""
    prm_cached_tokens: int = 0
    """Number of ``prm_prompt_tokens`` whose KV came from the reward model's prefix cache."""
    prm_generated_tokens: int = 0
    """Tokens of the critiques that a generative reward model wrote. They are not among ``generated_tokens``."""
    prm_critiques: int = 0
    """Critiques that it wrote, whole or cut off."""
    prm_cut_critiques: int = 0
    """Critiques that the budget of tokens, the context or the deadline cut off."""
    scored_steps: int = 0
    """Steps that received a reward, neutral ones included."""
    generated_tokens: int = 0
    """Tokens of all branches that arrived, pruned ones included. Tokens of branches that were aborted before they
    arrived are known only to the generator."""
    thinking_tokens: int = Field(0, exclude_if=_is_zero)
    """Number of ``generated_tokens`` that are thinking."""
    answer_tokens: int = 0
    """Generated tokens of the answering path."""
    prefix_tokens: int = 0
    """Prefix tokens summed over the branches that arrived: the prefill work without any cache."""
    cached_tokens: int = 0
    """Number of ``prefix_tokens`` whose KV came from a cache."""
    root_cached_tokens: int = 0
    """Most cached prompt tokens of any child of the root: tokens cached before the search began."""
    contexts: int = Field(0, exclude_if=_is_zero)
    """Contexts that were begun: prompts that show the model other solutions."""
    context_prompt_tokens: int = Field(0, exclude_if=_is_zero)
    """Tokens of their prompts, each once."""
    unread_sources: int = Field(0, exclude_if=_is_zero)
    """Solutions that were left out of these prompts because the context length has no room for them."""
    given_back_branches: int = 0
    """Branches that the generator gave back for lack of KV memory (``clamp: shrink``)."""
    waiting_branches: int = 0
    """Branches that waited for KV memory at the generator."""
    ahead_branches: int = 0
    """Branches that the generator had begun before the search asked for them."""
    unused_tokens: int = 0
    """Tokens that the generator wrote ahead for this search and nobody asked for: of steps, but for those of its last
    round; of whole solutions, all. They are not among ``generated_tokens``."""
    hook_calls: int = Field(0, exclude_if=_is_zero)
    """Calls of the step hook that ended, failed ones included."""
    hook_tokens: int = Field(0, exclude_if=_is_zero)
    """Tokens that the step hook added: generated by no model, and not among ``generated_tokens``."""
    hook_failures: int = Field(0, exclude_if=_is_zero)
    """Calls of the step hook that failed."""
    unhooked_steps: int = Field(0, exclude_if=_is_zero)
    """Steps of whole solutions, for which the step hook was not called although there is one."""
    tool_calls: int = Field(0, exclude_if=_is_zero)
    """Programs that the branches wrote to be run."""
    tool_errors: int = Field(0, exclude_if=_is_zero)
    """Number of them that failed."""
    tool_limits: int = Field(0, exclude_if=_is_zero)
    """Number of them that met their time limit: the search is degraded, because another run of it may differ."""
    tool_tokens: int = Field(0, exclude_if=_is_zero)
    """Tokens of the outputs that the model was given. They are not among ``generated_tokens``."""
    estimated_branches: int = Field(0, exclude_if=_is_zero)
    """Branches whose numbers of tokens are estimates, because the generator's server did not tell them."""
    least_headroom: float = 1.0
    """Lowest share of free KV memory reported by a generator replica; 1 if none reported."""
    kv_tokens_peak: int | None = Field(None, exclude_if=_is_none)
    """Most tokens whose KV the branches in flight needed at one time, common prefixes once, as a prefix cache holds
    them (`search.run.kv_usage`)."""
    kv_tokens_sum: int | None = Field(None, exclude_if=_is_none)
    """The same summed over all rounds: KV tokens times rounds held."""
    kv_node_tokens_peak: int | None = Field(None, exclude_if=_is_none)
    """As ``kv_tokens_peak``, but the tokens of every node count, as in ETS: siblings of the same text count twice."""
    kv_node_tokens_sum: int | None = Field(None, exclude_if=_is_none)
    """``kv_node_tokens`` summed over all rounds."""
    seconds: float = 0.0
    """Wall clock from the start to the selection of the answer."""
    read_tokens: int = 0
    """The bill: tokens that the models read, those from caches left out: ``prefix_tokens`` and ``prm_prompt_tokens``
    less the cached ones of each."""
    written_tokens: int = 0
    """The bill: tokens that the models wrote: ``generated_tokens``, ``unused_tokens`` and ``prm_generated_tokens``."""
    prompt_tokens: int = 0
    """What one sample would have read: the prompt, once and without a cache."""
    sample_tokens: float = 0.0
    """What one sample would have written: the mean of the paths that voted (`search.run.bill`)."""
    sample_seconds: float = 0.0
    """The time that one sample would have taken: ``sample_tokens`` at the pace of this search's branches, each from the
    request of its call to its arrival. Not counted: scoring, and voting."""

    price: float | None = Field(None, exclude_if=_is_none)
    """The bill: what the tokens cost by the operator's prices (`search.run.bill.Prices`); None where there are none."""
    sample_price: float | None = Field(None, exclude_if=_is_none)
    """What one sample would have cost; None where the generator has no price."""

    def add_scoring(self, cost: ScoringCost) -> None:
        """Adds the cost of one call to the scorer."""
        for name, figure in vars(cost).items():
            setattr(self, f"prm_{name}", getattr(self, f"prm_{name}") + figure)

    def add_up(self) -> None:
        """Computes the figures of the bill that are sums of others."""
        cached = self.cached_tokens + self.prm_cached_tokens
        self.read_tokens = self.prefix_tokens + self.prm_prompt_tokens - cached
        self.written_tokens = self.generated_tokens + self.unused_tokens + self.prm_generated_tokens

    @property
    def bill(self) -> str:
        """What the search cost beside one sample, in a line."""
        price = "" if self.price is None else f", price {self.price:.4g}"
        sample_price = "" if self.sample_price is None else f", price {self.sample_price:.4g}"
        return (
            f"{self.written_tokens:,.0f} tokens written and {self.read_tokens:,.0f} read in {self.seconds:.1f} s{price}"
            f"; one sample: {self.sample_tokens:,.0f} and {self.prompt_tokens:,.0f} in {self.sample_seconds:.1f} s"
            f"{sample_price}"
        )


@dataclass(frozen=True)
class SearchOutcome:
    """A search that ended with an answer, whole or partial."""

    search_id: str
    seed: int
    """The seed in use: from the settings, or drawn at random."""
    tree: SearchTree
    selection: AnswerSelection[Node]
    text: str
    """Text of the answering path, up to the first stop text."""
    stop_reason: StopReason
    degraded: bool
    """Whether the tree has neutral rewards, or steps for which the step hook failed, including those from before it was
    saved; or a program of this search met its time limit."""
    cost: SearchCost

    @property
    def stopped(self) -> bool:
        """Whether a stop text cut the answering text."""
        return self.text != self.selection.node.text

    @property
    def ended(self) -> bool:
        """Whether the answering path came to an end of its own: the model's, an answer, or a stop text."""
        node = self.selection.node
        if node.status is not NodeStatus.TERMINAL or node.step is None:
            return self.stopped
        at_end = node.step.end is StepEnd.END_OF_SEQUENCE
        return self.stopped or at_end or self.selection.answer is not None

    @property
    def partial(self) -> bool:
        """Whether time or a failure ended the search before its strategy was done, or a budget that left no finished
        path to answer with."""
        if self.stop_reason in (StopReason.TOKENS, StopReason.NODES):
            return not self.ended
        return self.stop_reason is not StopReason.FINISHED


class SearchStarted(NamedTuple):
    """The first event of a search."""

    search_id: str
    strategy: str
    seed: int


class RoundStarted(NamedTuple):
    """The strategy has decided, and its branches are requested now."""

    number: int
    """Counted from 1."""
    branches: int
    """Number of branches requested."""


class ContextStarted(NamedTuple):
    """A context is begun: the next branches of its own continue a prompt that shows other solutions."""

    context: NodeId
    sources: tuple[NodeId, ...]
    """The last nodes of the paths that it shows, in order."""
    template: str
    prompt_tokens: int
    tokens: int
    """As in `StepScored`."""
    nodes: int
    """As in `StepScored`."""


class StepScored(NamedTuple):
    """A step is complete: written, and scored if the strategy needs rewards. There is exactly one event per step,
    repeated ones included. Of siblings with the same text, the lowest id represents the text, not the first event."""

    node: NodeId
    reward: float | None
    """The step's own reward in [0, 1]; None if the strategy needs no rewards."""
    score: float | None
    """The score of the path that ends here; None like the reward."""
    text: str
    """The text of this step alone, as the generator wrote it."""
    tokens: int
    """Tokens generated by the search so far."""
    nodes: int
    """Nodes requested by the search so far."""
    terminal: bool
    """Whether the path ends with this step."""
    step_tokens: int
    """Tokens of this step."""
    logprob: float | None
    """Sum of their log-probabilities (nats); None if the generator does not report it."""
    prefix_tokens: int
    """Tokens before this step: of the prompt and of the steps above."""
    cached_tokens: int | None
    """Number of ``prefix_tokens`` whose KV came from a cache; None for the later steps of a whole solution."""
    repeats: NodeId | None
    """The sibling that represents the step's text, if that is another one."""
    repeated_by: tuple[NodeId, ...]
    """The siblings of the same text that this step represents."""
    hook: HookEffect | None = None
    """What the step hook did with the step; None if it was not called."""
    thought: Thought = NO_THOUGHT
    """The thinking with which the text begins."""
    given: tuple[Span, ...] = ()
    """Spans of the step's tokens that the model was given and did not write."""


class StepsPruned(NamedTuple):
    """The strategy has given up steps: they never grow and never answer."""

    pruned: tuple[NodeId, ...]
    tokens: int
    """As in `StepScored`."""
    nodes: int
    """As in `StepScored`."""


class SearchFinished(NamedTuple):
    """The last event of a search that ended with an answer."""

    outcome: SearchOutcome


QuietEvent = StepsPruned | ContextStarted
"""What a program needs to follow the tree, besides the steps."""
ShownEvent = StepScored | QuietEvent
"""An event from which the tree can be drawn."""
SearchEvent = SearchStarted | RoundStarted | ShownEvent | SearchFinished
EventSink = Callable[[SearchEvent], None]
"""A callback for the events, called by the search in order. It must not block; an exception from it ends the search."""
