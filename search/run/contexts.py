"""Composes the prompts of a search's contexts."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeAlias

from search.errors import ContextsUnavailable, PromptTooLong
from search.prompt import Prompt
from search.run.path_limits import PathLimits
from search.settings import SearchSettings
from search.tools.turns import Turns
from search.tree import ContextNode, Reading, SearchTree

MAX_SHOWN_CHARS = 16_384
"""Most characters that a source shows: the last ones of its solution, which have the answer."""
LEAST_SHOWN_CHARS = 64
"""Fewest that it is cut to."""
LEAST_SOURCES = 2
"""Sources that are cut rather than left out: of a single one, there is nothing to choose."""

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
        """A context that is not in the tree yet. If the prompt of all sources leaves no room for a step, it reads only
        the first ones, at least two of them, and of these only the end.

        Raises:
            ContextsUnavailable: there is nothing to compose prompts with.
            PromptTooLong: nothing can be read.
        """
        context = ContextNode((), None, reading=reading)
        context.context = context
        self._begin(context)
        context.unread = len(reading.sources) - len(context.reading.sources)
        return context

    async def resume(self) -> None:
        """Composes the prompts of a restored tree's contexts again.

        Raises:
            ContextsUnavailable: as `context`.
            ValueError: a prompt is another one.
        """
        turns = Turns()
        for context in self._tree.contexts:
            if not context.prompt.size:
                self._begin(context)
                await turns.pass_on()

    def _begin(self, context: ContextNode) -> None:
        if self._compose is None:
            raise ContextsUnavailable(self._name)
        reading, limits = context.reading, self._limits
        texts = [self._tree.content_of(source) for source in reading.sources]
        two = texts[:LEAST_SOURCES]
        longest = min(max(map(len, two)), MAX_SHOWN_CHARS)
        fewer = ((count, MAX_SHOWN_CHARS) for count in range(len(texts), len(two) - 1, -1))
        shorter = ((len(two), longest >> halved) for halved in range(1, 9) if longest >> halved >= LEAST_SHOWN_CHARS)
        for count, characters in chain(fewer, shorter, [(1, LEAST_SHOWN_CHARS)]):
            shown = [text[-characters:] for text in texts[:count]]
            prompt = self._compose(self._messages, reading.template, shown, reading.note)
            context.prompt_tokens = prompt.size
            if min(limits.solution_tokens(context), limits.tokens(context)) >= self._least:
                context.reading = reading._replace(sources=reading.sources[:count])
                return context.begin_with(prompt)
        raise PromptTooLong(
            f"the prompt that shows a solution has {prompt.size} tokens, the context holds {limits.context_tokens}"
        )
