"""The tree that a search grows: steps, nodes and the invariants that hold between them.

A node is named by its path of child indices from the root, so the same name means the same place in
every run of the same search. Steps are written by a generator and rewarded by a process reward model;
the tree only records what happened and refuses what cannot happen.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import NamedTuple

from search.answers.extraction import extract_answer
from search.rewards import is_reward

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
    FAILED = "failed"
    """Under way when the search ended: never written, or written and never scored. It has its step in the second case.
    A search that goes on takes it up again."""


class Unread(Enum):
    """In place of an answer: nobody has looked for one yet."""

    UNREAD = "unread"


ENDED = frozenset({NodeStatus.TERMINAL, NodeStatus.PRUNED, NodeStatus.FAILED})


@dataclass(eq=False)
class Node:
    """One step of a path. Changed only through its tree."""

    id: NodeId
    parent: "Node | None" = field(repr=False)
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
    answer: str | Unread | None = Unread.UNREAD
    """What `SearchTree.answer_of` has found, once it was asked."""

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
        return [node.step for node in self.path if node.step is not None]

    @property
    def text(self) -> str:
        """All that was written on the path, from the first step to this one."""
        return "".join(step.text for step in self.steps)

    @property
    def token_ids(self) -> list[int]:
        """The ids written on the path, prompt excluded."""
        return [token for step in self.steps for token in step.token_ids]


class TreeError(RuntimeError):
    """Something was asked of a tree that its invariants forbid: a programming error."""


class SearchTree:
    """The nodes of one search, by id.

    ``seed`` is the search's: what a strategy draws at random, it draws from a hash of it. ``extract_answer`` finds
    the answer in the text of a path, and ``stop`` are the texts before the first of which that text ends.
    """

    def __init__(self, seed: int = 0, extract_answer: Callable[[str], str | None] = extract_answer) -> None:
        self.seed = seed
        self.stop: tuple[str, ...] = ()
        self.extract_answer = extract_answer
        self.settled = 0
        """How many nodes there were when the search last asked for more. Nothing is decided yet by the rewards of those
        that came after."""
        self.root = Node((), None, NodeStatus.OPEN)
        self._nodes: dict[NodeId, Node] = {(): self.root}
        self._levels: list[list[Node]] = [[self.root]]
        self._live = 0

    def __getitem__(self, node_id: NodeId) -> Node:
        return self._nodes[node_id]

    def __contains__(self, node_id: NodeId) -> bool:
        return node_id in self._nodes

    def __len__(self) -> int:
        """Nodes without the root, lookaheads included."""
        return len(self._nodes) - 1

    @property
    def nodes(self) -> Iterator[Node]:
        """Every node but the root, lookaheads included, in the order in which they were asked for."""
        return (node for node in self._nodes.values() if node.parent is not None)

    @property
    def in_flight(self) -> int:
        """Nodes that are neither complete nor given up: pending or written."""
        return self._live

    def with_status(self, status: NodeStatus) -> list[Node]:
        """The nodes of that status that are no lookaheads, ordered by id: an order that does not depend on arrival."""
        return sorted((n for n in self.nodes if n.status is status and not n.is_lookahead), key=lambda node: node.id)

    def level(self, depth: int) -> list[Node]:
        """The nodes at that depth that are no lookaheads, ordered by id; the root at depth 0."""
        return sorted(self._levels[depth], key=lambda node: node.id) if depth < len(self._levels) else []

    @property
    def deepest(self) -> int:
        """The depth of the deepest node that is no lookahead; 0 for the root alone."""
        return len(self._levels) - 1

    def text_of(self, node: Node) -> str:
        """What the path that ends in a node says: all that was written on it, up to the first text of ``stop``."""
        text = node.text
        return text[: min((index for stop in self.stop if (index := text.find(stop)) >= 0), default=len(text))]

    def answer_of(self, node: Node) -> str | None:
        """The answer of the path that ends in a written node; None where it gives none. Looked for once."""
        if node.answer is Unread.UNREAD:
            node.answer = self.extract_answer(self.text_of(node))
        return node.answer

    def request(self, parent: Node, count: int, lookahead: bool = False) -> list[Node]:
        """Adds ``count`` pending children or lookaheads below an open node, with the next free indices."""
        if parent.status is not NodeStatus.OPEN:
            raise TreeError(f"node {parent.id} is {parent.status}: it cannot get children")
        if lookahead:
            first = len(parent.lookaheads)
            return [self._add(parent, -1 - position) for position in range(first, first + count)]
        first = len(parent.children)
        return [self._add(parent, index) for index in range(first, first + count)]

    def extend(self, parent: Node, step: Step) -> Node:
        """Adds the written continuation of a step that came in one piece with it (whole solutions)."""
        if parent.status not in (NodeStatus.OPEN, NodeStatus.WRITTEN):
            raise TreeError(f"node {parent.id} is {parent.status}: nothing can continue it")
        child = self._add(parent, len(parent.children))
        self.write(child, step)
        return child

    def write(self, node: Node, step: Step) -> bool:
        """Records the step of a pending node. False, and nothing changes, when the node already has
        its step or has ended: a late or repeated result."""
        if node.status is not NodeStatus.PENDING:
            return False
        node.step = step
        node.status = NodeStatus.WRITTEN
        return True

    def complete(self, node: Node, reward: float | None, terminal: bool, neutral: bool = False) -> bool:
        """Records the reward of a written node, whether it only stands in for one, and whether the path ends there.
        False, and nothing changes, when that was already known or the node has ended.

        Raises:
            ValueError: the reward is not in [0, 1] (NaN included).
        """
        if reward is not None and not is_reward(reward):
            raise ValueError(f"reward of node {node.id} must be in [0, 1], got {reward!r}")
        if node.status is not NodeStatus.WRITTEN:
            return False
        node.reward, node.neutral = reward, neutral
        self._end_flight(node, NodeStatus.TERMINAL if terminal else NodeStatus.OPEN)
        return True

    def prune(self, node: Node) -> None:
        """Gives up a node and all below it, in flight or not. Ended nodes stay as they ended."""
        for member in self._subtree(node):
            if member.status not in ENDED:
                self._end_flight(member, NodeStatus.PRUNED)

    def fail(self, node: Node) -> None:
        """Marks a node in flight as never to arrive; a node that has arrived stays as it is."""
        if node.status in (NodeStatus.PENDING, NodeStatus.WRITTEN):
            self._end_flight(node, NodeStatus.FAILED)

    def take_up(self, node: Node) -> None:
        """Puts a failed node back to where it was when it failed: pending, or written where it has its step."""
        if node.status is not NodeStatus.FAILED:
            raise TreeError(f"node {node.id} is {node.status}: there is nothing to take up")
        node.status = NodeStatus.PENDING if node.step is None else NodeStatus.WRITTEN
        self._live += 1

    def score_again(self, node: Node) -> None:
        """Takes back a neutral reward: the node is written and waits for its own."""
        if not node.neutral or node.status not in (NodeStatus.OPEN, NodeStatus.TERMINAL, NodeStatus.PRUNED):
            raise TreeError(f"node {node.id} is {node.status}: its reward cannot be taken back")
        node.reward, node.neutral, node.status = None, False, NodeStatus.WRITTEN
        self._live += 1

    def reopen(self, node: Node) -> None:
        """Takes back that a complete node was given up."""
        if node.status is not NodeStatus.PRUNED or node.reward is None:
            raise TreeError(f"node {node.id} is {node.status}: it cannot be opened again")
        node.status = NodeStatus.OPEN

    def restore(
        self,
        node_id: NodeId,
        status: NodeStatus,
        step: Step | None,
        reward: float | None,
        request: ExpansionRequest | None,
        neutral: bool = False,
    ) -> None:
        """Adds a node as it was in another tree. Parents come before children, siblings in their order.

        Raises:
            KeyError: its parent is not there.
            ValueError: it is there already, or a sibling before it is not.
        """
        parent, index = self._nodes[node_id[:-1]], node_id[-1]
        if index != (len(parent.children) if index >= 0 else -1 - len(parent.lookaheads)):
            raise ValueError("it is not its parent's next child")
        node = self._add(parent, index)
        node.step, node.reward, node.request, node.neutral = step, reward, request, neutral
        self._end_flight(node, status)
        self._live += status in (NodeStatus.PENDING, NodeStatus.WRITTEN)

    def check_integrity(self) -> list[str]:
        """Every invariant that does not hold, in words; empty when all is well."""
        problems: list[str] = []
        for node in self.nodes:
            parent = node.parent
            own = node.id[-1]
            if (
                parent is None
                or {**parent.children, **parent.lookaheads}.get(own) is not node
                or parent.id != node.id[:-1]
            ):
                problems.append(f"{node.id} is not its parent's child")
            if (node.step is None) != (node.status in (NodeStatus.PENDING, NodeStatus.FAILED)) and (
                node.status not in (NodeStatus.PRUNED, NodeStatus.FAILED)
            ):
                problems.append(f"{node.id} is {node.status} and its step is {node.step!r}")
            if (node.children or node.lookaheads) and (node.status is NodeStatus.TERMINAL or node.step is None):
                problems.append(f"{node.id} is {node.status}, its step is {node.step!r} and it has children")
        live = sum(node.status in (NodeStatus.PENDING, NodeStatus.WRITTEN) for node in self.nodes)
        if live != self._live:
            problems.append(f"{live} nodes are in flight, {self._live} are counted")
        return problems

    def _add(self, parent: Node, index: int) -> Node:
        node = Node((*parent.id, index), parent, is_lookahead=parent.is_lookahead or index < 0)
        if not node.is_lookahead:
            if node.depth == len(self._levels):
                self._levels.append([])
            self._levels[node.depth].append(node)
        (parent.children if index >= 0 else parent.lookaheads)[index] = node
        self._nodes[node.id] = node
        self._live += 1
        return node

    def _end_flight(self, node: Node, status: NodeStatus) -> None:
        if node.status in (NodeStatus.PENDING, NodeStatus.WRITTEN):
            self._live -= 1
        node.status = status

    def _subtree(self, node: Node) -> Iterator[Node]:
        stack = [node]
        while stack:
            member = stack.pop()
            yield member
            stack.extend(member.children.values())
            stack.extend(member.lookaheads.values())
