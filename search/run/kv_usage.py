"""Measures the KV memory that the branches of a search hold, in tokens: the cost that ETS reduces against REBASE."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, starmap, takewhile
from typing import NamedTuple

from search.tools.turns import Turns
from search.tree import ContextNode, Node, NodeStatus, SearchTree


class KVHeld:
    """Peak and sum of the tokens held, over the rounds of a search."""

    def __init__(self) -> None:
        self.peak = 0
        """The most tokens held in any round."""
        self.sum = 0
        """Tokens held, summed over all rounds."""

    def add(self, tokens: int) -> None:
        self.peak = max(self.peak, tokens)
        self.sum += tokens


class Tokens(NamedTuple):
    """Token count of some steps, by both ways of counting; see `KVUsage`."""

    by_node: int
    by_path: int


class KVUsage:
    """Counts, round by round, the tokens whose KV the branches in flight need.

    A round is all branches in flight at one time. It holds their prompts, the paths to these branches and the steps
    that they write, shared prefixes once. A round is counted when the next one begins, because its steps are written
    only then. The count is incremental: each round looks only at nodes that joined or left the paths. It does not
    depend on an engine's cache, so it is the same on every machine.
    """

    def __init__(self, tree: SearchTree, prompt_tokens: int) -> None:
        self.by_node = KVHeld()
        """Counts the tokens of every node, as ETS does."""
        self.by_path = KVHeld()
        """Counts a common prefix of siblings once, as a prefix cache holds it."""
        self._tree = tree
        self._round: list[Node] = []
        self._references: dict[Node, int] = {}
        """Reference count of every node on the paths of the round, without the root: its children on these paths, plus
        one if the node itself belongs to the round."""
        self._continued: dict[Node, Node] = {}
        """For each node in ``_references``, the node that represents its parent's text. Children of different copies of
        a text are siblings too."""
        self._siblings: dict[Node, dict[Node, None]] = {}
        """For each text in ``_continued``, the nodes that continue it."""
        self._changed: dict[Node, None] = {}
        """Texts whose continuations changed since they were counted."""
        self._tokens: dict[Node, Tokens] = {}
        """Tokens counted for the continuations of each text."""
        self._held = Tokens(0, 0)
        """Sum of ``_tokens``."""
        self._prompt_tokens = prompt_tokens
        self._prompts: dict[Node, int] = {}
        """The roots of the paths, and for each its children on them: their prompts are held."""

    async def round_begins(self) -> None:
        """Counts the last round and begins the next one, which is all nodes that are pending now. Call it when the
        branches of a round are planned."""
        turns = Turns()
        ended = [*self._round, *await self._count(turns)]
        self._round = [node for node in self._tree.live if node.status is NodeStatus.PENDING]
        for node in self._round:
            self._take(node)
            await turns.pass_on()
        for node in ended:
            self._drop(node)
            await turns.pass_on()

    async def search_ends(self) -> None:
        """Counts the last round and frees the bookkeeping."""
        turns = Turns()
        await self._count(turns)
        self._round = []
        # One entry per node on the paths: freed in one go, they would block the event loop.
        for counted in (self._siblings, self._tokens, self._references, self._continued, self._prompts):
            while counted:
                counted.popitem()
                await turns.pass_on()

    async def _count(self, turns: Turns) -> list[Node]:
        """Counts the round now that it is written. Returns the nodes written below its branches, the later steps of
        whole solutions."""
        if not self._round:
            return []
        later: list[Node] = []
        for branch in self._round:
            self._changed[self._continued[branch]] = None
            for node in _written_below(branch):
                self._take(node)
                later.append(node)
                await turns.pass_on()
        for text in self._changed:
            steps = [_tokens(node) for node in self._siblings.get(text, ())]
            whole = sum(map(len, steps))
            counted = Tokens(whole, distinct_tokens(steps) if len(steps) > 1 else whole)
            before = self._tokens.pop(text, Tokens(0, 0))
            if steps:
                self._tokens[text] = counted
            self._held = Tokens(
                self._held.by_node + counted.by_node - before.by_node,
                self._held.by_path + counted.by_path - before.by_path,
            )
            await turns.pass_on()
        self._changed.clear()
        prompts = self._held_prompts()
        self.by_node.add(prompts.by_node + self._held.by_node)
        self.by_path.add(prompts.by_path + self._held.by_path)
        return later

    def _held_prompts(self) -> Tokens:
        """Tokens of the prompts of the round. Those of contexts share what they have in common."""
        contexts = [node for node in self._prompts if isinstance(node, ContextNode)]
        own = self._prompt_tokens if len(contexts) < len(self._prompts) else 0
        whole = sum(context.prompt_tokens for context in contexts)
        uncounted = whole - sum(len(context.prompt.token_ids) for context in contexts)
        distinct = distinct_tokens(context.prompt.token_ids for context in contexts)
        return Tokens(own + whole, own + uncounted + distinct)

    def _take(self, node: Node) -> None:
        """Adds a reference to a node, and to all nodes above it if it had none."""
        while node.parent is not None:
            self._references[node] = self._references.get(node, 0) + 1
            if self._references[node] > 1:
                return
            text = self._continued[node] = node.parent.first
            self._siblings.setdefault(text, {})[node] = None
            self._changed[text] = None
            node = node.parent
        self._prompts[node] = self._prompts.get(node, 0) + 1

    def _drop(self, node: Node) -> None:
        """Drops a reference to a node, and to the nodes above it if it was the last one."""
        while node.parent is not None:
            self._references[node] -= 1
            if self._references[node]:
                return
            del self._references[node]
            text = self._continued.pop(node)
            self._changed[text] = None
            del self._siblings[text][node]
            if not self._siblings[text]:
                del self._siblings[text]
            node = node.parent
        self._prompts[node] -= 1
        if not self._prompts[node]:
            del self._prompts[node]


def distinct_tokens(sequences: Iterable[tuple[int, ...]]) -> int:
    """The number of nodes in the trie of these sequences: a common prefix counts once."""
    ordered = sorted(sequences)
    return sum(map(len, ordered)) - sum(starmap(_shared, pairwise(ordered)))


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the common prefix of two sequences, in tokens."""
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in alike)


def _written_below(branch: Node) -> Iterator[Node]:
    """The later steps of a whole solution. Branches requested since have no step yet and are left out."""
    below = [*branch.children.values(), *branch.lookaheads.values()]
    while below:
        node = below.pop()
        if node.step is not None:
            yield node
            below += (*node.children.values(), *node.lookaheads.values())


def _tokens(node: Node) -> tuple[int, ...]:
    step = node.step
    if step is None or step.counted is None:
        return step.token_ids if step else ()
    return tuple(hash((step.text, index)) for index in range(step.counted))  # only equal texts share any
