"""The search tree: its nodes (``nodes``) and the tree itself (``tree``)."""

from search.tree.nodes import (
    COMPLETE,
    ExpansionRequest,
    HookEffect,
    Node,
    NodeId,
    NodeStatus,
    Step,
    StepEnd,
    TreeError,
)
from search.tree.prefill import Prefill
from search.tree.tree import Fold, SearchTree

__all__ = [
    "COMPLETE",
    "ExpansionRequest",
    "Fold",
    "HookEffect",
    "Node",
    "NodeId",
    "NodeStatus",
    "Prefill",
    "SearchTree",
    "Step",
    "StepEnd",
    "TreeError",
]
