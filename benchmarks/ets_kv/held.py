"""KV that the paths of a tree hold, round by round."""

from typing import NamedTuple

from search.run.kv_usage import distinct_tokens
from search.tree import SearchTree


class Round(NamedTuple):
    """KV of one level while its steps are written, in tokens without the prompt."""

    samples: int
    """Steps written."""
    texts: int
    """Distinct paths among them."""
    by_node: int
    """Tokens with each node counted once."""
    by_path: int
    """Tokens with each distinct token prefix counted once."""
    one_parent: int
    """Like ``by_path``, if the same steps all hung below the shortest of their parents' paths. No choice of paths to
    keep can hold less while as much is written."""


def rounds_of(tree: SearchTree) -> list[Round]:
    """Rounds of a search that grew level by level."""
    rounds: list[Round] = []
    for depth in range(1, tree.deepest + 1):
        written = [node for node in tree.level(depth) if node.step is not None]
        if not written:
            continue
        paths = [tuple(node.token_ids) for node in written]
        parents = {tuple(node.parent.token_ids) for node in written if node.parent is not None}
        nodes = {node for leaf in written for node in leaf.path}
        by_path = distinct_tokens(paths)
        rounds.append(
            Round(
                samples=len(written),
                texts=len(set(paths)),
                by_node=sum(len(node.step.token_ids) for node in nodes if node.step is not None),
                by_path=by_path,
                one_parent=by_path - distinct_tokens(parents) + min(map(len, parents)),
            )
        )
    return rounds
