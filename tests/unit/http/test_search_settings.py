"""From requests to settings: precedence, the operator's caps, and a temperature of 0."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import pytest
from pydantic import Field

from deployments.admission.errors import BadRequest
from deployments.config import LimitSettings
from deployments.http.chat.schema import ChatRequest
from deployments.http.chat.search_settings import SettingsResolver, excesses, notes
from search.caps import CapName, Width
from search.settings import STRATEGIES, SearchSettings, caps_on, parse_search
from search.strategies.base import Expansion
from search.strategies.solutions.best_of_n import BestOfN
from search.tree import SearchTree
from tests.unit.reward_cards import worthless_card

DEFAULT = {"strategy": "beam_search", "n": 4, "m": 2, "temperature": 0.6, "max_step_tokens": 64}
TIGHT = LimitSettings(n=2, depth=2, step_tokens=8, tokens=16, nodes=4, seconds=1.0)
CAPPED = [
    (name, setting.path) for name in STRATEGIES for setting in caps_on(parse_search({"strategy": name}))
]  # every setting with a cap, of every strategy


class Fan(BestOfN):
    """A custom strategy with a width of its own."""

    name: Literal["fan"] = "fan"  # type: ignore[assignment]
    fan_out: Width = Field(64, description="Children at a time.")

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        return [Expansion(tree.root, self.fan_out)] if not len(tree) else []


def request_of(**fields: Any) -> ChatRequest:
    return ChatRequest.parse({"model": "m", "messages": [{"role": "user", "content": "6*7?"}], **fields})


def planned(default: dict[str, Any] = DEFAULT, limits: LimitSettings | None = None, **fields: Any) -> SearchSettings:
    return SettingsResolver("m").settings(request_of(**fields), limits or LimitSettings(), default)


class TestPrecedence:
    """The operator's default < the alias < OpenAI's own fields < the search field."""

    @pytest.mark.parametrize(
        ("fields", "temperature"),
        [
            ({}, 0.6),
            ({"temperature": 0.3}, 0.3),
            ({"search": {"temperature": 0.2}}, 0.2),
            ({"temperature": 0.3, "search": {"temperature": 0.2}}, 0.2),
            ({"model": "m:best-4"}, 0.8),
            ({"model": "m:best-4", "temperature": 0.3}, 0.3),
            ({"model": "m:best-4", "temperature": 0.3, "search": {"temperature": 0.2}}, 0.2),
            ({"model": "m:best-4", "temperature": 0.3, "search": {"strategy": "dvts"}}, 0.3),
        ],
    )
    def test_of_a_setting_in_three_places(self, fields: dict[str, Any], temperature: float) -> None:
        assert planned(**fields).strategy.temperature == temperature

    def test_of_the_strategy_and_its_width(self) -> None:
        assert planned().strategy.name == "beam_search"
        assert planned(model="m:best-8").strategy.name == "best_of_n"
        both = planned(model="m:best-8", search={"strategy": "dvts", "n": 6, "m": 3})
        assert both.strategy.model_dump(include={"name", "n"}) == {"name": "dvts", "n": 6}

    def test_openais_field_overrides_the_alias_even_if_invalid(self) -> None:
        with pytest.raises(BadRequest) as refused:
            planned(model="m:greedy", temperature=0.5)
        assert refused.value.param == "temperature"

    @pytest.mark.parametrize(
        ("own", "search", "setting", "value"),
        [
            ({"max_tokens": 100}, {"max_path_tokens": 50}, "max_path_tokens", 50),
            ({"seed": 3}, {"seed": 4}, "seed", 4),
            ({"stop": "a"}, {"stop": ["b"]}, "stop", ("b",)),
            ({"stop": "a"}, {"stop": []}, "stop", ()),
        ],
    )
    def test_the_search_field_overrides_openais_fields(self, own: Any, search: Any, setting: str, value: Any) -> None:
        assert getattr(planned(**own, search=search), setting) == value
        assert getattr(planned(**own), setting) != value

    def test_max_completion_tokens_bounds_the_search_and_max_tokens_a_path(self) -> None:
        settings = planned(max_completion_tokens=5000, max_tokens=256, search={"budget": {"nodes": 7}})
        assert (settings.budget.tokens, settings.budget.nodes, settings.max_path_tokens) == (5000, 7, 256)


class TestCard:
    """The reward model's card < the operator's default < what a request says."""

    resolver = SettingsResolver("m", cards=[worthless_card()])

    def planned(self, default: dict[str, Any] = DEFAULT, **fields: Any) -> Any:
        return self.resolver.settings(request_of(**fields), LimitSettings(), default).strategy

    def test_decides_what_is_said_nowhere(self) -> None:
        assert self.planned(model="m:best-8").selection == "majority"
        assert self.planned({"strategy": "best_of_n", "selection": "naive"}).selection == "naive"
        assert self.planned(search={"strategy": "best_of_n", "selection": "weighted"}).selection == "weighted"
        assert self.planned(search={"strategy": "best_of_n", "aggregation": "min"}).selection == "weighted"

    def test_leaves_other_searches_as_they_are(self) -> None:
        for name in STRATEGIES.keys() - {"best_of_n"}:
            fields = {"search": {"strategy": name}}
            assert self.planned(**fields) == planned(**fields).strategy

    def test_hides_no_error(self) -> None:
        for wrong in ("beam", ["best_of_n"], 1):
            with pytest.raises(BadRequest) as refused:
                self.planned(search={"strategy": wrong})
            assert refused.value.param == "search.strategy"


class TestTemperatureZero:
    @pytest.mark.parametrize(
        ("fields", "temperature"),
        [
            ({}, 0.6),
            ({"model": "m:best-16"}, 0.8),
            ({"search": {"strategy": "mcts"}}, 0.8),
            ({"search": {"n": 2, "temperature": 0.3}}, 0.3),
            ({"model": "m:greedy"}, 0.0),
            ({"search": {"strategy": "best_of_n", "n": 1}}, 0.0),
        ],
    )
    def test_in_openais_field_means_the_default_for_branching_searches(
        self, fields: dict[str, Any], temperature: float
    ) -> None:
        settings = planned(**fields, temperature=0)
        assert settings.strategy.temperature == temperature
        noted = notes(request_of(**fields, temperature=0), settings)
        taken = temperature == 0 or "temperature" in fields.get("search", {})
        assert [f"{temperature:g} is used instead" in note for note in noted] == ([] if taken else [True])

    @pytest.mark.parametrize("own", [{}, {"temperature": 0}, {"temperature": 0.7}])
    def test_in_the_search_field_is_used_and_noted(self, own: dict[str, Any]) -> None:
        fields: dict[str, Any] = {**own, "search": {"temperature": 0}}
        settings = planned(**fields)
        assert settings.strategy.temperature == 0
        assert notes(request_of(**fields), settings) == ("at temperature 0 every sample of this search is the same",)

    def test_unchanged_temperatures_have_no_note(self) -> None:
        for fields in ({}, {"temperature": 0.3}, {"model": "m:greedy"}):
            assert notes(request_of(**fields), planned(**fields)) == ()


def test_a_setting_that_was_replaced_is_refused_with_what_replaces_it() -> None:
    with pytest.raises(BadRequest, match="replaced by `risk`") as refused:
        planned(search={"strategy": "self_consistency", "early_stop": True})
    assert refused.value.param == "search.early_stop"


class TestCaps:
    @pytest.mark.parametrize(("strategy", "path"), CAPPED)
    def test_no_request_exceeds_a_cap_whatever_the_setting_is_called(self, strategy: str, path: str) -> None:
        outer, _, inner = path.rpartition(".")
        above = {inner: {"m": 8, "seconds": 20.0, "schedule": [1, 20]}.get(inner, 20)}
        with pytest.raises(BadRequest) as refused:
            planned({"strategy": strategy}, TIGHT, search={outer: above} if outer else above)
        assert (refused.value.param, refused.value.code) == (f"search.{path}", "above_limit")

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_defaults_are_lowered_to_the_caps(self, strategy: str) -> None:
        settings = planned({"strategy": strategy}, TIGHT)
        assert excesses(settings, TIGHT) == []
        assert (settings.budget.tokens, settings.max_step_tokens) == (16, 8)

    def test_caps_hold_for_the_width_of_a_custom_strategy(self) -> None:
        resolver = SettingsResolver("m", {**STRATEGIES, "fan": Fan})
        strategy = resolver.settings(request_of(search={"strategy": "fan"}), TIGHT, DEFAULT).strategy
        assert strategy.model_dump(include={"name", "fan_out"}) == {"name": "fan", "fan_out": 2}
        with pytest.raises(BadRequest) as refused:
            resolver.settings(request_of(search={"strategy": "fan", "fan_out": 3}), TIGHT, DEFAULT)
        assert (refused.value.param, refused.value.code) == ("search.fan_out", "above_limit")

    def test_every_cap_is_a_limit_setting(self) -> None:
        assert set(get_args(CapName)) <= LimitSettings.model_fields.keys()

    def test_errors_name_fields_and_aliases_as_the_client_wrote_them(self) -> None:
        for fields, param in (
            ({"model": "m:beam-8"}, "model"),
            ({"max_tokens": 17}, "max_tokens"),
            ({"max_completion_tokens": 17}, "max_completion_tokens"),
        ):
            with pytest.raises(BadRequest) as refused:
                planned(limits=TIGHT, **fields)  # type: ignore[arg-type]
            assert (refused.value.param, refused.value.code) == (param, "above_limit")
