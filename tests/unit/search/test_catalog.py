"""Custom strategies and answer extractors by import path."""

from collections.abc import Sequence
from typing import Any, Literal

import pytest
from search_fakes import Bench

from search.caps import Width
from search.settings import parse_alias, parse_search, search_schema
from search.strategies.base import Expansion, Strategy
from search.strategies.catalog import STRATEGIES, catalog_of
from search.tools.import_path import imported
from search.tree import SearchTree

HERE = __name__


class TwoSteps(Strategy):
    """Writes one path of at most two steps."""

    aliases = ("two",)

    name: Literal["two_steps"] = "two_steps"
    n: Width = 1

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        open_ends = [node for node in (tree.root, *tree.level(1)) if not node.children and node.status == "open"]
        return [Expansion(open_ends[-1], 1)] if open_ends and not tree.in_flight else []


class Namesake(TwoSteps):
    """Has the name of a built-in strategy."""

    name: Literal["greedy"] = "greedy"  # type: ignore[assignment]


class Unfinished(Strategy):
    """Does not implement the abstract methods."""

    name: Literal["unfinished"] = "unfinished"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """This module under an importable name, however pytest has imported it."""
    import sys

    monkeypatch.setitem(sys.modules, "own_strategies", sys.modules[HERE])


async def test_a_custom_strategy_is_selected_configured_and_run_like_a_built_in_one() -> None:
    catalog = catalog_of(["own_strategies:TwoSteps"])
    assert list(catalog) == [*STRATEGIES, "two_steps"]
    assert parse_alias("two-1", catalog) == {"strategy": "two_steps", "n": 1}
    assert [each["title"] for each in search_schema(catalog)["oneOf"]] == list(catalog)
    settings = parse_search({"strategy": "two_steps", "seed": 3, "temperature": 0.5}, catalog)
    assert isinstance(settings.strategy, TwoSteps)
    assert settings.model_dump()["strategy"]["name"] == "two_steps"

    bench = Bench()
    try:
        outcome = await bench.run(settings)
    finally:
        bench.matcher.close()
    assert 1 <= len(outcome.tree) <= 2


def test_a_custom_strategy_is_unknown_without_its_path() -> None:
    with pytest.raises(ValueError, match="unknown strategy"):
        parse_search({"strategy": "two_steps"})


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("own_strategies", "is not an import path"),
        ("own_strategies:", "is not an import path"),
        ("../own:TwoSteps", "is not an import path"),
        ("no_such_module:TwoSteps", "cannot be imported: ModuleNotFoundError"),
        ("own_strategies:Nothing", "cannot be imported: AttributeError"),
        ("own_strategies:HERE", "is not a strategy"),
        ("own_strategies:Unfinished", "is not a strategy"),
        ("own_strategies:Namesake", "and 'search.strategies.solutions.greedy:Greedy' have the same name 'greedy'"),
        ("search.strategies.base:Strategy", "is not a strategy"),
    ],
)
def test_unusable_import_paths_are_refused_with_the_reason(path: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        catalog_of([path])


def last_word(text: str) -> str | None:
    return text.rsplit(maxsplit=1)[-1] if text.split() else None


async def test_a_custom_extractor_finds_the_answers() -> None:
    extractor: Any = imported("own_strategies:last_word")
    bench = Bench()
    try:
        outcome = await bench.search({"strategy": "best_of_n", "n": 4}, extract_answer=extractor)
    finally:
        bench.matcher.close()
    assert outcome.selection.answer == outcome.text.split()[-1]
    assert {group.answer for group in outcome.selection.groups} == {
        node.text.split()[-1] for node in outcome.tree.nodes if node.status == "terminal"
    }
