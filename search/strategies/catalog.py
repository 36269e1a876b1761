"""The catalog of strategies, by name. A built-in strategy is added with its module and one line here."""

from collections.abc import Mapping, Sequence
from inspect import isabstract
from types import MappingProxyType

from search.strategies.base import Strategy
from search.tools.import_path import imported

Catalog = Mapping[str, type[Strategy]]
"""Strategies by their name in settings."""

BUILT_IN = (
    "search.strategies.solutions.greedy:Greedy",
    "search.strategies.solutions.self_consistency:SelfConsistency",
    "search.strategies.solutions.best_of_n:BestOfN",
    "search.strategies.levels.beam_search:BeamSearch",
    "search.strategies.levels.dvts:DVTS",
    "search.strategies.levels.rebase:Rebase",
    "search.strategies.levels.ets:ETS",
    "search.strategies.mcts.mcts:MCTS",
    "search.strategies.mcts.ab_mcts:ABMCTS",
    "search.strategies.mcts.frontier:Frontier",
    "search.strategies.levels.particle_filter:ParticleFilter",
    "search.strategies.reading.select:Select",
    "search.strategies.reading.fuse:Fuse",
    "search.strategies.reading.refine:Refine",
)
"""In the order in which they are listed to users."""


def catalog_of(paths: Sequence[str]) -> Catalog:
    """The built-in strategies, and those at ``paths`` (``package.module:Class``).

    Raises:
        ValueError: a path cannot be imported, is not a strategy, or has a name or alias that is taken.
    """
    known: dict[str, type[Strategy]] = {}
    taken: dict[str, str] = {}
    for path in (*BUILT_IN, *paths):
        strategy = _strategy(path)
        name = str(strategy.model_fields["name"].default)
        for word in {name, *strategy.aliases}:
            if word in taken:
                raise ValueError(f"{path!r} and {taken[word]!r} have the same name {word!r}")
            taken[word] = path
        known[name] = strategy
    return MappingProxyType(known)


def _strategy(path: str) -> type[Strategy]:
    found = imported(path)
    if not (isinstance(found, type) and issubclass(found, Strategy)) or isabstract(found):
        raise ValueError(
            f"{path!r} is not a strategy: it must be a subclass of search.Strategy that can be instantiated"
        )
    if not isinstance(found.model_fields["name"].default, str):
        raise ValueError(f"{path!r} has no name: declare `name: Literal['…'] = '…'`")
    return found


STRATEGIES = catalog_of(())
"""The built-in strategies."""
