"""How much KV memory the branches of a search keep in use, in tokens: what ETS saves beside REBASE."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, starmap, takewhile

from search.tree import Node, NodeStatus, SearchTree
from search.turns import Turns


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


class KVUsage:
    """Counts, round by round, the tokens whose KV the branches under way need.

    A round is all that is under way at a time: prompt, paths and what is being written, shared prefixes once. It is
    counted when the next one begins, because only then is known how much was written.
    """

    def __init__(self, tree: SearchTree, prompt_tokens: int) -> None:
        self.by_node = KVHeld()
        """Every node for itself, as ETS counts."""
        self.by_path = KVHeld()
        """What siblings begin with alike is held once, as in a cache of prefixes."""
        self._tree = tree
        self._prompt_tokens = prompt_tokens
        self._round: list[Node] = []

    async def round_begins(self) -> None:
        """What is pending now has just been asked for, or is still under way."""
        await self.search_ends()
        self._round = [node for node in self._tree.live if node.status is NodeStatus.PENDING]

    async def search_ends(self) -> None:
        if not self._round:
            return
        # By the text that they continue: what is below two writings of the same text is siblings too.
        turns = Turns()
        siblings: dict[Node, dict[Node, None]] = {}
        for node in _on_paths(self._round):
            assert node.parent is not None
            siblings.setdefault(node.parent.first, {})[node] = None
            await turns.pass_on()
        by_node = by_path = self._prompt_tokens
        for nodes in siblings.values():
            tokens = [_tokens(node) for node in nodes]
            by_node += (whole := sum(map(len, tokens)))
            by_path += whole if len(tokens) == 1 else distinct_tokens(tokens)
            await turns.pass_on()
        self.by_node.add(by_node)
        self.by_path.add(by_path)
        self._round = []


def distinct_tokens(sequences: Iterable[tuple[int, ...]]) -> int:
    """How many places the trie of these sequences has: what they begin with alike counts once."""
    ordered = sorted(sequences)
    return sum(map(len, ordered)) - sum(starmap(_shared, pairwise(ordered)))


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in alike)


def _on_paths(branches: Iterable[Node]) -> Iterator[Node]:
    """Every node above and below some branches, and these, once each, the root left out."""
    seen: set[Node] = set()
    for branch in branches:
        node: Node | None = branch.parent
        while node is not None and node.parent is not None and node not in seen:
            seen.add(node)
            yield node
            node = node.parent
        below = [branch]
        while below:
            node = below.pop()
            if node not in seen:
                seen.add(node)
                yield node
                # The later steps of a whole solution; what was asked for since has no tokens yet.
                below += (*node.children.values(), *node.lookaheads.values())


def _tokens(node: Node) -> tuple[int, ...]:
    return node.step.token_ids if node.step else ()
