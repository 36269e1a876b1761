"""Caps: a setting that makes a search wider must name its cap, or its strategy cannot be defined."""

from collections.abc import Sequence
from typing import Annotated, Literal, get_args

import pytest
from pydantic import BaseModel, Field

from search.caps import Cap, CapName, Uncapped, Width, capped_settings, check_marks
from search.settings import SearchSettings, caps_on, parse_search
from search.strategies.base import Expansion
from search.strategies.catalog import STRATEGIES
from search.strategies.solutions.best_of_n import BestOfN
from search.tree import SearchTree

WIDTHS = {
    "self_consistency": {"n"},
    "best_of_n": {"n"},
    "beam_search": {"n", "m"},
    "dvts": {"n", "m"},
    "rebase": {"n"},
    "ets": {"n"},
    "mcts": {"width", "paths"},
    "ab_mcts": {"paths"},
    "frontier": {"width"},
    "particle_filter": {"n"},
    "select": {"n", "readers"},
    "fuse": {"n", "schedule"},
    "refine": {"n"},
}
SHARED = {
    *("max_depth", "max_step_tokens", "max_path_tokens", "max_thinking_tokens"),
    *("budget.tokens", "budget.nodes", "budget.seconds"),
}


class Fan(BestOfN):
    """A custom strategy that is wide by a setting of its own."""

    fan_out: Width = Field(4, description="Children at a time.")

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        return [Expansion(tree.root, self.fan_out)] if not len(tree) else []


@pytest.mark.parametrize("name", STRATEGIES)
def test_settings_that_widen_a_search_name_their_cap(name: str) -> None:
    capped = {setting.path: setting.cap for setting in caps_on(parse_search({"strategy": name}))}
    widths = WIDTHS.get(name, set())
    assert capped.keys() == widths | SHARED
    assert {capped[setting] for setting in widths} <= {"n"}


def test_the_counts_without_a_cap_are_these() -> None:
    """Each is bounded by other limits (nodes, tokens), only delays a search, or belongs to sampling."""
    uncapped = {
        setting
        for strategy in STRATEGIES.values()
        for setting, field in strategy.model_fields.items()
        if Cap(None) in field.metadata
    }
    assert uncapped == {"iterations", "lookahead", "top_k", "window", "depth"}


def test_the_cap_of_a_new_width_is_found_through_its_type() -> None:
    settings = SearchSettings(strategy=Fan(fan_out=64))
    assert ("fan_out", "n", 64) in list(caps_on(settings))


@pytest.mark.parametrize("annotation", [int, int | None, list[int], Annotated[int, Field(ge=1)]])
def test_an_integer_setting_without_a_cap_is_refused(annotation: object) -> None:
    with pytest.raises(TypeError, match=r"Bare\.wide is an integer that no cap bounds"):
        type("Bare", (BestOfN,), {"__annotations__": {"wide": annotation}, "wide": 1, "__module__": __name__})


def test_a_setting_declared_again_without_its_cap_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Narrow\.n "):

        class Narrow(BestOfN):
            n: int = 8  # type: ignore[assignment]


def test_caps_are_found_in_nested_models_and_optional_settings() -> None:
    class Inner(BaseModel):
        tokens: Annotated[int, Cap("tokens")] | None = None
        plain: bool = True

    class Outer(BaseModel):
        inner: Inner = Inner()
        kind: Literal[1, 2] = 1
        rounds: Uncapped = 3
        wide: Width = 2
        each: tuple[Width, ...] = (3, 9, 1)

    check_marks(Outer)
    assert list(capped_settings(Outer())) == [("inner.tokens", "tokens", None), ("wide", "n", 2), ("each", "n", 9)]


def test_a_search_branches_if_it_may_write_several_children() -> None:
    alone: list[dict[str, object]] = [
        {"strategy": "greedy"},
        {"strategy": "best_of_n", "n": 1},
        {"strategy": "beam_search", "n": 1, "m": 1},
        {"strategy": "mcts", "width": 1},
        {"strategy": "ab_mcts", "iterations": 1},
    ]
    assert [parse_search(given).strategy.branches for given in alone] == [False] * len(alone)
    branching = [name for name in STRATEGIES if parse_search({"strategy": name}).strategy.branches]
    assert branching == [name for name in STRATEGIES if name != "greedy"]


def test_caps_have_the_names_of_the_limit_settings() -> None:
    assert set(get_args(CapName)) == {"n", "depth", "step_tokens", "tokens", "nodes", "seconds"}
