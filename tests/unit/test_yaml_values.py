"""What YAML 1.1 makes of a value is not always what its writer means: every setting takes the value as it is meant, or
its error says what to write."""

from collections.abc import Iterator
from datetime import date
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from deployments.config import AppConfig
from deployments.engines.rewards import BUILT_IN
from deployments.engines.settings import GeneratorSettings
from deployments.engines.yaml_values import BOOLEANS
from deployments.startup.access import AccessError, changed_settings, read_user_config


class Setting(NamedTuple):
    """A setting of the tree, or of a family of reward models."""

    path: tuple[str, ...]
    kinds: list[Any]
    """The types that it takes."""
    family: str | None = None

    def __str__(self) -> str:
        return ".".join(self.path) + (f" of {self.family}" if self.family else "")

    def given(self, value: Any) -> dict[str, Any]:
        """The arguments of an application with this setting."""
        for name in reversed(self.path):
            value = {name: value}
        return {"prm": {"family": self.family, **value["prm"]}} if self.family else dict(value)


def kinds(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Annotated:
        return kinds(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [kind for each in get_args(annotation) for kind in kinds(each)]
    return [annotation]


def settings_of(model: type[BaseModel], path: tuple[str, ...], family: str | None = None) -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        found = kinds(field.annotation)
        models = [kind for kind in found if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if len(models) == 1 or models[:1] == [GeneratorSettings]:
            yield from settings_of(models[0], (*path, name), family)
        elif name not in ("prm", "family"):
            yield Setting((*path, name), found, family)


FOUND = [*settings_of(AppConfig, ())]
for family in BUILT_IN:
    FOUND += settings_of(family, ("prm",), family.model_fields["family"].default)
SETTINGS = list({(each.path, str(each.kinds)): each for each in reversed(FOUND)}.values())
"""Each once: families have most of their settings in common."""
NUMBERS = [each for each in SETTINGS if int in each.kinds or float in each.kinds]
TEXTS = [each for each in SETTINGS if str in each.kinds]
CHOICES = [each for each in SETTINGS if any(get_origin(kind) is Literal for kind in each.kinds)]


def faults(setting: Setting, value: Any) -> list[str]:
    """What is said of the setting with this value; nothing if it is accepted."""
    try:
        AppConfig.model_validate(setting.given(value))
    except ValidationError as error:
        return [each["msg"] for each in error.errors() if each["loc"][: len(setting.path)] == setting.path]
    return []


def read(text: str) -> Any:
    return yaml.safe_load(text)


def test_all_kinds_of_settings_are_found() -> None:
    assert [len(each) > 5 for each in (NUMBERS, TEXTS, CHOICES)] == [True] * 3
    assert {"cache.port", "controller.store.keep_s", "controller.limits.n"} <= {str(each) for each in NUMBERS}


@pytest.mark.parametrize("written", ["on", "yes", "off", "no"])
def test_a_boolean_is_no_number_and_no_text(written: str) -> None:
    """But ``off`` where it is one of the words that a setting takes."""
    for setting in (*NUMBERS, *TEXTS, *CHOICES):
        said = faults(setting, read(written))
        if written in ("off", "no") and any("off" in get_args(kind) for kind in setting.kinds):
            assert said == [], setting
        else:
            assert said, setting
            assert all(each.endswith(BOOLEANS) for each in said), (setting, said)


@pytest.mark.parametrize("written", ["1e3", "1E+3", "5e-1", "1.0e3", ".1e4"])
def test_a_number_with_an_exponent_is_a_number(written: str) -> None:
    """Out of bounds it may be, and no integer."""
    assert isinstance(read(written), str)
    for setting in NUMBERS:
        assert faults(setting, read(written)) == faults(setting, float(written)), setting


@pytest.mark.parametrize("written", ["7", "1.5", "2026-01-31"])
def test_a_text_that_yaml_reads_as_something_else_wants_quotes(written: str) -> None:
    for setting in TEXTS:
        assert isinstance(read(written), int | float | date)
        [said] = faults(setting, read(written))
        assert said.endswith(f'write it in quotes: "{written}"'), setting


@pytest.mark.parametrize("written", ["", "~", "null"])
def test_a_setting_that_is_empty_has_its_default(written: str) -> None:
    for setting in FOUND:
        if not setting.family and "step_hook" not in setting.path:  # whose function has no default
            without = setting._replace(path=setting.path[:-1]).given({})
            given = setting.given(read(written))
            assert AppConfig.model_validate(given) == AppConfig.model_validate(without), setting


@pytest.mark.parametrize("section", AppConfig.model_fields)
def test_a_section_that_is_empty_has_its_defaults(section: str) -> None:
    assert AppConfig.model_validate({section: None}) == AppConfig()


def test_values_within_lists_and_mappings_are_read_alike() -> None:
    args = read("""
        generator: {replicas: {resources: {large: 1e-1, small: 2e+0}}}
        prm: {family: several, of: [{prm: {}, scale: 5e-1}, {prm: {}, offset: 1e0}]}
    """)
    config = AppConfig.model_validate(args)
    assert config.generator.replicas.resources == {"large": 0.1, "small": 2}
    assert [(each.scale, each.offset) for each in config.prm.of] == [(0.5, 0.0), (1.0, 1.0)]  # type: ignore[union-attr]
    with pytest.raises(ValidationError, match=r"generator\.replicas\.resources\.large\n .*in quotes"):
        AppConfig.model_validate(read("generator: {replicas: {resources: {large: yes}}}"))
    with pytest.raises(ValidationError, match=r"prm\.labels\.0\n .*in quotes"):
        AppConfig.model_validate(read("prm: {family: label_turns, model: x, labels: [Yes, No]}"))


@pytest.mark.parametrize(
    ("written", "advice"),
    [
        ("{strategy: dvts, n: yes}", BOOLEANS),
        ("{strategy: dvts, temperature: 8e-1}", "4.0e+9"),
        ("{strategy: dvts, budget: {tokens: 1e5}}", "4.0e+9"),
    ],
)
def test_searches_in_the_config_say_what_to_write(written: str, advice: str) -> None:
    with pytest.raises(ValidationError) as refused:
        AppConfig.model_validate({"controller": {"default_search": read(written)}})
    [fault] = refused.value.errors()
    assert fault["msg"].endswith(advice)


def test_what_changes_while_serving_is_read_alike_and_what_is_empty_stays_as_it_is() -> None:
    config = AppConfig.model_validate({"controller": {"limits": {"n": 8}, "queue": {"places": 3}, "searches": 5}})

    def changed(written: str) -> Any:
        return changed_settings(config, read_user_config({"controller": read(written)}))

    assert changed("{limits: , queue: {places: }, searches: ~}") == config.controller
    assert changed("{limits: {tokens: 1e5}}").limits == config.controller.limits.model_copy(update={"tokens": 100_000})
    for wrong in ("{searches: yes}", "{limits: {n: on}}"):
        with pytest.raises(AccessError, match="in quotes"):
            changed(wrong)


@pytest.mark.parametrize("written", [r"\n\n", r"'\n\n'", r"'\n'"])
@pytest.mark.parametrize(
    "path",
    ["generator.step_delimiter", "prm.step_separator of token_class", "prm.template.separator of label_tokens"],
)
def test_a_delimiter_whose_newlines_are_no_newlines_is_refused(path: str, written: str) -> None:
    [setting] = [each for each in SETTINGS if str(each) == path]
    [said] = faults(setting, read(written))
    assert "in double quotes" in said
    assert faults(setting, "\\newline") == []
