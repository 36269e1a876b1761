"""The contract between a strategy and the runner.

A strategy is frozen settings plus pure decisions over a tree. It holds no state of its own: its decisions depend on the
tree alone, so a search can be tested without a model, replayed and resumed.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from search.answers.voting import SelectionRule
from search.caps import Depth, Uncapped, capped_settings, check_marks
from search.ports import Sampling, StopCondition
from search.problem import Problem
from search.strategies.path_score import Aggregation
from search.strategies.vote_weights import VoteWeights
from search.tree import Node, NodeId, Reading, SearchTree


class ReaderVote(NamedTuple):
    """What a model that read solutions wrote, and which one it chose."""

    reader: NodeId
    """The last node of what it wrote."""
    chosen: NodeId | None
    """The last node of the solution; None if it made no readable choice."""
    text: str
    """What it wrote, without thinking."""


class Expansion(NamedTuple):
    """A strategy's decision to write ``count`` more children below ``node``."""

    node: Node
    count: int  # type: ignore[assignment]  # over tuple.count
    stop_condition: StopCondition | None = None
    """Where these children end; None: the strategy's own stop condition."""
    lookahead: bool = False
    """Whether they are lookaheads: greedy continuations, written only to learn more about ``node``."""
    least: int = 1
    """Number of required children. A generator short of KV memory may give back the others: their indices are then in
    ``Node.given_back``, they are never written, and the search continues with fewer."""
    reads: Reading | None = None
    """If given, the children are written below a new context, which shows them the sources of this; ``node`` is the
    first of these."""

    @classmethod
    def reading(cls, reads: Reading, count: int, **other: Any) -> "Expansion":
        """``count`` children that read ``reads``."""
        return cls(reads.sources[0], count, reads=reads, **other)


class ExpectedChildren(NamedTuple):
    """The children that a new step may expect, before its reward is known."""

    per_sample: int
    """For each time that it was written."""
    most: int
    """In all."""


def refused(strategy: str, setting: str, given: Any, message: str) -> ValidationError:
    """The error of a setting that a strategy cannot take, with the setting's path."""
    fault = PydanticCustomError("value_error", "{message}", {"message": message})
    return ValidationError.from_exception_data(strategy, [InitErrorDetails(type=fault, loc=(setting,), input=given)])


class Strategy(BaseModel, ABC):
    """Settings shared by all strategies, and the decisions each of them makes."""

    # Strict: "16" and true are refused for numbers. Enum fields are lax, because JSON and YAML have only strings.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    stop_condition: ClassVar[StopCondition] = StopCondition.STEP
    """Whether the generator writes single steps or whole solutions."""
    answers_at_once: ClassVar[bool] = False
    """Whether every solution is written by one request from the prompt alone, and reads no other."""
    needs_rewards: ClassVar[bool] = True
    """Whether steps are scored by the process reward model, unless settings say otherwise (``is_scored``)."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Short names in model aliases: ``beam`` for ``beam_search``."""

    name: str
    """The strategy's name in settings; each strategy declares it as a ``Literal``."""

    temperature: float = Field(0.8, ge=0.0, le=2.0, description="Sampling temperature; 0 is greedy.")
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="Nucleus (top-p) sampling.")
    top_k: Uncapped = Field(
        0, ge=0, le=1 << 20, description="Sample among this many of the likeliest tokens; 0 turns it off."
    )
    min_p: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="Sample among tokens whose probability is at least this fraction of the likeliest one's.",
    )
    max_depth: Depth = Field(40, description="Maximum steps of a path.")
    aggregation: Aggregation = Field(
        Aggregation.LAST, strict=False, description="How a path's score is computed from the rewards of its steps."
    )
    merge_siblings: bool = Field(
        True,
        description="Merge siblings of the same text into one node that counts for all of them. Off: each is a node "
        "of its own, as in the papers.",
    )
    selection: SelectionRule = Field(
        SelectionRule.WEIGHTED, strict=False, description="How the answer is chosen among the finished paths."
    )
    vote_weights: VoteWeights | None = Field(
        None,
        strict=False,
        description="Under `selection: weighted`, weigh votes by the log-odds of their paths' scores, as a reward "
        "model's card says (`prm.card`). Unset: by the scores themselves.",
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Checks that every integer setting of a new strategy has a mark, so that none escapes the caps."""
        super().__pydantic_init_subclass__(**kwargs)
        check_marks(cls)

    @property
    def sampling(self) -> Sampling:
        """The sampling parameters of all its steps."""
        return Sampling(self.temperature, self.top_p, self.top_k, self.min_p)

    @property
    def branches(self) -> bool:
        """Whether it may request several continuations of one text. At temperature 0 they would be copies."""
        return any(setting.cap == "n" and setting.value != 1 for setting in capped_settings(self))

    @property
    def is_scored(self) -> bool:
        """Whether the steps of this search are scored."""
        return self.needs_rewards

    @property
    def needs(self) -> str:
        """Says in a refusal that it needs rewards, and whether with other settings it would not."""
        return f"{self.name} needs rewards{'' if self.needs_rewards else ' with these settings'}"

    @property
    def needs_logprobs(self) -> bool:
        """Whether the generator has to report the log-probabilities of its steps."""
        return False

    @property
    def starts_contexts(self) -> bool:
        """Whether it may request expansions that read other nodes."""
        return False

    @property
    def expected_children(self) -> ExpectedChildren | None:
        """What a step may expect in the round after it was written, as single steps under their own seeds; None if
        nothing can be said. A generator that has nothing else to do begins some of them early."""
        return None

    @property
    def counts_unfinished(self) -> bool:
        """Whether it decides by the number of tokens that unfinished branches have at least,
        ``SearchTree.unfinished_tokens``."""
        return False

    def later_samples(self, tree: SearchTree) -> int | None:
        """The number of children of the root, each a whole solution, that the search may still request once those in
        flight are complete; None for a search without rounds of whole solutions. A generator that has nothing else to
        do begins some of them early."""
        return None

    @property
    def most_shown(self) -> int:
        """Most solutions that one of its prompts shows the model; 0: it has the model read none."""
        return int(self.starts_contexts)

    @abstractmethod
    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        """The expansions to request now. Called after every change of the tree. Branches in flight are in the tree
        already: requesting the same children again is an error."""

    def problem(self, tree: SearchTree) -> Problem | None:
        """The next problem to solve before this strategy can decide; None if there is none. Called only when nothing is
        in flight. The runner puts the solution into ``tree.strategy_cache``."""
        return None

    def unremarked(self, tree: SearchTree) -> Sequence[Node]:
        """The solutions whose remarks it needs to decide, such as what their checks showed. Called as ``problem``, and
        only where there are remarks. The runner puts them into ``tree.remarks``."""
        return []

    def prepare(self, tree: SearchTree) -> None:
        """Computes the slow part of ``observe`` and ``select`` ahead of them, so that other tasks can run in between.
        Called when nothing is in flight and every ``problem`` is solved."""

    def observe(self, tree: SearchTree, arrived: Sequence[Node]) -> None:
        """Takes note of the nodes that completed since the last call (open, terminal or repeated). It may prune. Called
        before ``select``."""

    def finished(self, tree: SearchTree) -> bool:
        """Whether to end the search early, while ``select`` still has expansions or branches are in flight. A search
        always ends when nothing is in flight and ``select`` returns nothing."""
        return False

    def candidates(self, tree: SearchTree) -> list[Node]:
        """The last nodes of the paths that may answer, ordered by id."""
        return list(tree.terminals)

    def reader_votes(self, tree: SearchTree) -> Sequence[ReaderVote]:
        """What those that chose among solutions wrote, in the order of their requests."""
        return []

    def vote_weight(self, score: float | None) -> float | None:
        """The weight of each vote of a path with this score; None: the score itself."""
        return None if score is None or self.vote_weights is None else self.vote_weights.weight(score)

    def votes(self, tree: SearchTree, node: Node) -> Fraction:
        """The vote weight of a candidate's path, apart from its score: how often the path was written."""
        return tree.multiplicity(node)
