"""The tree that a search grows, and the invariants that hold between its nodes.

A generator writes steps and a process reward model scores them; the tree records these results and rejects impossible
changes.

**Siblings of the same text.** A confident generator writes the same step several times. Each copy stays a node, with
the id and seed of its request. Only the copy with the lowest id represents the text: it counts the copies (``count``),
is scored, grows and answers. The others are ``REPEATED``. So decisions do not depend on the order of arrival, and a
path knows how often it was written (``SearchTree.multiplicity``).

**Contexts** (`search.tree.nodes`) are further roots. They are no nodes in any count, level or list of nodes; the
terminal nodes below them are among the terminal ones.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from operator import attrgetter
from typing import Any, Protocol, Self, TypeVar

from search.answers.canonical import canonical
from search.answers.extraction import extract_answer
from search.answers.thoughts import Parts, has_marks, open_thought, outside_thoughts, parts, without_thoughts
from search.rewards import is_reward
from search.templates import TEMPLATES
from search.tree.nodes import (
    COMPLETE,
    ENDED,
    FIRST_CONTEXT,
    GIVEN_UP,
    IN_FLIGHT,
    ContextNode,
    Continuations,
    ExpansionRequest,
    HookEffect,
    Node,
    NodeId,
    NodeStatus,
    Reading,
    SiblingKey,
    Step,
    StepEnd,
    TreeError,
    Unread,
)
from search.tree.prefill import Prefill

_ID = attrgetter("id")
_TEXT = attrgetter("text")
_SOLUTION = attrgetter("solution")


class Fold(Protocol):
    """A strategy's statistics of a tree, updated as nodes arrive instead of being computed anew. They depend on the
    tree alone: two folds of the same tree are equal, whenever they were created."""

    @classmethod
    def of(cls, tree: "SearchTree", strategy: Any) -> Self: ...

    def take(self, arrived: Sequence[Node]) -> None:
        """Adds the nodes that completed since the last call, repeated nodes and lookaheads included, in the order of
        their requests."""


AnyFold = TypeVar("AnyFold", bound=Fold)


class SearchTree:
    """The nodes of one search, by id.

    ``seed`` is the search's seed; strategies derive all random draws from a hash of it. ``extract_answer`` finds the
    answer in the text of a path, and ``canonical`` gives its canonical spelling. ``stop`` are the stop texts: a path's
    text ends before the first of them. ``prefill`` stands before every path, behind ``open_thought``, the mark of the
    thought that the prompt leaves open; empty: none.
    """

    def __init__(self, seed: int = 0, extract_answer: Callable[[str], str | None] = extract_answer) -> None:
        self.seed = seed
        self.stop: tuple[str, ...] = ()
        self.prefill = Prefill()
        self.open_thought = ""
        self.extract_answer = extract_answer
        self.canonical: Callable[[str], str] = canonical
        self.merges_siblings = False
        """Whether siblings of the same text are merged; to be set before anything is written."""
        self.settled = 0
        """Number of nodes when the search last requested branches. No decision has used the rewards of later nodes."""
        self.neutral = 0
        """Number of nodes with a neutral reward."""
        self.hook_texts = 0
        """Number of texts that the step hook added."""
        self.hook_failures = 0
        """Number of steps for which the step hook failed."""
        self.remarks: dict[NodeId, str] = {}
        """What is known of solutions beside their rewards, such as failed checks, by their last nodes: as far as the
        strategy has asked for it."""
        self.choice_of: Callable[[str, int], int | None] = TEMPLATES["select"].chosen
        """The index of the solution that a reply chooses among a number of solutions; None if it chooses none."""
        self.unsure_votes = False
        """Whether the answers of some paths could not be compared in time by what they do."""
        self.repeated = 0
        """Number of nodes that repeat another."""
        self.given_back = 0
        """Number of children that were given back. They are not nodes."""
        self.longest_thought = 0
        """Tokens of the longest thought; 0 without one."""
        self.longest_step = 0
        """Tokens of the longest step that ended at a delimiter, its thought excluded; 0 without one."""
        self.longest_path = 0
        """Tokens of the longest path that no limit has cut off, thoughts excluded and lookaheads included; 0 without
        one."""
        self.answers_without_thought = False
        """Whether an answer is read from the solutions alone, as JSON is, which may spell any mark of a thought."""
        self.scores_solutions = False
        """Whether the reward model reads the solutions alone, without the thinking before them."""
        self.unfinished_tokens = 0
        """Least number of tokens of the pending branches, as far as the generator has said so."""
        self.newly_pruned: list[Node] = []
        """Nodes that were pruned since the search took this list, which empties it."""
        self.replays: frozenset[NodeId] | None = None
        """In a replay of another tree: the ids of the children that were given back there. They are not requested here;
        all others are, and are not optional. None if this tree is no replay."""
        self.root = Node((), None, 0, NodeStatus.OPEN)
        self.strategy_cache: dict[Any, Any] = {}
        """Cache of a strategy's results (levels decided, problems solved), by any key. They follow from the nodes that
        have arrived; the cache is cleared when a reward is taken back."""
        self.contexts: list[ContextNode] = []
        """The contexts, in the order of their creation."""
        self._nodes: dict[NodeId, Node] = {(): self.root}
        self._last_serial = self._settled_serial = 0
        self._levels: list[list[Node]] = [[self.root]]
        self._terminals: list[Node] = []
        self._ended: list[int] = [0]
        self._live: dict[Node, None] = {}
        self._arrived: list[Node] | None = None
        """All complete nodes, in the order of arrival; None: to be rebuilt."""
        self._folds: dict[type[Fold], tuple[Fold, int]] = {}
        """Each fold, and how many of ``_arrived`` it has taken."""
        self._folded_for: Any = None
        """The strategy whose folds these are. Another strategy cannot use the statistics they keep on the nodes."""

    def __getitem__(self, node_id: NodeId) -> Node:
        return self._nodes[node_id]

    def __contains__(self, node_id: NodeId) -> bool:
        return node_id in self._nodes

    def __len__(self) -> int:
        """The number of nodes, without the root and the contexts, lookaheads included."""
        return len(self._nodes) - 1 - len(self.contexts)

    @property
    def nodes(self) -> Iterator[Node]:
        """Every node but the root and the contexts, lookaheads included, in the order of their requests."""
        return (node for node in self._nodes.values() if node.parent is not None)

    @property
    def in_flight(self) -> int:
        """The number of nodes that are pending or written."""
        return len(self._live)

    @property
    def live(self) -> list[Node]:
        """The nodes in flight, in the order of their requests."""
        return list(self._live)

    @property
    def terminals(self) -> Sequence[Node]:
        """The terminal nodes, without lookaheads, ordered by id."""
        return self._terminals

    def with_status(self, status: NodeStatus) -> list[Node]:
        """The nodes of that status, without lookaheads, ordered by id, so independent of arrival. Visits every node:
        too slow for decisions."""
        return sorted((n for n in self.nodes if n.status is status and not n.is_lookahead), key=lambda node: node.id)

    def level(self, depth: int) -> list[Node]:
        """The nodes at that depth below the root, without lookaheads, ordered by id; the root at depth 0."""
        return sorted(self._levels[depth], key=lambda node: node.id) if depth < len(self._levels) else []

    @property
    def deepest(self) -> int:
        """The depth of the deepest node, without lookaheads; 0 for the root alone."""
        return len(self._levels) - 1

    def ended(self, depth: int) -> int:
        """The number of paths of the search's own prompt that ended at that depth or above; repeated paths count each
        time. Lookaheads do not count, nor do paths that the step hook ended, which are no solutions."""
        return sum(self._ended[: depth + 1])

    def multiplicity(self, node: Node) -> Fraction:
        """An estimate of the probability that the generator writes the path to a node, independent of what the search
        preferred: the product over its steps of copies / samples at that step, pruned ones included. 1 if siblings are
        not merged, and for steps of lookaheads. A fraction, because rounding would break ties of answers that were
        written equally often."""
        return Fraction(*self.counts_and_samples(node, {}))

    def counts_and_samples(self, node: Node, known: Mapping[Node, tuple[int, int]]) -> tuple[int, int]:
        """Numerator and denominator of the ``multiplicity`` of a node; ``known`` has those of nodes above it."""
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
        """The fold of type ``kind``, up to date with the tree. Call it only when nothing is in flight: then it does not
        depend on the order of arrival."""
        if self._arrived is None:
            self._arrived = [node for node in self.nodes if _has_arrived(node.first)]
        if self._folded_for is not strategy:
            self._folds.clear()
            self._folded_for = strategy
        fold, taken = self._folds.get(kind) or (kind.of(self, strategy), 0)
        fold.take(sorted(self._arrived[taken:], key=lambda node: node.serial))
        self._folds[kind] = fold, len(self._arrived)
        return fold  # type: ignore[return-value]  # stored under its own type

    @property
    def degraded(self) -> bool:
        """Whether it has neutral rewards, steps for which the step hook failed, or votes that are unsure."""
        return self.neutral > 0 or self.hook_failures > 0 or self.unsure_votes

    @property
    def beginning(self) -> str:
        """The text before every path by which its thoughts and answers are read: ``open_thought`` and the prefill."""
        return self.open_thought + self.prefill.text

    def text_of(self, node: Node) -> str:
        """The text of the path that ends in a node, without the prefill and up to the first stop text outside of its
        thoughts."""
        return self._up_to_stop(node.text)

    def thought_at(self, node: Node) -> str:
        """The mark of the thought in which the path to a node ends; empty if it ends in none."""
        return open_thought(self.beginning + node.text)

    def ends_in_thought(self, node: Node) -> bool:
        """Whether the path to a node is thinking alone, without content."""
        text = self.text_of(node)
        return bool(text) and self.parts_of(node).start == len(text)

    def thinking_of(self, node: Node) -> str:
        """The thinking with which the path to a node begins, as it was written, marks included."""
        return "".join(step.text[: step.thought.characters] for step in node.steps)

    def solution_of(self, node: Node) -> str:
        """The text of the path to a node without its thinking; empty for a path that ended in its thought."""
        return "".join(step.solution for step in node.steps)

    def parts_of(self, node: Node) -> Parts:
        """``text_of`` a node in its two parts: the path's thinking, and its content."""
        told = len(self.thinking_of(node))
        if self.answers_without_thought and not told:
            return Parts("", 0)
        text = self.text_of(node)
        return parts(text, self.beginning, min(told, len(text)))

    def content_of(self, node: Node) -> str:
        """``text_of`` a node without its thinking: what the path tells its reader."""
        return self.text_of(node)[self.parts_of(node).start :]

    def answer_of(self, node: Node) -> str | None:
        """The answer of the path that ends in a written node, in what the generator wrote; None if there is none.
        Cached on the node."""
        if node.answer is Unread.UNREAD:
            if self.answers_without_thought and node.thought_tokens:
                read = self.solution_of(node)
            else:
                written = node.written_text if self.hook_texts else node.text
                read = self.beginning + self._up_to_stop(written)
            node.answer = self.extract_answer(read)
        return node.answer

    def spelling_of(self, node: Node) -> str | None:
        """The canonical spelling of ``answer_of``: paths with the same spelling have the same answer."""
        answer = self.answer_of(node)
        return None if answer is None else self.canonical(answer)

    def is_finished(self, node: Node) -> bool:
        """Whether a path came to its own end in a node: the end of the sequence, or an answer."""
        if node.status is not NodeStatus.TERMINAL or node.step is None:
            return False
        return node.step.end is StepEnd.END_OF_SEQUENCE or self.answer_of(node) is not None

    def step_texts(self, node: Node) -> tuple[str, ...]:
        """The texts of all steps of a path as the reward model reads them: the prefill's first, and its rest as the
        beginning of the first step that was written. If it ``scores_solutions``, they are without thinking,
        and the last one is empty for a path that ended in its thought."""
        given = self.scored_prefill
        first, *others = map(_SOLUTION if self.scores_solutions else _TEXT, node.steps)
        return (*given.steps, given.rest + first, *others)

    @property
    def scored_prefill(self) -> Prefill:
        """The prefill as the reward model reads it."""
        prefill, mark = self.prefill, self.open_thought
        if not self.scores_solutions or not (mark or has_marks(prefill.text)):
            return prefill
        read: list[str] = []
        for text in (*prefill.steps, prefill.rest):
            read.append(without_thoughts(mark + text).lstrip("\n") if mark or has_marks(text) else text)
            mark = open_thought(mark + text)
        return Prefill(tuple(filter(None, read[:-1])), read[-1])

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

    def begin(self, context: ContextNode) -> None:
        """Adds a context, which gets its id."""
        first = context.reading.sources[0].id
        index = FIRST_CONTEXT
        while (*first, index) in self._nodes:
            index += 1
        self._add_context(context, (*first, index))

    def extend(self, parent: Node, step: Step, ends: bool = False) -> Node:
        """Adds the next step of a whole solution below the step before it, already written."""
        if parent.status not in (NodeStatus.OPEN, NodeStatus.WRITTEN, NodeStatus.REPEATED):
            raise TreeError(f"node {parent.id} is {parent.status}: nothing can continue it")
        child = self._add(parent, parent.asked)
        self.write(child, step, ends)
        return child

    def settle(self) -> None:
        """Notes that the search requests more branches: from here on, the rewards of all present nodes count as used
        by a decision."""
        self.settled, self._settled_serial = len(self), self._last_serial

    def give_back(self, nodes: Collection[Node]) -> None:
        """Removes pending children that the generator gave back. Their indices are not used again, so the seeds of
        other children do not depend on what was given back, and a replay knows every child by its id."""
        for node in nodes:
            parent = node.parent
            if parent is None or node.status is not NodeStatus.PENDING or node.is_lookahead:
                raise TreeError(f"node {node.id} is {node.status}: it cannot be given back")
            del parent.children[node.id[-1]], self._nodes[node.id], self._live[node]
            parent.given_back |= {node.id[-1]}
            self.settled -= node.serial <= self._settled_serial
        self.given_back += len(nodes)
        gone = set(nodes)
        for depth in {node.depth for node in nodes if node.context is None}:
            self._levels[depth] = [node for node in self._levels[depth] if node not in gone]
        while len(self._levels) > 1 and not self._levels[-1]:
            self._levels.pop()
            self._ended.pop()

    def write(self, node: Node, step: Step, ends: bool = False) -> bool:
        """Records the step of a pending node, and whether the path ends there. Returns False and changes nothing for a
        late or repeated result: the node has its step already, or was pruned or failed.

        Afterwards the node is written, or repeats a sibling, or represents a sibling that arrived before it."""
        if node.status is not NodeStatus.PENDING:
            return False
        node.status = NodeStatus.WRITTEN
        self._set_step(node, step, ends)
        if not node.is_lookahead:
            self._merge(node)
        return True

    def hook(self, node: Node, effect: HookEffect) -> bool:
        """Records what the step hook did with the step of a written node, or of the node that represents its text.
        Returns False and changes nothing if the hook was called before, or the node was pruned or failed."""
        node = node.first
        if node.status is not NodeStatus.WRITTEN or node.hook is not None:
            return False
        for member in (node, *node.repeated_by):
            self._set_hook(member, effect)
        self._count_hook(effect)
        return True

    def complete(self, node: Node, reward: float | None, neutral: bool = False) -> Sequence[Node]:
        """Records the reward of a written node, or of the node that represents its text; ``neutral``: whether it is a
        neutral reward. Returns the nodes that are complete by this: the node and its repeated siblings. Returns none
        and changes nothing if the reward was known already, or the node was pruned or failed.

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
        self._set_status(node, NodeStatus.TERMINAL if node.ends else NodeStatus.OPEN)
        arrived = (node, *node.repeated_by)
        for member in arrived:
            member.reward, member.score = reward, None
            self._record_arrival(member)
        return arrived

    def prune(self, node: Node) -> None:
        """Prunes a node and all nodes below it, in flight or not. Ended nodes keep their status."""
        for member in self._subtree(node):
            if member.status not in ENDED:
                self._give_up(member, NodeStatus.PRUNED)

    def end_wandering(self, node: Node) -> None:
        """Ends the path to an open node, below which nothing was requested."""
        if node.status is not NodeStatus.OPEN or node.asked_below:
            raise TreeError(f"node {node.id} is {node.status}: its path cannot end as wandering")
        self._give_up(node, NodeStatus.WANDERING)

    def fail(self, node: Node) -> None:
        """Marks a node in flight as failed; any other node stays as it is."""
        if node.status in IN_FLIGHT:
            self._set_status(node, NodeStatus.FAILED)

    def take_up(self, node: Node) -> None:
        """Puts a failed node back in flight: written if it has its step, pending otherwise."""
        if node.status is not NodeStatus.FAILED:
            raise TreeError(f"node {node.id} is {node.status}: it cannot be resumed")
        self._set_status(node, NodeStatus.PENDING if node.step is None else NodeStatus.WRITTEN)
        # The node will arrive after nodes that were requested later, but a fold takes nodes in the order of requests.
        self._folds.clear()

    def score_again(self, node: Node) -> None:
        """Takes back a neutral reward: the node is written again and waits to be scored."""
        if not node.neutral or node.status not in COMPLETE:
            raise TreeError(f"node {node.id} is {node.status}: its reward cannot be taken back")
        self.neutral -= 1
        node.neutral = False
        self._set_status(node, NodeStatus.WRITTEN)
        for member in (node, *node.repeated_by):
            member.reward = None
            for below in self._subtree(member):
                below.score = None
        self._arrived = None
        self._folds.clear()
        self.strategy_cache.clear()

    def reopen(self, node: Node) -> None:
        """Opens a node that was given up and has a reward."""
        if node.status not in GIVEN_UP or node.reward is None:
            raise TreeError(f"node {node.id} is {node.status}: it cannot be reopened")
        self._set_status(node, NodeStatus.OPEN)

    def restore(
        self,
        node_id: NodeId,
        status: NodeStatus,
        step: Step | None,
        reward: float | None,
        request: ExpansionRequest | None,
        neutral: bool = False,
        ends: bool = False,
        hook: HookEffect | None = None,
    ) -> None:
        """Adds a node with the state that it had in another tree; ``step`` is its ``written_step``.

        Call order: parents before children, siblings by index, ``restore_given_back`` of a node before its children,
        ``restore_repeats`` after all nodes.

        Raises:
            KeyError: the parent is missing.
            ValueError: the node is there already, or a sibling before it is missing.
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
            self._set_step(node, step, ends)
            if hook is not None:
                self._set_hook(node, hook)
                if status is not NodeStatus.REPEATED:
                    self._count_hook(hook)
        self._set_status(node, status)

    def restore_context(
        self,
        node_id: NodeId,
        sources: Sequence[NodeId],
        template: str,
        note: str = "",
        prompt_tokens: int = 0,
        digest: str = "",
        unread: int = 0,
    ) -> None:
        """Adds a context that another tree had, after its sources and before the nodes below it.

        Raises:
            KeyError: a source is missing.
            ValueError: the id is not that of a context of these sources.
        """
        reading = Reading(tuple(self._nodes[source] for source in sources), template, note)
        if node_id in self._nodes or node_id[:-1] != tuple(sources[0]) or node_id[-1] < FIRST_CONTEXT:
            raise ValueError("its id is not that of a context of its sources")
        context = ContextNode((), None, reading=reading, prompt_tokens=prompt_tokens, digest=digest, unread=unread)
        self._add_context(context, node_id)

    def restore_given_back(self, node_id: NodeId, indices: Collection[int]) -> None:
        """Records which children of a node were given back in another tree."""
        self._nodes[node_id].given_back = frozenset(indices)
        self._nodes[node_id].asked_below |= bool(indices)
        self.given_back += len(indices)

    def restore_repeats(self) -> None:
        """Links repeated nodes to the siblings that represent them, after all nodes were restored.

        Raises:
            ValueError: a repeated node has no sibling of the same text.
        """
        written = [node for node in self.nodes if node.step and not node.is_lookahead]
        # Level by level, because copies share their continuations; within a level, representing nodes first.
        for node in sorted(written, key=lambda node: (node.depth, node.status is NodeStatus.REPEATED)):
            first = self._count_among_siblings(node)
            if node.status is NodeStatus.REPEATED:
                if first is node:
                    raise ValueError(f"node {list(node.id)} repeats no other")
                self._mark_repeated(node, first)

    def check_integrity(self) -> list[str]:
        """A description of every broken invariant; empty if all hold."""
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
            if node.hook is not None and not (node.step and node.step.text.endswith(node.hook.text)):
                problems.append(f"the step of {node.id} does not end with the text of the step hook")
        for context in self.contexts:
            sources = context.reading.sources
            if context.id[:-1] != sources[0].id or any(self._nodes.get(each.id) is not each for each in sources):
                problems.append(f"{context.id} is no context of its sources {[each.id for each in sources]}")
        for node in (self.root, *self.contexts, *self.nodes):
            below = node.continuations
            if below is not None and below.standing != sorted((below.by_text or {}).values(), key=_ID):
                problems.append(f"the distinct children of {node.id} are not in order")
            if node.given_back and {*node.children} | node.given_back != {*range(node.asked)}:
                problems.append(f"{node.id} has children {sorted(node.children)}, given back {sorted(node.given_back)}")
        live = sum(node.status in IN_FLIGHT for node in self.nodes)
        if live != self.in_flight:
            problems.append(f"{live} nodes are in flight, {self.in_flight} are counted")
        return problems

    def _add(self, parent: Node, index: int) -> Node:
        self._last_serial += 1
        node = Node((*parent.id, index), parent, self._last_serial, is_lookahead=parent.is_lookahead or index < 0)
        node.context = parent.context
        if not node.is_lookahead and node.context is None:
            if node.depth == len(self._levels):
                self._levels.append([])
                self._ended.append(0)
            self._levels[node.depth].append(node)
        (parent.children if index >= 0 else parent.lookaheads)[index] = node
        self._nodes[node.id] = node
        self._live[node] = None
        return node

    def _add_context(self, context: ContextNode, node_id: NodeId) -> None:
        if any(source.is_lookahead or source.step is None for source in context.reading.sources):
            raise TreeError(f"the sources of context {node_id} must be written nodes that are no lookaheads")
        context.id, context.context, context.status = node_id, context, NodeStatus.OPEN
        context.round = 1 + max(source.context.round if source.context else 0 for source in context.reading.sources)
        self._nodes[node_id] = context
        self.contexts.append(context)

    def _set_step(self, node: Node, step: Step, ends: bool) -> None:
        assert node.parent is not None
        node.step, node.ends = step, ends
        size = step.size
        node.path_tokens = node.parent.path_tokens + size
        node.thought_tokens = node.parent.thought_tokens + step.thought.tokens
        self.longest_thought = max(self.longest_thought, step.thought.tokens)
        if step.end is StepEnd.DELIMITER:
            self.longest_step = max(self.longest_step, size - step.thought.tokens)
        if ends and step.end is not StepEnd.LENGTH:
            self.longest_path = max(self.longest_path, node.path_tokens - node.thought_tokens)

    def _set_hook(self, node: Node, effect: HookEffect) -> None:
        step = node.step
        assert step is not None
        node.hook, node.ends = effect, node.ends or effect.ends
        text, added = step.text + effect.text, len(effect.token_ids)
        if step.counted is None:
            node.step = step._replace(token_ids=step.token_ids + effect.token_ids, text=text)
        else:
            node.step = step._replace(text=text, counted=step.counted + added)
        node.path_tokens += added

    def _count_hook(self, effect: HookEffect) -> None:
        self.hook_texts += bool(effect.text)
        self.hook_failures += effect.failed

    def _up_to_stop(self, text: str) -> str:
        if not self.stop:
            return text
        whole, given = self.beginning + text, len(self.beginning)
        for start, end in outside_thoughts(whole):
            # The empty lines behind a thought belong to neither it nor the answer.
            first = max(given, end - len(whole[start:end].lstrip()) if start else 0)
            if found := [index for stop in self.stop if (index := whole.find(stop, first, end)) >= 0]:
                return text[: min(found) - given]
        return text

    def _count_among_siblings(self, node: Node) -> Node:
        """Counts a written node among its siblings. Returns the node that represents its text: itself for a new
        text."""
        parent = node.parent
        assert parent is not None
        below = parent.continuations = parent.continuations or Continuations()
        below.samples += 1
        if not self.merges_siblings:
            return node
        below.by_text = {} if below.by_text is None else below.by_text
        first = below.by_text.setdefault(_sibling_key(node), node)
        if first is node:
            insort(below.standing, node, key=_ID)
        return first

    def _merge(self, node: Node) -> None:
        """Counts a node that was just written and merges it with the sibling of the same text, if any."""
        first = self._count_among_siblings(node)
        if first is node:
            return
        if (
            node.id < first.id
            and not first.asked_below
            and first.status in (NodeStatus.WRITTEN, NodeStatus.OPEN, NodeStatus.TERMINAL)
        ):
            self._represent(node, first)
        else:
            self._set_status(node, NodeStatus.REPEATED)
            self._mark_repeated(node, first)
            node.reward = first.reward
        if _has_arrived(node.first):
            self._record_arrival(node)

    def _record_arrival(self, node: Node) -> None:
        if self._arrived is not None:
            self._arrived.append(node)

    def _mark_repeated(self, node: Node, first: Node) -> None:
        """Makes ``node`` a repetition of ``first``."""
        if first.hook is not None and node.hook is None:
            self._set_hook(node, first.hook)
        node.continuations = first.continuations = first.continuations or Continuations(by_text={})
        node.repeats, node.count = first, 0
        first.repeated_by += (node,)
        first.count += 1
        self.repeated += 1
        if first.status is NodeStatus.TERMINAL and first.context is None and not first.ended_by_hook:
            self._ended[first.depth] += 1

    def _represent(self, node: Node, first: Node) -> None:
        """Makes ``node`` represent the text in place of ``first``, which arrived before it but has a later id."""
        status, members = first.status, (first, *first.repeated_by)
        self._set_status(first, NodeStatus.REPEATED)
        first.repeated_by = ()
        node.continuations = first.continuations
        node.statistics, first.statistics = first.statistics, None
        node.reward, node.neutral, first.neutral = first.reward, first.neutral, False
        if first.hook is not None:
            self._set_hook(node, first.hook)
        assert node.parent is not None
        below = node.parent.continuations
        if below is not None and below.by_text is not None and node.step is not None:
            below.by_text[_sibling_key(node)] = node
            del below.standing[bisect_left(below.standing, first.id, key=_ID)]
            insort(below.standing, node, key=_ID)
        if status is not node.status:
            self._set_status(node, status)
        self.repeated -= len(members) - 1
        for member in members:
            self._mark_repeated(member, node)

    def _set_status(self, node: Node, status: NodeStatus) -> None:
        """Changes a status, and updates every count and list that depends on it. The only method that does."""
        if node.status is NodeStatus.TERMINAL and not node.is_lookahead:
            self._terminals.remove(node)
            if node.context is None:
                self._ended[node.depth] -= 0 if node.ended_by_hook else node.count
        if status is NodeStatus.TERMINAL and not node.is_lookahead:
            insort(self._terminals, node, key=_ID)
            if node.context is None:
                self._ended[node.depth] += 0 if node.ended_by_hook else node.count
        if status in IN_FLIGHT:
            self._live[node] = None
        else:
            self._live.pop(node, None)
        node.status = status

    def _give_up(self, node: Node, status: NodeStatus) -> None:
        self._set_status(node, status)
        self.newly_pruned.append(node)

    def _subtree(self, node: Node) -> Iterator[Node]:
        stack = [node]
        while stack:
            member = stack.pop()
            yield member
            stack.extend(member.children.values())
            stack.extend(member.lookaheads.values())


def _sibling_key(node: Node) -> SiblingKey:
    """The key of a written node, whatever the step hook did with its step."""
    step = node.written_step
    assert step is not None
    return SiblingKey(step.text, step.end, node.ends and not node.ended_by_hook)


def _has_arrived(node: Node) -> bool:
    """Whether a node that represents a text is complete, or was complete before it was pruned."""
    return node.status in (NodeStatus.OPEN, NodeStatus.TERMINAL) or (
        node.status in GIVEN_UP and node.reward is not None
    )
