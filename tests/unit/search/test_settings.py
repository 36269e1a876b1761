"""Search settings as users write them: errors name the path that was written."""

import json
import math
import pickle
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from search.settings import SearchSettings, parse_alias, parse_search, search_schema
from search.strategies.catalog import STRATEGIES


@pytest.mark.parametrize(
    ("given", "loc"),
    [
        ({"n": 0}, ("n",)),
        ({"n": 10**9}, ("n",)),
        ({"n": 10**400}, ("n",)),
        ({"n": "many"}, ("n",)),
        ({"n": "16"}, ("n",)),
        ({"n": True}, ("n",)),
        ({"n": 16.0}, ("n",)),
        ({"n": None}, ("n",)),
        ({"n": 6}, ("m",)),
        ({"n": 16, "m": 5}, ("m",)),
        ({"m": 0}, ("m",)),
        ({"temperature": math.nan}, ("temperature",)),
        ({"temperature": math.inf}, ("temperature",)),
        ({"temperature": "0.8"}, ("temperature",)),
        ({"temperature": True}, ("temperature",)),
        ({"temperature": -1}, ("temperature",)),
        ({"max_depth": 101}, ("max_depth",)),
        ({"aggregation": "sum"}, ("aggregation",)),
        ({"selection": 3}, ("selection",)),
        ({"wide": 4}, ("wide",)),
        ({"\0": 4}, ("\0",)),
        ({"aggregation": "\ud800"}, ("aggregation",)),
        ({"name": "beam_search"}, ("name",)),
        ({"budget": 5}, ("budget",)),
        ({"budget": {"tokens": "all"}}, ("budget", "tokens")),
        ({"budget": {"tokens": 0}}, ("budget", "tokens")),
        ({"budget": {"seconds": math.nan}}, ("budget", "seconds")),
        ({"budget": {"money": 1}}, ("budget", "money")),
        ({"seed": -1}, ("seed",)),
        ({"seed": 1 << 63}, ("seed",)),
        ({"max_step_tokens": 0}, ("max_step_tokens",)),
        ({"max_path_tokens": "2048"}, ("max_path_tokens",)),
        ({"logprobs": 1}, ("logprobs",)),
        ({"strategy": "bean_search"}, ("strategy",)),
        ({"strategy": None}, ("strategy",)),
        ({"strategy": {"name": "greedy"}}, ("strategy",)),
        ({"strategy": "greedy", "n": 4}, ("n",)),
        ({"strategy": "greedy", "temperature": 0.5}, ("temperature",)),
        ({"strategy": "self_consistency", "selection": "weighted"}, ("selection",)),
        ({"strategy": "best_of_n", "n": 257}, ("n",)),
    ],
)
def test_a_wrong_value_is_named_by_its_path(given: dict[str, Any], loc: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_search({"strategy": "beam_search"} | given)
    assert [error["loc"] for error in caught.value.errors()] == [loc]


def test_all_errors_are_reported_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        parse_search({"strategy": "beam_search", "n": 0, "seed": "x", "budget": {"nodes": -1}, "{odd}": 1})
    assert {error["loc"] for error in caught.value.errors()} == {("n",), ("seed",), ("budget", "nodes"), ("{odd}",)}


@pytest.mark.parametrize("given", [{}, {"strategy": "x"}, {"strategy": ["greedy"]}])
def test_an_unknown_strategy_lists_the_known(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_search(given)
    (error,) = caught.value.errors()
    assert error["loc"] == ("strategy",)
    assert all(name in error["msg"] for name in STRATEGIES)


@pytest.mark.parametrize("given", [[], "beam_search", None, 3])
def test_a_value_that_is_not_an_object_is_refused(given: Any) -> None:
    with pytest.raises(ValidationError):
        parse_search(given)


def test_the_flat_form_of_a_request_is_parsed() -> None:
    settings = parse_search(
        {
            "strategy": "beam_search",
            "n": 16,
            "m": 4,
            "temperature": 1,
            "aggregation": "min",
            "budget": {"tokens": 10000},
            "max_step_tokens": 128,
        }
    )
    assert settings.strategy.model_dump(include={"name", "n", "m", "temperature", "aggregation"}) == {
        "name": "beam_search",
        "n": 16,
        "m": 4,
        "temperature": 1.0,
        "aggregation": "min",
    }
    assert (settings.budget.tokens, settings.max_step_tokens, settings.seed) == (10000, 128, None)


@pytest.mark.parametrize("name", STRATEGIES)
def test_settings_survive_every_serialization(name: str) -> None:
    settings = parse_search({"strategy": name, "seed": 3, "budget": {"seconds": 5}})
    assert settings.strategy.name == name
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert SearchSettings.model_validate(settings.model_dump()) == settings
    assert SearchSettings.model_validate_json(settings.model_dump_json()) == settings


def test_errors_keep_their_paths_inside_a_larger_model() -> None:
    class Application(BaseModel):
        search: SearchSettings

    with pytest.raises(ValidationError) as caught:
        Application.model_validate({"search": {"strategy": "best_of_n", "n": 0}})
    assert caught.value.errors()[0]["loc"] == ("search", "n")
    assert Application.model_validate({"search": {"strategy": "best_of_n", "n": 4}}).search.strategy.name == "best_of_n"


@pytest.mark.parametrize(
    ("alias", "settings"),
    [
        ("greedy", {"strategy": "greedy"}),
        ("sc-8", {"strategy": "self_consistency", "n": 8}),
        ("self_consistency-8", {"strategy": "self_consistency", "n": 8}),
        ("best-4", {"strategy": "best_of_n", "n": 4}),
        ("best_of_n-4", {"strategy": "best_of_n", "n": 4}),
        ("beam-16", {"strategy": "beam_search", "n": 16}),
        ("beam", {"strategy": "beam_search"}),
        ("beam-0", {"strategy": "beam_search", "n": 0}),
        ("greedy-3", None),
        ("beam-", None),
        ("beam-x", None),
        ("beam--3", None),
        ("beam-9999999999", None),
        ("beam-٣", None),
        ("gpt-4", None),
        ("", None),
    ],
)
def test_aliases_expand_to_settings(alias: str, settings: dict[str, Any] | None) -> None:
    assert parse_alias(alias) == settings


def test_no_two_strategies_share_a_name() -> None:
    names = [name for key, strategy in STRATEGIES.items() for name in {key, *strategy.aliases}]
    assert len(names) == len(set(names))
    assert all(strategy.model_fields["name"].default == name for name, strategy in STRATEGIES.items())


def test_the_schema_names_every_setting_and_resolves() -> None:
    schema = json.loads(json.dumps(search_schema()))
    assert [alternative["title"] for alternative in schema["oneOf"]] == list(STRATEGIES)
    for alternative in schema["oneOf"]:
        strategy = STRATEGIES[alternative["title"]]
        shared = {"strategy", "budget", "seed", "max_step_tokens", "max_path_tokens", "stop", "logprobs", "kv_usage"}
        shared |= {"max_thinking_tokens", "thinking", "checks"}
        shared |= {"score_prefill"}
        assert set(alternative["properties"]) == (strategy.model_fields.keys() - {"name"}) | shared
    references = {text.split('"')[0] for text in json.dumps(schema).split('"#/$defs/')[1:]}
    assert references <= schema["$defs"].keys()
