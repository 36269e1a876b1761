"""Resolves the settings of a search from the request, the operator's defaults and the operator's caps.

Precedence, lowest first: what cards decide; the operator's default search, or the preset of the
``reasoning_effort``; the model alias, which names a whole search; OpenAI's own fields; the ``search`` field.

One exception: clients send ``temperature: 0`` without intent (lm-eval always does), and a search of many samples would
then write one solution many times. So OpenAI's ``temperature: 0`` is ignored for a search that branches, and the reply
says so. ``search.temperature: 0`` is obeyed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from deployments.admission.errors import BadRequest, NotFound
from deployments.backends.capabilities import Capabilities
from deployments.config import AppConfig, ControllerSettings, Effort, LimitSettings
from deployments.http.chat.schema import ChatRequest
from deployments.http.fields import nearest, unknown_field
from deployments.http.json_body import refused
from search.budget import Budget
from search.ports import Sampling, StopCondition
from search.reader_card import ReaderCard
from search.reward_card import RewardCard
from search.settings import SHARED_SETTINGS, SearchSettings, caps_on, parse_alias, parse_search
from search.strategies.catalog import STRATEGIES, Catalog

Flat = dict[str, Any]

SAMPLING = frozenset(Sampling._fields)
"""Names of the sampling settings. Every strategy has them, as fields of its own."""

NEEDS_WHOLE = {"response_format": "have a response format", "tools": "call tools"}
"""What only an answer that is written as a whole can do, by the field that asks for it."""


EXAMPLES = ("greedy", "sc-16", "best-16", "beam-16")
"""Aliases that the list of models shows where they can be searched with."""


class SettingsResolver:
    """Turns requests into search settings."""

    @classmethod
    def of(cls, config: AppConfig, backend: Capabilities | None = None) -> "SettingsResolver":
        name, catalog = config.generator.served_name, config.controller.catalog
        cards: tuple[RewardCard | ReaderCard | None, ...] = (config.prm.card, config.controller.reader_card)
        return cls(name, catalog, tuple(filter(None, cards)), backend, config.has_rewards)

    def __init__(
        self,
        served_name: str,
        strategies: Catalog = STRATEGIES,
        cards: Sequence[RewardCard | ReaderCard] = (),
        backend: Capabilities | None = None,
        has_rewards: bool = True,
    ) -> None:
        """``backend``: what the generator's server can do; None: the generator is an engine. ``has_rewards``: whether
        there is a reward model."""
        self._backend = backend
        self._has_rewards = has_rewards
        self._strategies = strategies
        self._served_name = served_name
        self.cards = cards
        """Of the reward model, and of the generator as a reader, if there are any."""

    def settings(
        self, request: ChatRequest, limits: LimitSettings, default_search: Mapping[str, Any]
    ) -> SearchSettings:
        """Returns the settings of a request's search.

        Args:
            limits: The caps in force.
            default_search: Settings for everything that the request leaves out; see `default_of`.

        Raises:
            NotFound: the model is unknown.
            BadRequest: a setting is invalid or above its cap; ``param`` is the field that the client wrote.
        """
        merged, settings = self._merged(request, request.temperature, default_search)
        if settings.strategy.branches and request.temperature == 0 and merged.origins["temperature"] == "temperature":
            merged, settings = self._merged(request, None, default_search)
        if lack := self._lack(settings):
            name, _, reason = lack.partition(": ")
            raise BadRequest(f"{(path := merged.path(name))}: {reason}", path, "unsupported_value")
        return self._capped(merged, settings, limits)

    def _lack(self, settings: SearchSettings) -> str | None:
        """Why a search cannot be run here, beginning with the setting's name; None if it can."""
        if settings.strategy.is_scored and not self._has_rewards:
            return f"strategy: {settings.strategy.needs}, and there is no reward model (prm)"
        return self._backend.lacks(settings) if self._backend is not None else None

    @property
    def continues(self) -> bool:
        """Whether an answer can go on behind its beginning."""
        return self._backend is None or bool(self._backend.continues)

    def check_whole_solutions(self, settings: SearchSettings, path: str) -> None:
        """Raises BadRequest unless the strategy writes each solution at once, which the field at ``path`` needs."""
        if settings.strategy.answers_at_once:
            return
        names = (name for name, each in self._strategies.items() if each.answers_at_once)
        whole = settings.strategy.stop_condition is StopCondition.SOLUTION
        message = (
            f"{path}: {settings.strategy.name} {'has the model read its solutions' if whole else 'writes step by step'}"
            f", but only an answer that is written as a whole, from the prompt alone, can {NEEDS_WHOLE[path]}; "
            f"search.strategy may be: {', '.join(names)}"
        )
        raise BadRequest(message, path, "unsupported_value")

    @property
    def example_aliases(self) -> list[str]:
        """Aliases that can be searched with here."""
        parsed = {alias: parse_alias(alias, self._strategies) for alias in EXAMPLES}
        searches = {alias: parse_search(flat, self._strategies) for alias, flat in parsed.items() if flat}
        return [alias for alias, settings in searches.items() if not self._lack(settings)]

    def check_model(self, name: str) -> None:
        """Raises NotFound unless ``name`` is the served model's name or an alias of it."""
        self._alias(name)

    def _alias(self, model: str) -> Flat:
        name, colon, alias = model.partition(":")
        known = name == self._served_name
        settings = parse_alias(alias, self._strategies) if known and colon else {}
        if not known or settings is None:
            also = (
                f", with a search also as {self._served_name}:{aliases[-1]}"
                if (aliases := self.example_aliases)
                else ""
            )
            available = f"{self._served_name!r}{also}"
            message = f"no model {model[:100]!r}; available: {available}"
            raise NotFound(message, "model", "model_not_found")
        return settings

    def _merged(
        self, request: ChatRequest, temperature: float | None, default_search: Mapping[str, Any]
    ) -> "tuple[_Merged, SearchSettings]":
        merged = _Merged(default_search)
        merged.lay(self._alias(request.model), "model")
        openai_fields = {
            "temperature": temperature,
            "top_p": request.top_p,
            "top_k": None if request.top_k is None else max(0, request.top_k),
            "min_p": request.min_p,
            "seed": None if self._backend and not self._backend.seeds else request.seed,  # clients send it unasked
            "logprobs": request.logprobs,
            "stop": request.stop,
            "max_path_tokens": request.max_tokens,
        }
        merged.lay({name: value for name, value in openai_fields.items() if value is not None}, None)
        if request.max_completion_tokens is not None:
            merged.lay({"budget": {"tokens": request.max_completion_tokens}}, None)
        merged.lay(request.search or {}, "search")
        if self.cards and isinstance(name := merged.flat.get("strategy"), str) and name in self._strategies:
            for card in self.cards:
                merged.flat |= card.defaults(self._strategies[name], merged.flat)
        try:
            return merged, parse_search(merged.flat, self._strategies)
        except ValidationError as error:
            raise merged.refused(error, self._strategies) from None

    def _capped(self, merged: "_Merged", settings: SearchSettings, limits: LimitSettings) -> SearchSettings:
        """Refuses a client's value above its cap; lowers a default above its cap to the cap."""
        lowered = dict(merged.flat)
        for path, value, most in excesses(settings, limits):
            if value is not None and path in merged.origins:
                where = merged.path(path)
                raise BadRequest(f"{where} may be at most {most:g} here, not {value:g}", where, "above_limit")
            outer, _, inner = path.rpartition(".")
            if outer:
                lowered[outer] = {**(lowered.get(outer) or {}), inner: most}
            elif isinstance(sizes := lowered.get(inner), list | tuple):
                lowered[inner] = [min(size, int(most)) for size in sizes]
            else:
                lowered[inner] = most
        if lowered == merged.flat:
            return settings
        n, m = (lowered.get(name, getattr(settings.strategy, name, None)) for name in ("n", "m"))
        if isinstance(n, int) and isinstance(m, int):
            # A lowered default n may no longer be a multiple of m.
            lowered |= {"n": n - n % m} if n >= m else {"m": n}
        return parse_search(lowered, self._strategies)


class _Merged:
    """Flat settings merged from layers, and the field in which the client wrote each setting."""

    def __init__(self, base: Mapping[str, Any]) -> None:
        self.flat = dict(base)
        self.origins: dict[str, str] = {}

    def lay(self, layer: Mapping[str, Any], origin: str | None) -> None:
        """Overrides settings by a layer. ``origin``: ``model``, ``search``, or None for OpenAI's own fields."""
        chosen = layer.get("strategy", self.flat.get("strategy"))
        if chosen != self.flat.get("strategy"):
            # Another strategy drops the old one's settings. Shared settings and the client's sampling settings stay.
            kept_sampling = SAMPLING & self.origins.keys()
            self.flat = {key: value for key, value in self.flat.items() if key in kept_sampling.union(SHARED_SETTINGS)}
        for key, value in layer.items():
            before = self.flat.get(key)
            if key == "budget" and isinstance(value, Mapping) and isinstance(before, Mapping):
                self.flat[key] = {**before, **value}
            else:
                self.flat[key] = value
            for part in value if key == "budget" and isinstance(value, Mapping) else ():
                self.origins[f"budget.{part}"] = _origin(f"budget.{part}", origin)
            self.origins[key] = _origin(key, origin)

    def path(self, setting: str) -> str:
        """Returns the field in which the client wrote, or would write, the setting of a flat path."""
        first = setting.partition(".")[0]
        return self.origins.get(setting) or self.origins.get(first) or f"search.{setting}"

    def refused(self, error: ValidationError, strategies: Catalog) -> BadRequest:
        """Converts a validation error; its path is the field that the client wrote."""
        reply = refused(error)
        written = reply.param or "search"
        path = self.path(written) if reply.param else "search"
        if written == "m" and "m" not in self.origins and "n" in self.origins:
            # The client wrote only n, and n does not fit the default m.
            path = self.path("n")
        if path.startswith("search.") and path.count(".") < written.count(".") + 1:
            path = f"search.{written}"
        if reply.code == "unknown_parameter":
            return unknown_field(path, self._meant(written, strategies))
        return BadRequest(reply.message.replace(written, path, 1), path, reply.code)

    def _meant(self, unknown: str, strategies: Catalog) -> str | None:
        """Returns the setting that an unknown one probably misspells; None if there is none."""
        if unknown.startswith("budget."):
            meant = nearest(unknown.removeprefix("budget."), Budget.model_fields)
            return meant and f"search.budget.{meant}"
        own = strategies[self.flat["strategy"]].model_fields.keys() - {"name"}
        meant = nearest(unknown, {"strategy", *SHARED_SETTINGS, *own})
        return meant and f"search.{meant}"


class Excess(NamedTuple):
    """A setting above its cap, or a setting with a cap but no limit."""

    path: str
    """Path in the flat settings."""
    value: float | None
    """None: no limit."""
    most: float
    """The cap."""


def excesses(settings: SearchSettings, limits: LimitSettings) -> list[Excess]:
    """Returns every setting above its cap, for any strategy."""
    found: list[Excess] = []
    for path, cap, value in caps_on(settings):
        most = getattr(limits, cap)
        if value is None or value > most:
            found.append(Excess(path, value, most))
    return found


def notes(request: ChatRequest, settings: SearchSettings) -> tuple[str, ...]:
    """Returns the reply's notes on the temperature in force, and on log-probabilities that are not reported."""
    strategy = settings.strategy
    found: tuple[str, ...] = ()
    if request.temperature == 0 and strategy.temperature > 0 and "temperature" not in (request.search or {}):
        why = "would make every sample of this search the same"
        found = (f"temperature 0 {why}: {strategy.temperature:g} is used instead; search.temperature is never changed",)
    elif strategy.temperature == 0 and strategy.branches:
        found = ("at temperature 0 every sample of this search is the same",)
    if request.logprobs and request.top_logprobs:
        found += ("top_logprobs: alternatives to the written tokens are not reported",)
    return found


def default_of(effort: Effort | None, controller: ControllerSettings) -> Mapping[str, Any]:
    """Returns the preset search of a ``reasoning_effort``; without one, the operator's default search, for ``none``
    without thinking.

    Raises:
        BadRequest: the operator has no preset for this effort.
    """
    if effort is None:
        return controller.default_search
    if effort == "none" and effort not in controller.efforts:
        default = controller.default_search
        return {**default, "budget": {**(default.get("budget") or {}), "thinking": 0}}
    if effort not in controller.efforts:
        known = ", ".join(dict.fromkeys(("none", *controller.efforts)))
        message = f"reasoning_effort {effort!r} is not offered here; available: {known}"
        raise BadRequest(message, "reasoning_effort", "unsupported_value")
    return controller.efforts[effort]


def _origin(key: str, origin: str | None) -> str:
    if origin == "search":
        return f"search.{key}"
    own = {"max_path_tokens": "max_tokens", "budget.tokens": "max_completion_tokens", "budget": "max_completion_tokens"}
    return origin or own.get(key, key)
