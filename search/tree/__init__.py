"""The search tree: its nodes (``nodes``) and the tree itself (``tree``)."""

from search.tree.nodes import (
    COMPLETE,
    GIVEN_UP,
    NO_THOUGHT,
    ExpansionRequest,
    HookEffect,
    Node,
    NodeId,
    NodeStatus,
    Span,
    Step,
    StepEnd,
    Thought,
    TreeError,
)
from search.tree.prefill import Prefill
from search.tree.tree import Fold, SearchTree

__all__ = [
    "COMPLETE",
    "GIVEN_UP",
    "NO_THOUGHT",
    "ExpansionRequest",
    "Fold",
    "HookEffect",
    "Node",
    "NodeId",
    "NodeStatus",
    "Prefill",
    "SearchTree",
    "Span",
    "Step",
    "StepEnd",
    "Thought",
    "TreeError",
]
