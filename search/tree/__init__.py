"""The search tree: its nodes (``nodes``) and the tree itself (``tree``)."""

from search.tree.nodes import (
    COMPLETE,
    FIRST_CONTEXT,
    GIVEN_UP,
    NO_THOUGHT,
    ContextNode,
    ExpansionRequest,
    HookEffect,
    Node,
    NodeId,
    NodeStatus,
    Reading,
    Span,
    Step,
    StepEnd,
    Thought,
    TreeError,
    begins_paths,
    context_id,
)
from search.tree.prefill import Prefill
from search.tree.tree import Fold, SearchTree

__all__ = [
    "COMPLETE",
    "FIRST_CONTEXT",
    "GIVEN_UP",
    "NO_THOUGHT",
    "ContextNode",
    "ExpansionRequest",
    "Fold",
    "HookEffect",
    "Node",
    "NodeId",
    "NodeStatus",
    "Prefill",
    "Reading",
    "SearchTree",
    "Span",
    "Step",
    "StepEnd",
    "Thought",
    "TreeError",
    "begins_paths",
    "context_id",
]
