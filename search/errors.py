"""Errors that end a search without an answer.

SearchError             a search cannot go on
├── GeneratorError      no replica could write the branches
│   └── GeneratorRefused    the request itself is at fault
│       ├── PathTooLarge        no generator's KV memory could hold a path
│       └── SchemaRefused       the generator cannot write to the JSON schema
├── ScorerError         no usable rewards
│   └── ScorerRefused       the request itself is at fault
│       └── ScoredPathTooLarge  no scorer's context or KV memory could hold a path
├── HarmfulRequest      the request ended two engines
├── HookError           the step hook failed (kind)
├── PromptTooLong       the prompt fills the generator's context
├── ContextsUnavailable the strategy reads solutions, and nothing composes their prompts
├── BudgetTooSmall      the search might not fit into its budget.total_tokens; nothing was spent
└── LimitReached        a limit (kind, value, limit) was reached before there was a path to answer with

All of them can be pickled, because they cross processes.
"""

from enum import StrEnum


class SearchError(RuntimeError):
    """A search cannot go on. Root of all errors that the ports raise."""


class GeneratorError(SearchError):
    """No replica of the generator could write the requested branches."""


class GeneratorRefused(GeneratorError):
    """The generator refused the request. No other replica and no retry would accept it."""


class PathTooLarge(GeneratorRefused):
    """A path of the request, plus one token, would not fit into a generator's whole KV memory."""


class SchemaRefused(GeneratorRefused):
    """The generator cannot hold a text to the request's JSON schema."""


class ScorerError(SearchError):
    """The scorer gave no usable rewards: it was unreachable or too late, or gave NaN or the wrong number of rewards."""


class ScorerRefused(ScorerError):
    """The scorer refused the request as too long or malformed. No other replica and no retry would accept it."""


class ScoredPathTooLarge(ScorerRefused):
    """A path that is to be scored would not fit into a reward model's context or its whole KV memory."""


class HarmfulRequest(SearchError):
    """Work on the request ended two engines, the second one while it worked on nothing else. No retry would help, and
    each would end another engine."""


class HookFailure(StrEnum):
    """How a call of the step hook failed."""

    RAISED = "raised"
    """The function raised an exception."""
    LATE = "late"
    """The function was not done by its deadline."""
    INVALID = "invalid"
    """The function returned neither None, nor a text that can be added, nor ``END_PATH``."""


class HookError(SearchError):
    """A call of the step hook failed."""

    def __init__(self, kind: HookFailure, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind

    def __str__(self) -> str:
        return f"the step hook failed ({self.kind}): {self.args[1]}"


class PromptTooLong(SearchError):
    """The prompt leaves no room in the generator's context for a single token."""


class ContextsUnavailable(SearchError):
    """The strategy has the model read solutions, and there is nothing to compose such prompts with."""

    def __init__(self, strategy: str) -> None:
        super().__init__(strategy)

    def __str__(self) -> str:
        return f"{self.args[0]} has the model read solutions: the prompts for it cannot be composed here"


class BudgetTooSmall(SearchError):
    """The prompt and the first round of a search might take more than its ``budget.total_tokens``."""

    def __init__(self, total_tokens: int, prompt_tokens: int, branches: int, branch_tokens: int, kept: int) -> None:
        """
        Args:
            branches: number of branches in the first round.
            branch_tokens: most tokens of each.
            kept: tokens that the search keeps to finish a path.
        """
        super().__init__(total_tokens, prompt_tokens, branches, branch_tokens, kept)
        self.needed = prompt_tokens + branches * branch_tokens + kept
        """The smallest ``total_tokens`` that would do."""
        self.fitting = max(0, (total_tokens - prompt_tokens - kept) // branch_tokens)
        """Number of branches that would fit."""

    def __str__(self) -> str:
        total, prompt, branches, tokens, kept = self.args
        finish = f", and {kept} to finish a path" if kept else ""
        fewer = f", or {_branches(self.fitting)}" if self.fitting else ""
        return (
            f"budget.total_tokens is {total}, but the prompt has {prompt} tokens and the first round may take "
            f"{self.needed - prompt} more: {_branches(branches)} of at most {tokens}{finish}. "
            f"What would fit: total_tokens of {self.needed}{fewer}"
        )


def _branches(count: int) -> str:
    return f"{count} {'branch' if count == 1 else 'branches'}"


class LimitKind(StrEnum):
    """The resource that a limit bounds."""

    TOKENS = "tokens"
    NODES = "nodes"
    SECONDS = "seconds"


class LimitReached(SearchError):
    """A limit ended a search before there was a path to answer with."""

    def __init__(self, kind: LimitKind, value: float, limit: float) -> None:
        # All three go to the base class: an exception is pickled by its args, and this one crosses processes.
        super().__init__(kind, value, limit)
        self.kind = kind
        self.value = value
        self.limit = limit

    def __str__(self) -> str:
        return f"the limit of {self.limit:g} {self.kind} was reached at {self.value:g}"
