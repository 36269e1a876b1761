"""A tree as JSON: for a reply, and for telling whether two searches grew the same tree."""

from typing import Any

from search.tree import Node, SearchTree

SNAPSHOT_VERSION = 1


def tree_as_json(tree: SearchTree) -> dict[str, Any]:
    """The tree without its root, nodes ordered by id, so equal trees are equal here whatever grew first.

    ``id`` is the path of child indices, ``tokens`` the number of the step's tokens, ``end`` why its text
    ends. ``text`` and ``end`` are null and ``tokens`` 0 for a node that was never written, ``reward`` is
    null for one that was never scored.
    """
    nodes = sorted(tree.nodes, key=lambda node: node.id)
    return {"version": SNAPSHOT_VERSION, "nodes": [_node_as_json(node) for node in nodes]}


def _node_as_json(node: Node) -> dict[str, Any]:
    step = node.step
    return {
        "id": list(node.id),
        "text": step.text if step else None,
        "reward": node.reward,
        "status": node.status.value,
        "tokens": len(step.token_ids) if step else 0,
        "end": step.end.value if step else None,
    }
