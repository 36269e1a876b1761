"""Composes the prompts of a search's contexts."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from search.errors import ContextsUnavailable, PromptTooLong
from search.prompt import Prompt
from search.run.path_limits import PathLimits
from search.settings import SearchSettings
from search.tools.turns import Turns
from search.tree import ContextNode, Node, Reading, SearchTree

MAX_SHOWN_CHARS = 16_384
"""Most characters that a source shows, the last ones of its solution: they have the answer."""

Compose: TypeAlias = Callable[[Any, str, Sequence[str], str], Prompt]
"""Composes a prompt from the messages of the question, as `run_search` got them, the name of a template, the texts of
the sources and a note. A pure function: a search that resumes composes its prompts again."""


class Composer:
    """Composes the contexts of one search."""

    def __init__(
        self,
        compose: Compose | None,
        messages: Any,
        tree: SearchTree,
        settings: SearchSettings,
        limits: PathLimits,
    ) -> None:
        self._compose = compose
        self._messages = messages
        self._tree = tree
        self._limits = limits
        self._least = min(settings.max_step_tokens, settings.max_path_tokens)
        self._name = settings.strategy.name

    def context(self, reading: Reading) -> ContextNode:
        """A context that is not in the tree yet. It reads only the first sources if the prompt of all leaves no room
        for a step.

        Raises:
            ContextsUnavailable: there is nothing to compose prompts with.
            PromptTooLong: the first source alone leaves no room.
        """
        for count in range(len(reading.sources), 0, -1):
            fewer = reading._replace(sources=reading.sources[:count])
            prompt = self._prompt(fewer)
            context = ContextNode((), None, reading=fewer)
            context.context = context
            context.begin_with(prompt)
            if self._limits.tokens(context) >= self._least:
                context.unread = len(reading.sources) - count
                return context
        raise PromptTooLong(
            f"the prompt that shows one solution has {prompt.size} tokens, the context length is "
            f"{self._limits.context_tokens}"
        )

    async def resume(self) -> None:
        """Composes the prompts of a restored tree's contexts again.

        Raises:
            ContextsUnavailable: as `context`.
            ValueError: a prompt is another one.
        """
        turns = Turns()
        for context in self._tree.contexts:
            if not context.prompt.size:
                context.begin_with(self._prompt(context.reading))
                await turns.pass_on()

    def _prompt(self, reading: Reading) -> Prompt:
        if self._compose is None:
            raise ContextsUnavailable(self._name)
        shown = [shown_text(self._tree, source) for source in reading.sources]
        return self._compose(self._messages, reading.template, shown, reading.note)


def shown_text(tree: SearchTree, source: Node) -> str:
    """What a source shows: its solution without the thinking before it, up to the first stop text, cut at the front."""
    return tree.text_of(source)[tree.parts_of(source).start :][-MAX_SHOWN_CHARS:]
