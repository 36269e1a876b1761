"""Steps and nodes: what a search's tree is made of.

A node is named by its path of child indices from the root, so the same name means the same place in every run of the
same search.
"""

from dataclasses import dataclass, field
from enum import Enum, StrEnum
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

NodeId = tuple[int, ...]
"""The path of child indices from the root; the root is ``()``."""


class StepEnd(StrEnum):
    """Why the generator stopped writing a step."""

    DELIMITER = "delimiter"
    """The step delimiter was written: the path may go on."""
    END_OF_SEQUENCE = "end_of_sequence"
    """The model ended the solution: the path is complete."""
    LENGTH = "length"
    """The token limit cut the text off."""


class Step(NamedTuple):
    """One reasoning step as the generator wrote it, its delimiter included."""

    token_ids: tuple[int, ...]
    text: str
    end: StepEnd
    logprob: float | None = None
    """Sum of the tokens' log-probabilities (nats), where the generator reports it."""
    token_logprobs: tuple[float, ...] | None = None
    """The tokens' own, where the generator reports them."""


class ExpansionRequest(NamedTuple):
    """What was asked of the generator for one branch."""

    whole: bool
    """Whether it writes to the end of the solution, or one step."""
    tokens: int
    """Most tokens."""
    nodes: int
    """Most nodes that its steps may become."""


class NodeStatus(StrEnum):
    """Where a node is in its life. It moves down this list only, and ends exactly once."""

    PENDING = "pending"
    """Asked of the generator, not written yet."""
    WRITTEN = "written"
    """Its step is written, its reward not known yet."""
    OPEN = "open"
    """Complete as a step; the path may grow below it."""
    TERMINAL = "terminal"
    """The path ends here and may answer."""
    PRUNED = "pruned"
    """Given up by the strategy: never grows, never answers."""
    REPEATED = "repeated"
    """A sibling with the same text stands for it: never scored itself, never grows, never answers."""
    FAILED = "failed"
    """Under way when the search ended: never written, or written and never scored. It has its step in the second case.
    A search that goes on takes it up again."""


class Unread(Enum):
    """In place of an answer: nobody has looked for one yet."""

    UNREAD = "unread"


ENDED = frozenset({NodeStatus.TERMINAL, NodeStatus.PRUNED, NodeStatus.REPEATED, NodeStatus.FAILED})
COMPLETE = frozenset({NodeStatus.OPEN, NodeStatus.TERMINAL, NodeStatus.PRUNED})
IN_FLIGHT = frozenset({NodeStatus.PENDING, NodeStatus.WRITTEN})


class Sameness(NamedTuple):
    """What makes siblings the same: their text, why it ended, and whether the path goes on."""

    text: str
    end: StepEnd
    ends: bool


@dataclass(eq=False, slots=True)
class Continuations:
    """What was written below a text, in all of its writings together."""

    samples: int = 0
    """How many steps: repeated and pruned ones too."""
    by_text: dict[Sameness, "Node"] | None = None
    """The one that stands for each text; None where siblings are not merged."""
    standing: list["Node"] = field(default_factory=list)
    """The same nodes, by id."""


@dataclass(eq=False, slots=True)
class Node:
    """One step of a path. Changed only through its tree."""

    id: NodeId
    parent: "Node | None" = field(repr=False)
    serial: int = 0
    """Its place in the order in which nodes were asked for; the root's is 0."""
    status: NodeStatus = NodeStatus.PENDING
    step: Step | None = None
    reward: float | None = None
    """The process reward of this step in [0, 1]; fixed once given; None where nothing scores."""
    neutral: bool = False
    """Whether that reward only stands in for one that the scorer did not give."""
    request: ExpansionRequest | None = None
    """What was asked for; None for the later steps of a solution that was written in one piece."""
    children: dict[int, "Node"] = field(default_factory=dict, repr=False)
    lookaheads: dict[int, "Node"] = field(default_factory=dict, repr=False)
    """Continuations written only to learn more about this step, at indices -1, -2, …: lookaheads and rollouts."""
    is_lookahead: bool = False
    """Whether this node or one above it is a lookahead: part of no path that the search itself grows."""
    count: int = 1
    """How often its text was written among its siblings; 0 for a node that repeats another."""
    repeats: "Node | None" = field(default=None, repr=False)
    """The node that stands for this one, where it is repeated."""
    repeated_by: tuple["Node", ...] = field(default=(), repr=False)
    """The nodes that this one stands for."""
    continuations: Continuations | None = field(default=None, repr=False)
    """Shared with all that it stands for; None until something was written below or it was repeated."""
    ends: bool = False
    """Whether nothing can be written below it."""
    asked_below: bool = False
    """Whether anything was asked for below it."""
    given_back: frozenset[int] = frozenset()
    """Indices of children that were asked for and that the generator gave back: no node is there, and none will be."""
    path_tokens: int = 0
    """Tokens written on the path, prompt excluded."""
    score: tuple[Any, float | None] | None = field(default=None, repr=False)
    """What `search.strategies.path_score.path_score` found, with what it was asked for."""
    statistics: Any = field(default=None, repr=False)
    """What a strategy's fold keeps of this node (`SearchTree.fold`)."""
    answer: str | Unread | None = Unread.UNREAD
    """What `SearchTree.answer_of` has found, once it was asked."""

    @property
    def first(self) -> "Node":
        """The node that stands for this text: itself, unless it is repeated."""
        return self if self.repeats is None else self.repeats

    @property
    def distinct_children(self) -> list["Node"]:
        """The nodes that stand for what was written below this text, by id. Where siblings are merged, they may hang
        below another writing of it: a whole solution stays where it was written."""
        below = self.continuations
        if below is None or below.by_text is None:
            return list(self.children.values())
        return below.standing.copy()

    @property
    def asked(self) -> int:
        """How many children were asked for: those that were given back too, lookaheads not."""
        return len(self.children) + len(self.given_back)

    def given_back_after(self, index: int) -> int:
        """How many children in a row, right after that index, were given back."""
        after = index + 1
        while after in self.given_back:
            after += 1
        return after - index - 1

    @property
    def samples(self) -> int:
        """How many steps were written below this text: repeated and pruned ones too, lookaheads not."""
        return 0 if self.continuations is None else self.continuations.samples

    @property
    def depth(self) -> int:
        """Steps from the root: 0 for the root."""
        return len(self.id)

    @property
    def path(self) -> list["Node"]:
        """The nodes from the root's child down to this node, without the root."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    @property
    def lookahead_end(self) -> "Node":
        """The end of what was written to look ahead from here; the node itself where nothing was."""
        node = self
        while ahead := node.lookaheads or (node.children if node.is_lookahead else {}):
            node = ahead[min(ahead)]
        return node

    @property
    def rewards(self) -> list[float]:
        """The rewards of the path's steps that have one, in order."""
        return [node.reward for node in self.path if node.reward is not None]

    @property
    def steps(self) -> list[Step]:
        steps: list[Step] = []
        node: Node | None = self
        while node is not None:  # not by way of `path`: this is asked for at every step of long paths
            if node.step is not None:
                steps.append(node.step)
            node = node.parent
        steps.reverse()
        return steps

    @property
    def text(self) -> str:
        """All that was written on the path, from the first step to this one."""
        return "".join(step.text for step in self.steps)

    @property
    def token_ids(self) -> list[int]:
        """The ids written on the path, prompt excluded."""
        return list(chain.from_iterable(map(_TOKEN_IDS, self.steps)))


_TOKEN_IDS = attrgetter("token_ids")


class TreeError(RuntimeError):
    """Something was asked of a tree that its invariants forbid: a programming error."""
