"""How much KV memory the branches of a search keep in use, in tokens: what ETS saves beside REBASE."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, starmap, takewhile
from typing import NamedTuple

from search.tools.turns import Turns
from search.tree import Node, NodeStatus, SearchTree


class KVHeld:
    """Tokens held, over the rounds of a search."""

    def __init__(self) -> None:
        self.peak = 0
        """Most in any round."""
        self.sum = 0
        """Over all rounds."""

    def add(self, tokens: int) -> None:
        self.peak = max(self.peak, tokens)
        self.sum += tokens


class Tokens(NamedTuple):
    """Tokens of some steps."""

    by_node: int
    by_path: int


class KVUsage:
    """Counts, round by round, the tokens whose KV the branches under way need.

    A round is all that is under way at a time: prompt, paths and what is being written, shared prefixes once. It is
    counted when the next one begins, because only then is known how much was written. From one round to the next, only
    what is new on the paths, or no longer on any, is looked at.
    """

    def __init__(self, tree: SearchTree, prompt_tokens: int) -> None:
        self.by_node = KVHeld()
        """Every node for itself, as ETS counts."""
        self.by_path = KVHeld()
        """What siblings begin with alike is held once, as in a cache of prefixes."""
        self._tree = tree
        self._round: list[Node] = []
        self._needed: dict[Node, int] = {}
        """Every node on the paths of the round, the root left out: how many of its children there are there, and itself
        if it is of the round."""
        self._continued: dict[Node, Node] = {}
        """Of each of these, the text that it continues: what is below two writings of a text is siblings too."""
        self._siblings: dict[Node, dict[Node, None]] = {}
        """What continues each text."""
        self._changed: dict[Node, None] = {}
        """Texts that something else continues now than was counted."""
        self._tokens: dict[Node, Tokens] = {}
        """What was counted of each text's continuations; and of all together, with the prompt."""
        self._held = Tokens(prompt_tokens, prompt_tokens)

    async def round_begins(self) -> None:
        """What is pending now has just been asked for, or is still under way."""
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
        turns = Turns()
        await self._count(turns)
        self._round = []
        # As many as there are nodes on the paths: freed in one go, they would hold up the others.
        for counted in (self._siblings, self._tokens, self._needed, self._continued):
            while counted:
                counted.popitem()
                await turns.pass_on()

    async def _count(self, turns: Turns) -> list[Node]:
        """Counts the round as it was written. Gives what it wrote below its branches: the later steps of solutions."""
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
        self.by_node.add(self._held.by_node)
        self.by_path.add(self._held.by_path)
        return later

    def _take(self, node: Node) -> None:
        """Needs a node, and so all above it."""
        while node.parent is not None:
            self._needed[node] = self._needed.get(node, 0) + 1
            if self._needed[node] > 1:
                return
            text = self._continued[node] = node.parent.first
            self._siblings.setdefault(text, {})[node] = None
            self._changed[text] = None
            node = node.parent

    def _drop(self, node: Node) -> None:
        """Needs a node no longer, nor what is above it for its sake."""
        while node.parent is not None:
            self._needed[node] -= 1
            if self._needed[node]:
                return
            del self._needed[node]
            text = self._continued.pop(node)
            self._changed[text] = None
            del self._siblings[text][node]
            if not self._siblings[text]:
                del self._siblings[text]
            node = node.parent


def distinct_tokens(sequences: Iterable[tuple[int, ...]]) -> int:
    """How many places the trie of these sequences has: what they begin with alike counts once."""
    ordered = sorted(sequences)
    return sum(map(len, ordered)) - sum(starmap(_shared, pairwise(ordered)))


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in alike)


def _written_below(branch: Node) -> Iterator[Node]:
    """The later steps of a solution that came in one piece; what was asked for since has no step yet."""
    below = [*branch.children.values(), *branch.lookaheads.values()]
    while below:
        node = below.pop()
        if node.step is not None:
            yield node
            below += (*node.children.values(), *node.lookaheads.values())


def _tokens(node: Node) -> tuple[int, ...]:
    return node.step.token_ids if node.step else ()
