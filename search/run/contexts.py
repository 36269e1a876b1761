"""Composes the prompts of a search's contexts."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import count, takewhile
from typing import Any, NamedTuple, TypeAlias

from search.errors import ContextsUnavailable, PromptTooLong
from search.prompt import Prompt
from search.run.path_limits import PathLimits
from search.settings import SearchSettings
from search.strategies.notes import counts_note, joined
from search.tools.turns import Turns
from search.tree import ContextNode, Reading, SearchTree
from search.tree.nodes import digest_of

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
        the first ones, at least two of them, then the beginning of the note, then only the ends of the two.

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
        if (compose := self._compose) is None:
            raise ContextsUnavailable(self._name)
        reading = context.reading
        texts = [self._tree.content_of(source) for source in reading.sources]

        def note_of(way: _Shown) -> str:
            return joined(counts_note(reading.counts[: way.sources]), reading.note[: way.note])

        @cache
        def prompt_of(way: _Shown) -> Prompt:
            shown = [text[-way.characters :] for text in texts[: way.sources]]
            return compose(self._messages, reading.template, shown, note_of(way))

        def is_known(way: _Shown) -> bool:
            return digest_of(prompt_of(way)) == context.digest

        def fits(way: _Shown) -> bool:
            context.prompt_tokens = prompt_of(way).size
            return min(self._limits.solution_tokens(context), self._limits.tokens(context)) >= self._least

        if context.digest:  # Composed before: what was left out then is in neither its sources nor its note.
            ways = [_Shown(len(texts), characters, len(reading.note)) for characters in _ends(texts)]
            found = next((index for index, way in enumerate(ways) if is_known(way)), 0)
        else:
            # Each way is shorter than the one before: the first that fits is found in few compositions.
            ways = _ways_to_show(texts, reading.note)
            found = 0 if fits(ways[0]) else bisect_left(ways, True, lo=1, key=fits)
        if found == len(ways):
            raise PromptTooLong(
                f"the prompt that shows a solution has {prompt_of(ways[-1]).size} tokens, the context holds "
                f"{self._limits.context_tokens}"
            )
        way = ways[found]
        context.reading = Reading(reading.sources[: way.sources], reading.template, note_of(way))
        context.begin_with(prompt_of(way))


class _Shown(NamedTuple):
    """How much a prompt shows of its sources."""

    sources: int
    """The first ones."""
    characters: int
    """The last ones of each solution."""
    note: int
    """The first ones of the note."""


def _ways_to_show(texts: Sequence[str], note: str) -> list[_Shown]:
    """Less and less: fewer sources, then the beginning of the note, then the ends of the last two sources, then the end
    of one."""
    least = min(LEAST_SOURCES, len(texts))
    whole, *ends, shortest = _ends(texts)
    return [
        *(_Shown(sources, whole, len(note)) for sources in range(len(texts), least - 1, -1)),
        *(_Shown(least, whole, characters) for characters in (*_halves(len(note)), 0)),
        *(_Shown(least, characters, 0) for characters in ends),
        _Shown(1, shortest, 0),
    ]


def _ends(texts: Sequence[str]) -> list[int]:
    """How many of the last characters of solutions may be shown, falling."""
    longest = min(max(map(len, texts[:LEAST_SOURCES])), MAX_SHOWN_CHARS)
    return [MAX_SHOWN_CHARS, *_halves(longest), LEAST_SHOWN_CHARS]


def _halves(characters: int) -> Iterator[int]:
    """Half as many characters and so on, but no fewer than are worth showing."""
    return takewhile(LEAST_SHOWN_CHARS.__le__, (characters >> halved for halved in count(1)))
