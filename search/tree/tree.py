"""The tree that a search grows, and the invariants that hold between its nodes.

Steps are written by a generator and rewarded by a process reward model; the tree only records what happened and refuses
what cannot happen.

**Siblings of the same text.** A generator that is sure writes the same step again and again. Each writing stays a
node, with the id and the seed that it was asked for under; but only the one of the lowest id stands for the text: it
counts the others (``count``), is scored, grows and answers. The others are ``REPEATED``. So what is decided depends
on no order of arrival, and a path says how often it was written (``SearchTree.multiplicity``).
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from operator import attrgetter
from typing import Any, Protocol, Self, TypeVar

from search.answers.extraction import extract_answer
from search.rewards import is_reward
from search.tree.nodes import (
    COMPLETE,
    ENDED,
    IN_FLIGHT,
    Continuations,
    ExpansionRequest,
    Node,
    NodeId,
    NodeStatus,
    Sameness,
    Step,
    TreeError,
    Unread,
)

_ID = attrgetter("id")


class Fold(Protocol):
    """What a strategy knows of a tree, kept up as the tree grows instead of being found anew. It is made of the tree
    alone: any number of them, begun at any time, say the same."""

    @classmethod
    def of(cls, tree: "SearchTree", strategy: Any) -> Self: ...

    def take(self, arrived: Sequence[Node]) -> None:
        """``arrived`` are complete since the last time, repeated and looking ahead ones too, in the order in which
        they were asked for."""


AnyFold = TypeVar("AnyFold", bound=Fold)


class SearchTree:
    """The nodes of one search, by id.

    ``seed`` is the search's: what a strategy draws at random, it draws from a hash of it. ``extract_answer`` finds
    the answer in the text of a path, and ``stop`` are the texts before the first of which that text ends.
    """

    def __init__(self, seed: int = 0, extract_answer: Callable[[str], str | None] = extract_answer) -> None:
        self.seed = seed
        self.stop: tuple[str, ...] = ()
        self.extract_answer = extract_answer
        self.merges_siblings = False
        """Whether siblings of the same text are one; to be set before anything is written."""
        self.settled = 0
        """How many nodes there were when the search last asked for more. Nothing is decided yet by the rewards of those
        that came after."""
        self.neutral = 0
        """Nodes whose rewards only stand in for what the scorer did not give."""
        self.repeated = 0
        """Nodes that repeat another."""
        self.given_back = 0
        """Children that were asked for and given back: they are no nodes."""
        self.replays: frozenset[NodeId] | None = None
        """Where this tree is to become what another is: the children that were given back there, and are not asked for
        here. All others are asked for without being given back."""
        self.root = Node((), None, 0, NodeStatus.OPEN)
        self.found: dict[Any, Any] = {}
        """What a strategy found out and need not find again, by what it is: levels decided, problems solved. It follows
        from what has arrived, and is forgotten when any of that is taken back."""
        self._nodes: dict[NodeId, Node] = {(): self.root}
        self._last_serial = self._settled_serial = 0
        self._levels: list[list[Node]] = [[self.root]]
        self._terminals: list[Node] = []
        self._ended: list[int] = [0]
        self._live: dict[Node, None] = {}
        self._arrived: list[Node] | None = None
        """All that is complete, in the order of arrival; None: to be found anew."""
        self._folds: dict[type[Fold], tuple[Fold, int]] = {}
        self._folded_for: Any = None
        """The strategy whose folds these are: what they keep on the nodes is of no use to another."""

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
        return len(self._live)

    @property
    def live(self) -> list[Node]:
        """The nodes in flight, in the order in which they were asked for."""
        return list(self._live)

    @property
    def terminals(self) -> Sequence[Node]:
        """The ends of paths that may answer, lookaheads left out, by id."""
        return self._terminals

    def with_status(self, status: NodeStatus) -> list[Node]:
        """The nodes of that status that are no lookaheads, ordered by id: an order that does not depend on arrival.
        Looks at every node: not for decisions."""
        return sorted((n for n in self.nodes if n.status is status and not n.is_lookahead), key=lambda node: node.id)

    def level(self, depth: int) -> list[Node]:
        """The nodes at that depth that are no lookaheads, ordered by id; the root at depth 0."""
        return sorted(self._levels[depth], key=lambda node: node.id) if depth < len(self._levels) else []

    @property
    def deepest(self) -> int:
        """The depth of the deepest node that is no lookahead; 0 for the root alone."""
        return len(self._levels) - 1

    def ended(self, depth: int) -> int:
        """How many paths have ended down to that depth, lookaheads left out: each as often as it was written."""
        return sum(self._ended[: depth + 1])

    def multiplicity(self, node: Node) -> Fraction:
        """How often the path to a node was written, as a share of all that was written beside it: the product over
        its steps of count / siblings, pruned ones included. An estimate of the chance that the generator writes this
        path, whatever the search preferred. 1 where siblings are not merged, and of lookaheads."""
        return Fraction(*self.counts_and_samples(node, {}))

    def counts_and_samples(self, node: Node, known: Mapping[Node, tuple[int, int]]) -> tuple[int, int]:
        """The two products whose quotient is the ``multiplicity`` of a node; ``known``: those of nodes above."""
        counts = samples = 1
        step = node if self.merges_siblings else self.root
        while step.parent is not None:
            if step in known:
                return counts * known[step][0], samples * known[step][1]
            if not step.is_lookahead:
                counts *= step.first.count
                samples *= step.parent.samples
            step = step.parent
        return counts, samples

    def fold(self, kind: type[AnyFold], strategy: Any) -> AnyFold:
        """What is known of the tree as it is now, in the form of ``kind``. To be asked for when nothing is in flight:
        then it depends on no order of arrival."""
        if self._arrived is None:
            self._arrived = [node for node in self.nodes if _has_arrived(node.first)]
        if self._folded_for is not strategy:
            self._folds.clear()
            self._folded_for = strategy
        fold, taken = self._folds.get(kind) or (kind.of(self, strategy), 0)
        fold.take(sorted(self._arrived[taken:], key=lambda node: node.serial))
        self._folds[kind] = fold, len(self._arrived)
        return fold  # type: ignore[return-value]  # it was put there under its kind

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
        parent.asked_below = True
        if lookahead:
            first = len(parent.lookaheads)
            return [self._add(parent, -1 - position) for position in range(first, first + count)]
        first = parent.asked
        return [self._add(parent, index) for index in range(first, first + count)]

    def extend(self, parent: Node, step: Step, ends: bool = False) -> Node:
        """Adds the written continuation of a step that came in one piece with it (whole solutions)."""
        if parent.status not in (NodeStatus.OPEN, NodeStatus.WRITTEN, NodeStatus.REPEATED):
            raise TreeError(f"node {parent.id} is {parent.status}: nothing can continue it")
        child = self._add(parent, parent.asked)
        self.write(child, step, ends)
        return child

    def settle(self) -> None:
        """More is asked for: all that is there now may have decided what."""
        self.settled, self._settled_serial = len(self), self._last_serial

    def give_back(self, nodes: Collection[Node]) -> None:
        """Takes out pending children that the generator will not write. Their indices are not used again: their seeds
        are theirs, whatever is granted."""
        for node in nodes:
            parent = node.parent
            if parent is None or node.status is not NodeStatus.PENDING or node.is_lookahead:
                raise TreeError(f"node {node.id} is {node.status}: it cannot be given back")
            del parent.children[node.id[-1]], self._nodes[node.id], self._live[node]
            parent.given_back |= {node.id[-1]}
            self.settled -= node.serial <= self._settled_serial
        self.given_back += len(nodes)
        gone = set(nodes)
        for depth in {node.depth for node in nodes}:
            self._levels[depth] = [node for node in self._levels[depth] if node not in gone]
        while len(self._levels) > 1 and not self._levels[-1]:
            self._levels.pop()
            self._ended.pop()

    def write(self, node: Node, step: Step, ends: bool = False) -> bool:
        """Records the step of a pending node, and whether the path ends there. False, and nothing changes, when the
        node already has its step or has ended: a late or repeated result.

        Afterwards the node is written, or repeated, or stands for a sibling that came before it."""
        if node.status is not NodeStatus.PENDING:
            return False
        node.status = NodeStatus.WRITTEN
        self._say(node, step, ends)
        if not node.is_lookahead:
            self._meet(node)
        return True

    def complete(self, node: Node, reward: float | None, neutral: bool = False) -> Sequence[Node]:
        """Records the reward of a written node, or of the one that stands for it since, and whether it only stands in
        for one. Gives the nodes that are complete by this: with it those that repeat it. None of them, and nothing
        changes, when its reward was already known or it has ended.

        Raises:
            ValueError: the reward is not in [0, 1] (NaN included).
        """
        if reward is not None and not is_reward(reward):
            raise ValueError(f"reward of node {node.id} must be in [0, 1], got {reward!r}")
        node = node.first
        if node.status is not NodeStatus.WRITTEN:
            return ()
        node.reward, node.neutral = reward, neutral
        self.neutral += neutral
        self._turn(node, NodeStatus.TERMINAL if node.ends else NodeStatus.OPEN)
        arrived = (node, *node.repeated_by)
        for member in arrived:
            member.reward, member.score = reward, None
            self._note(member)
        return arrived

    def prune(self, node: Node) -> None:
        """Gives up a node and all below it, in flight or not. Ended nodes stay as they ended."""
        for member in self._subtree(node):
            if member.status not in ENDED:
                self._turn(member, NodeStatus.PRUNED)

    def fail(self, node: Node) -> None:
        """Marks a node in flight as never to arrive; a node that has arrived stays as it is."""
        if node.status in IN_FLIGHT:
            self._turn(node, NodeStatus.FAILED)

    def take_up(self, node: Node) -> None:
        """Puts a failed node back to where it was when it failed: pending, or written where it has its step."""
        if node.status is not NodeStatus.FAILED:
            raise TreeError(f"node {node.id} is {node.status}: there is nothing to take up")
        self._turn(node, NodeStatus.PENDING if node.step is None else NodeStatus.WRITTEN)
        # It will come after others that were asked for later: what was made of these would hang on that.
        self._folds.clear()

    def score_again(self, node: Node) -> None:
        """Takes back a neutral reward: the node is written and waits for its own."""
        if not node.neutral or node.status not in COMPLETE:
            raise TreeError(f"node {node.id} is {node.status}: its reward cannot be taken back")
        self.neutral -= 1
        node.neutral = False
        self._turn(node, NodeStatus.WRITTEN)
        for member in (node, *node.repeated_by):
            member.reward = None
            for below in self._subtree(member):
                below.score = None
        self._arrived = None
        self._folds.clear()
        self.found.clear()

    def reopen(self, node: Node) -> None:
        """Takes back that a complete node was given up."""
        if node.status is not NodeStatus.PRUNED or node.reward is None:
            raise TreeError(f"node {node.id} is {node.status}: it cannot be opened again")
        self._turn(node, NodeStatus.OPEN)

    def restore(
        self,
        node_id: NodeId,
        status: NodeStatus,
        step: Step | None,
        reward: float | None,
        request: ExpansionRequest | None,
        neutral: bool = False,
        ends: bool = False,
    ) -> None:
        """Adds a node as it was in another tree. Parents come before children, siblings in their order, and before
        them ``restore_given_back`` of the parent; when all are there, ``restore_repeats`` follows.

        Raises:
            KeyError: its parent is not there.
            ValueError: it is there already, or a sibling before it is not.
        """
        parent, index = self._nodes[node_id[:-1]], node_id[-1]
        if index >= 0:
            free = len(parent.children) + sum(given_back < index for given_back in parent.given_back)
        else:
            free = -1 - len(parent.lookaheads)
        if index != free or index in parent.given_back:
            raise ValueError("it is not its parent's next child")
        parent.asked_below |= request is not None
        node = self._add(parent, index)
        node.reward, node.request, node.neutral = reward, request, neutral
        self.neutral += neutral
        if step is not None:
            self._say(node, step, ends)
        self._turn(node, status)

    def restore_given_back(self, node_id: NodeId, indices: Collection[int]) -> None:
        """Says which children of a node were given back in another tree."""
        self._nodes[node_id].given_back = frozenset(indices)
        self._nodes[node_id].asked_below |= bool(indices)
        self.given_back += len(indices)

    def restore_repeats(self) -> None:
        """Finds again which node stands for which, once all nodes of another tree are there.

        Raises:
            ValueError: a repeated node has none that it repeats.
        """
        written = [node for node in self.nodes if node.step and not node.is_lookahead]
        # Level by level, because what is below a repeated node is shared; and first those that stand for a text.
        for node in sorted(written, key=lambda node: (node.depth, node.status is NodeStatus.REPEATED)):
            first = self._counted(node)
            if node.status is NodeStatus.REPEATED:
                if first is node:
                    raise ValueError(f"node {list(node.id)} repeats no other")
                self._join(node, first)

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
            if node.count != (0 if node.repeats else 1 + len(node.repeated_by)) or (
                (node.status is NodeStatus.REPEATED) != (node.repeats is not None)
            ):
                problems.append(f"{node.id} is {node.status} and counts {node.count}")
        for node in (self.root, *self.nodes):
            below = node.continuations
            if below is not None and below.standing != sorted((below.by_text or {}).values(), key=_ID):
                problems.append(f"what stands below {node.id} is not in order")
            if node.given_back and {*node.children} | node.given_back != {*range(node.asked)}:
                problems.append(f"{node.id} has children {sorted(node.children)}, given back {sorted(node.given_back)}")
        live = sum(node.status in IN_FLIGHT for node in self.nodes)
        if live != self.in_flight:
            problems.append(f"{live} nodes are in flight, {self.in_flight} are counted")
        return problems

    def _add(self, parent: Node, index: int) -> Node:
        self._last_serial += 1
        node = Node((*parent.id, index), parent, self._last_serial, is_lookahead=parent.is_lookahead or index < 0)
        if not node.is_lookahead:
            if node.depth == len(self._levels):
                self._levels.append([])
                self._ended.append(0)
            self._levels[node.depth].append(node)
        (parent.children if index >= 0 else parent.lookaheads)[index] = node
        self._nodes[node.id] = node
        self._live[node] = None
        return node

    def _say(self, node: Node, step: Step, ends: bool) -> None:
        assert node.parent is not None
        node.step, node.ends = step, ends
        node.path_tokens = node.parent.path_tokens + len(step.token_ids)

    def _counted(self, node: Node) -> Node:
        """Counts what is written among its siblings. Gives the one that stands for its text: itself, if it is new."""
        parent, step = node.parent, node.step
        assert parent is not None
        assert step is not None
        below = parent.continuations = parent.continuations or Continuations()
        below.samples += 1
        if not self.merges_siblings:
            return node
        below.by_text = {} if below.by_text is None else below.by_text
        first = below.by_text.setdefault(Sameness(step.text, step.end, node.ends), node)
        if first is node:
            insort(below.standing, node, key=_ID)
        return first

    def _meet(self, node: Node) -> None:
        """Counts what was just written, with the sibling of the same text where there is one."""
        first = self._counted(node)
        if first is node:
            return
        if (
            node.id < first.id
            and not first.asked_below
            and first.status in (NodeStatus.WRITTEN, NodeStatus.OPEN, NodeStatus.TERMINAL)
        ):
            self._stand_for(node, first)
        else:
            self._turn(node, NodeStatus.REPEATED)
            self._join(node, first)
            node.reward = first.reward
        if _has_arrived(node.first):
            self._note(node)

    def _note(self, node: Node) -> None:
        if self._arrived is not None:
            self._arrived.append(node)

    def _join(self, node: Node, first: Node) -> None:
        """``node`` repeats ``first``."""
        node.continuations = first.continuations = first.continuations or Continuations(by_text={})
        node.repeats, node.count = first, 0
        first.repeated_by += (node,)
        first.count += 1
        self.repeated += 1
        if first.status is NodeStatus.TERMINAL:
            self._ended[first.depth] += 1

    def _stand_for(self, node: Node, first: Node) -> None:
        """``node`` takes the place of ``first``, which came before it and has a later id."""
        status, members = first.status, (first, *first.repeated_by)
        self._turn(first, NodeStatus.REPEATED)
        first.repeated_by = ()
        node.continuations = first.continuations
        node.reward, node.neutral, first.neutral = first.reward, first.neutral, False
        assert node.parent is not None
        below = node.parent.continuations
        if below is not None and below.by_text is not None and node.step is not None:
            below.by_text[Sameness(node.step.text, node.step.end, node.ends)] = node
            del below.standing[bisect_left(below.standing, first.id, key=_ID)]
            insort(below.standing, node, key=_ID)
        if status is not node.status:
            self._turn(node, status)
        self.repeated -= len(members) - 1
        for member in members:
            self._join(member, node)

    def _turn(self, node: Node, status: NodeStatus) -> None:
        """The one place where a status changes, and with it all that is counted by it."""
        if node.status is NodeStatus.TERMINAL and not node.is_lookahead:
            self._terminals.remove(node)
            self._ended[node.depth] -= node.count
        if status is NodeStatus.TERMINAL and not node.is_lookahead:
            insort(self._terminals, node, key=_ID)
            self._ended[node.depth] += node.count
        if status in IN_FLIGHT:
            self._live[node] = None
        else:
            self._live.pop(node, None)
        node.status = status

    def _subtree(self, node: Node) -> Iterator[Node]:
        stack = [node]
        while stack:
            member = stack.pop()
            yield member
            stack.extend(member.children.values())
            stack.extend(member.lookaheads.values())


def _has_arrived(node: Node) -> bool:
    """Whether a node that stands for a text is complete, or was before it was given up."""
    return node.status in (NodeStatus.OPEN, NodeStatus.TERMINAL) or (
        node.status is NodeStatus.PRUNED and node.reward is not None
    )
