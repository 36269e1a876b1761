"""How much KV memory the branches of a search keep in use, in tokens: what ETS saves beside REBASE."""

from search.tree import Node, NodeStatus, SearchTree


class KVUsage:
    """Counts, round by round, the tokens whose KV the branches under way need.

    A round is all that is under way at a time: prompt, paths and what is being written, shared prefixes once. It is
    counted when the next one begins, because only then is known how much was written.
    """

    def __init__(self, tree: SearchTree, prompt_tokens: int) -> None:
        self.peak = 0
        """Most tokens held in any round."""
        self.sum = 0
        """Over all rounds."""
        self._tree = tree
        self._prompt_tokens = prompt_tokens
        self._round: list[Node] = []

    def round_begins(self) -> None:
        """What is pending now has just been asked for, or is still under way."""
        self.search_ends()
        self._round = [node for node in self._tree.nodes if node.status is NodeStatus.PENDING]

    def search_ends(self) -> None:
        if not self._round:
            return
        on_paths = {above for node in self._round for above in node.path}
        held = sum(map(_tokens, on_paths)) + sum(_tokens_below(node) for node in self._round)
        self.peak = max(self.peak, self._prompt_tokens + held)
        self.sum += self._prompt_tokens + held
        self._round = []


def _tokens(node: Node) -> int:
    return len(node.step.token_ids) if node.step else 0


def _tokens_below(node: Node) -> int:
    """Of the later steps, where the branch was a whole solution; what was asked for since has no tokens yet."""
    return sum(_tokens(child) + _tokens_below(child) for child in (*node.children.values(), *node.lookaheads.values()))
