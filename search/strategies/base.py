"""The contract between a strategy and the runner.

A strategy is frozen settings plus pure decisions over a tree. It holds no state of its own: what it
decides depends on the tree alone, so a search can be tested without a model, replayed and resumed.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from search.answers.voting import SelectionRule
from search.caps import Depth, Uncapped, capped_settings, check_marks
from search.ports import Sampling, StopCondition
from search.problem import Problem
from search.strategies.path_score import Aggregation
from search.tree import Node, SearchTree


class Expansion(NamedTuple):
    """A decision to grow: this many more children below this node."""

    node: Node
    count: int  # type: ignore[assignment]  # over tuple.count
    stop_condition: StopCondition | None = None
    """How far these children are written, where it is not the strategy's usual stop condition."""
    lookahead: bool = False
    """Whether they are lookaheads: greedy continuations that only tell more about ``node``."""
    least: int = 1
    """So many of them are written in any case. Others a generator that is short of KV memory may give back: then they
    are in ``Node.given_back``, nothing will come of them, and the search goes on with fewer."""


class Strategy(BaseModel, ABC):
    """Settings shared by all strategies, and the decisions each of them makes."""

    # Strict: neither "16" nor true is a number. Enums are lax, because JSON and YAML only have strings.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    stop_condition: ClassVar[StopCondition] = StopCondition.STEP
    """Whether the generator writes step by step or whole solutions."""
    needs_rewards: ClassVar[bool] = True
    """Whether steps go to the process reward model at all."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Short names in model aliases: ``beam`` for ``beam_search``."""

    name: str
    """A literal of each strategy: what settings call it."""

    temperature: float = Field(0.8, ge=0.0, le=2.0, description="Sampling temperature; 0 is greedy.")
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="Nucleus sampling.")
    top_k: Uncapped = Field(0, ge=0, le=1 << 20, description="Only the likeliest so many tokens; 0: all.")
    min_p: float = Field(
        0.0, ge=0.0, le=1.0, description="Only tokens whose chance is at least this part of the likeliest one's."
    )
    max_depth: Depth = Field(40, description="Most steps on a path.")
    aggregation: Aggregation = Field(
        Aggregation.LAST, strict=False, description="How step rewards make a path's score."
    )
    merge_siblings: bool = Field(
        True,
        description="Siblings of the same text are one that counts for all; off, each is its own, as in the sources.",
    )
    selection: SelectionRule = Field(
        SelectionRule.WEIGHTED, strict=False, description="How the answer is chosen among the paths."
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """A setting that makes a search wider must not escape the caps on width because nobody thought of them."""
        super().__pydantic_init_subclass__(**kwargs)
        check_marks(cls)

    @property
    def sampling(self) -> Sampling:
        """How the tokens of all its steps are drawn."""
        return Sampling(self.temperature, self.top_p, self.top_k, self.min_p)

    @property
    def branches(self) -> bool:
        """Whether it may have the same text continued more than once: at temperature 0 these would be copies."""
        return any(setting.cap == "n" and setting.value != 1 for setting in capped_settings(self))

    @property
    def needs_logprobs(self) -> bool:
        """Whether the generator has to report the log-probabilities of its steps."""
        return False

    @abstractmethod
    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        """Which nodes need how many more children now. Called after every change of the tree; what
        is in flight is in the tree already, so asking again for the same children is an error."""

    def problem(self, tree: SearchTree) -> Problem | None:
        """What has to be solved before this strategy can decide; None where all is. Only asked when nothing is in
        flight; the solution is in ``tree.found`` afterwards."""
        return None

    def prepare(self, tree: SearchTree) -> None:
        """Works out what takes long of what ``observe`` and ``select`` have to know: others run between. Called before
        them, when nothing is in flight and every ``problem`` is solved."""

    def observe(self, tree: SearchTree, arrived: Sequence[Node]) -> None:
        """``arrived`` are complete since the last time (open, terminal, or repeated). May prune. Called before
        ``select``."""

    def finished(self, tree: SearchTree) -> bool:
        """Whether the search is over though ``select`` still wants something or something is in flight. It is over
        in any case when nothing is in flight and ``select`` wants nothing."""
        return False

    def candidates(self, tree: SearchTree) -> list[Node]:
        """The nodes whose paths may answer, ordered by id."""
        return list(tree.terminals)

    def votes(self, tree: SearchTree, node: Node) -> Fraction:
        """What the path of a candidate weighs in the vote beside its score: how often it was written."""
        return tree.multiplicity(node)
