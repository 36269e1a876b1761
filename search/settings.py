"""The settings of one search, as written in requests and in YAML.

The written form is flat, with the strategy's own settings beside the shared ones::

    {"strategy": "beam_search", "n": 16, "m": 4, "budget": {"tokens": 10000}, "max_step_tokens": 128}

The parsed form is nested, with the strategy as an object. An error's path is that of the written form.
"""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    SerializeAsAny,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from search.answers.checks import MAX_CHECK_CHARS, MAX_CHECKS, MAX_CHECKS_CHARS, Check, parsed_python
from search.budget import Budget
from search.caps import Cap, CappedSetting, capped_settings, check_marks
from search.strategies.base import Strategy
from search.strategies.catalog import STRATEGIES, Catalog

MAX_STEP_TOKENS = 32_768
MAX_PATH_TOKENS = 131_072
_CATALOG = "strategies"
"""Key in the validation context for the catalog of available strategies."""
_REFERENCE = "#/$defs/{model}"
MAX_STOPS = 4
MAX_STOP_CHARS = 256


class Thinking(StrEnum):
    """How a search takes what its generator thinks."""

    WHOLE = "whole"
    """As one piece, before the first step of the solution."""
    STEPS = "steps"
    """As steps."""


def _texts(given: Any) -> Any:
    if not isinstance(given, str | list | tuple):
        raise PydanticCustomError("stop_type", "Input should be a text or a list of texts")
    return (given,) if isinstance(given, str) else tuple(given)


StopTexts = Annotated[
    tuple[Annotated[str, Field(strict=True, min_length=1, max_length=MAX_STOP_CHARS)], ...],
    Field(max_length=MAX_STOPS, fail_fast=True),
    BeforeValidator(_texts),
]
"""Like OpenAI's ``stop``: a text, or a list of texts."""


class WrittenCheck(BaseModel):
    """A check of a program (`search.answers.checks.Check`) as requests write it; a text is one without output."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: str = Field(
        min_length=1,
        max_length=MAX_CHECK_CHARS,
        description="Python to run after the program: an assertion, or a call whose value is compared with `output`.",
    )
    output: str | None = Field(
        None,
        max_length=MAX_CHECK_CHARS,
        description="What Python's prompt shows for `input`; unset: `input` must only not fail.",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, given: Any) -> Any:
        return {"input": given} if isinstance(given, str) else given

    @field_validator("input")
    @classmethod
    def _is_python(cls, source: str) -> str:
        parsed_python(source)
        return source


def _not_too_long(checks: tuple[WrittenCheck, ...]) -> tuple[WrittenCheck, ...]:
    characters = sum(len(check.input) + len(check.output or "") for check in checks)
    if characters > MAX_CHECKS_CHARS:
        raise ValueError(f"all checks together may have {MAX_CHECKS_CHARS} characters, not {characters}")
    return checks


WrittenChecks = Annotated[
    tuple[WrittenCheck, ...],
    Field(max_length=MAX_CHECKS, fail_fast=True),
    AfterValidator(_not_too_long),
]


def checked_checks(given: Any) -> None:
    """Raises ValueError with the path of what is wrong unless ``given`` may be a request's checks."""
    try:
        TypeAdapter(WrittenChecks).validate_python(given)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise ValueError(": ".join(filter(None, (".".join(map(str, fault["loc"])), fault["msg"])))) from error


_ALIAS = re.compile(r"(?P<name>[a-z][a-z_]*)(?:-(?P<n>[0-9]{1,9}))?")


def _chosen(given: Any, info: ValidationInfo) -> Strategy:
    """The strategy described by a mapping with its ``name``, from the catalog in the validation context."""
    if isinstance(given, Strategy):
        return given
    known: Catalog = (info.context or {}).get(_CATALOG, STRATEGIES)
    name = given.get("name") if isinstance(given, Mapping) else None
    strategy = known.get(name) if isinstance(name, str) else None
    if strategy is None:
        raise _unknown_strategy(known)
    return strategy.model_validate(given)


class SearchSettings(BaseModel):
    """Everything that is said about one search. Takes the flat form and its own dump alike."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    strategy: Annotated[SerializeAsAny[Strategy], PlainValidator(_chosen)] = Field(
        description="The strategy and its own settings."
    )
    budget: Budget = Field(Budget(), description="Limits of the whole search.")
    seed: Annotated[int, Cap(None)] | None = Field(
        None, strict=True, ge=0, lt=1 << 63, description="The same seed grows the same tree. Unset: a random seed."
    )
    max_step_tokens: Annotated[int, Cap("step_tokens")] = Field(
        256, strict=True, ge=1, le=MAX_STEP_TOKENS, description="Maximum tokens of a step."
    )
    max_path_tokens: Annotated[int, Cap("tokens")] = Field(
        2048, strict=True, ge=1, le=MAX_PATH_TOKENS, description="Maximum tokens of a path."
    )
    max_thinking_tokens: Annotated[int, Cap("tokens")] = Field(
        8192,
        strict=True,
        ge=1,
        le=MAX_PATH_TOKENS,
        description="Maximum thinking tokens of a path. A path that reaches it ends without an answer; "
        "`budget.thinking` is the limit after which the solution follows. `max_step_tokens` and `max_path_tokens` "
        "limit the solution alone.",
    )
    thinking: Thinking = Field(
        Thinking.WHOLE,
        description="`whole`: a path's thinking belongs to its first step, is never cut into steps, and is not scored. "
        "`steps`: it is split into steps and scored like the solution; not with `budget.thinking`.",
    )
    stop: StopTexts = Field((), description="One to four stop strings: a solution's text ends before the first match.")
    checks: WrittenChecks | None = Field(
        None,
        description="Checks that the answer, a program, has to pass; needs a reward model of family `execution`. "
        "Unset: the examples in the question.",
    )
    logprobs: bool = Field(
        False, strict=True, description="Keep the log-probabilities of all steps in the tree, whatever the strategy."
    )
    score_prefill: bool = Field(
        True, strict=True, description="Include the rewards of the prefill's steps in every path's score."
    )
    tools: bool = Field(
        True,
        strict=True,
        description="Whether programs in the solutions are run, where `controller.tools` says how. Not with a JSON "
        "schema.",
    )
    kv_usage: bool = Field(
        False,
        strict=True,
        description="Report the KV tokens that the branches of each round need (kv_tokens_peak and others).",
    )

    @property
    def given_checks(self) -> tuple[Check, ...] | None:
        """The checks of the request; None if it has none of its own."""
        if self.checks is None:
            return None
        return tuple(Check(check.input, check.output) for check in self.checks)

    @property
    def thinking_tokens(self) -> int:
        """Most tokens of a path's thinking."""
        budget = self.budget.thinking
        return self.max_thinking_tokens if budget is None else min(budget, self.max_thinking_tokens)

    @field_validator("thinking")
    @classmethod
    def _has_no_budget_as_steps(cls, thinking: Thinking, info: ValidationInfo) -> Thinking:
        budget = info.data.get("budget")
        # A budget of 0 has no thinking written at all, if the chat template has a switch.
        if thinking is Thinking.STEPS and budget is not None and budget.thinking:
            raise PydanticCustomError(
                "budget_of_steps",
                "must be `whole` with budget.thinking: thinking that is written as steps is not told from the "
                "solution, so it has no budget of its own",
            )
        return thinking

    @model_validator(mode="wrap")
    @classmethod
    def _take_flat(cls, given: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        if not isinstance(given, Mapping) or isinstance(given.get("strategy"), Strategy | Mapping):
            return handler(given)
        try:
            return handler(_nested(given, (info.context or {}).get(_CATALOG, STRATEGIES)))
        except ValidationError as error:
            raise _relocated(error) from None


check_marks(Budget)
check_marks(SearchSettings)

SHARED_SETTINGS = tuple(name for name in SearchSettings.model_fields if name != "strategy")
"""Names of the settings that every search has. All others belong to a strategy."""


def parse_search(given: Any, strategies: Catalog = STRATEGIES) -> SearchSettings:
    """Parses settings in flat form, with a strategy from ``strategies``.

    Raises:
        pydantic.ValidationError: a setting is unknown, of the wrong type or out of bounds. Each error's ``loc`` is the
            path as written, such as ``("n",)`` or ``("budget", "tokens")``.
    """
    if isinstance(given, Mapping) and not isinstance(given.get("strategy"), str):
        given = _nested(given, strategies)
    return SearchSettings.model_validate(given, context={_CATALOG: strategies})


def parse_alias(alias: str, strategies: Catalog = STRATEGIES) -> dict[str, Any] | None:
    """The flat settings for a model alias: ``greedy``, ``sc-16``, ``best-16``, ``beam-16``, or a strategy's full name,
    with or without its ``n``. None for any other name.

    The settings are not validated: ``beam-0`` is an alias, but ``parse_search`` refuses its settings.
    """
    match = _ALIAS.fullmatch(alias)
    if match is None:
        return None
    for name, strategy in strategies.items():
        if match["name"] == name or match["name"] in strategy.aliases:
            if match["n"] is None:
                return {"strategy": name}
            return {"strategy": name, "n": int(match["n"])} if "n" in strategy.model_fields else None
    return None


def caps_on(settings: SearchSettings) -> Iterator[CappedSetting]:
    """Every setting that an operator may cap, with its path in the flat form."""
    return (each._replace(path=each.path.removeprefix("strategy.")) for each in capped_settings(settings))


def search_schema(strategies: Catalog = STRATEGIES) -> dict[str, Any]:
    """The JSON schema of the flat form: one alternative per strategy."""
    common = SearchSettings.model_json_schema(ref_template=_REFERENCE)
    definitions = dict(common["$defs"])
    shared = {key: value for key, value in common["properties"].items() if key != "strategy"}
    alternatives: list[dict[str, Any]] = []
    for name, strategy in strategies.items():
        schema = strategy.model_json_schema(ref_template=_REFERENCE)
        definitions |= schema.get("$defs", {})
        own = {key: value for key, value in schema["properties"].items() if key != "name"}
        alternatives.append(
            {
                "type": "object",
                "title": name,
                "description": (strategy.__doc__ or "").strip().partition("\n\n")[0],
                "properties": {"strategy": {"const": name}, **own, **shared},
                "required": ["strategy"],
                "additionalProperties": False,
            }
        )
    return {"oneOf": alternatives, "$defs": definitions}


def _nested(flat: Mapping[str, Any], strategies: Catalog) -> dict[str, Any]:
    name = flat.get("strategy")
    if not isinstance(name, str) or name not in strategies:
        raise _validation_error([InitErrorDetails(type=_unknown_strategy(strategies), loc=("strategy",), input=name)])
    own = {key: value for key, value in flat.items() if key not in (*SHARED_SETTINGS, "strategy")}
    if "name" in own:
        fault = PydanticCustomError("extra_forbidden", "Extra inputs are not permitted")
        raise _validation_error([InitErrorDetails(type=fault, loc=("name",), input=own["name"])])
    return {"strategy": own | {"name": name}} | {key: flat[key] for key in flat.keys() & {*SHARED_SETTINGS}}


def _unknown_strategy(strategies: Catalog) -> PydanticCustomError:
    known = ", ".join(strategies)
    return PydanticCustomError("unknown_strategy", "unknown strategy; available: {known}", {"known": known})


def _relocated(error: ValidationError) -> ValidationError:
    """``error`` with the paths of the flat form."""
    return _validation_error(
        [
            InitErrorDetails(
                type=PydanticCustomError(fault["type"], "{message}", {"message": fault["msg"]}),
                loc=fault["loc"][1:] if fault["loc"][:1] == ("strategy",) and len(fault["loc"]) > 1 else fault["loc"],
                input=fault["input"],
            )
            for fault in error.errors(include_url=False)
        ]
    )


def _validation_error(faults: list[InitErrorDetails]) -> ValidationError:
    return ValidationError.from_exception_data("search", faults)
