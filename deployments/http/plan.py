"""From a request to the settings of its search: who wins where they disagree, and the operator's caps.

Later wins: the operator's default < the request's own temperature, top_p and limits < the model alias <
the ``search`` field.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from deployments.config import AppConfig, LimitSettings
from deployments.http.body import refused
from deployments.http.errors import BadRequest, NotFound
from deployments.http.schema import ChatRequest
from search.settings import SHARED_SETTINGS, SearchSettings, parse_alias, parse_search
from search.strategies.catalog import STRATEGIES, Catalog

Flat = dict[str, Any]


class Cap(NamedTuple):
    """One limit of the operator: where it applies in flat settings, and in `LimitSettings`."""

    field: str
    most: float
    within: str | None = None
    """The field is a part of this one."""

    def get(self, settings: Mapping[str, Any]) -> Any:
        """The value in flat settings, checked or not; None where there is none."""
        inner = settings.get(self.within) if self.within else settings
        return inner.get(self.field) if isinstance(inner, Mapping) else None

    def put(self, flat: Flat) -> None:
        if self.within:
            flat[self.within] = {**(flat.get(self.within) or {}), self.field: self.most}
        else:
            flat[self.field] = self.most

    @property
    def path(self) -> str:
        return f"{self.within}.{self.field}" if self.within else self.field


class Planner:
    """Turns requests into search settings, under one set of defaults and caps."""

    @classmethod
    def of(cls, config: AppConfig) -> "Planner":
        controller = config.controller
        return cls(config.generator.served_name, controller.default_search, controller.limits, controller.catalog)

    def __init__(
        self,
        served_name: str,
        default_search: Mapping[str, Any],
        limits: LimitSettings,
        strategies: Catalog = STRATEGIES,
    ) -> None:
        """
        Raises:
            ValidationError: the default search is none.
        """
        parse_search(default_search, strategies)
        self._strategies = strategies
        self._served_name = served_name
        self._default = dict(default_search)
        self._caps = (
            Cap("n", limits.n),
            Cap("m", limits.n),
            Cap("width", limits.n),
            Cap("paths", limits.n),
            Cap("max_depth", limits.depth),
            Cap("max_step_tokens", limits.step_tokens),
            Cap("max_path_tokens", limits.tokens),
            Cap("tokens", limits.tokens, "budget"),
            Cap("nodes", limits.nodes, "budget"),
            Cap("seconds", limits.seconds, "budget"),
        )

    def settings(self, request: ChatRequest) -> SearchSettings:
        """
        Raises:
            NotFound: the model is unknown.
            BadRequest: a setting is wrong or above its cap; ``param`` is where the client wrote it.
        """
        merged = _Merged(self._default)
        merged.lay(self._alias(request.model), "model")
        own = {"temperature": request.temperature, "top_p": request.top_p, "seed": request.seed}
        own["max_path_tokens"] = request.max_tokens
        merged.lay({name: value for name, value in own.items() if value is not None}, None)
        if request.max_completion_tokens is not None:
            merged.lay({"budget": {"tokens": request.max_completion_tokens}}, None)
        merged.lay(request.search or {}, "search")
        self._check_caps(merged)
        try:
            settings = parse_search(merged.flat, self._strategies)
        except ValidationError as error:
            raise merged.refused(error) from None
        return self._capped(merged.flat, settings)

    def check_model(self, name: str) -> None:
        """Raises NotFound unless it is the served model's name or an alias of it."""
        self._alias(name)

    def _alias(self, model: str) -> Flat:
        name, colon, alias = model.partition(":")
        known = name == self._served_name
        settings = parse_alias(alias, self._strategies) if known and colon else {}
        if not known or settings is None:
            message = f"no model {model[:100]!r}; there is {self._served_name!r}, also as {self._served_name}:beam-16"
            raise NotFound(message, "model", "model_not_found")
        return settings

    def _check_caps(self, merged: "_Merged") -> None:
        for cap in self._caps:
            value = cap.get(merged.flat)
            written = cap.path in merged.origins and isinstance(value, int | float) and not isinstance(value, bool)
            if written and value > cap.most:
                path = merged.path(cap.path)
                raise BadRequest(f"{path} may be at most {cap.most:g} here, not {value:g}", path, "above_limit")

    def _capped(self, flat: Flat, settings: SearchSettings) -> SearchSettings:
        """Defaults above a cap are lowered to it; what the client wrote was checked before."""
        whole = settings.model_dump()
        whole = {**whole, **whole.pop("strategy")}
        lowered = dict(flat)
        for cap in self._caps:
            value = cap.get(whole)
            unbounded = value is None and cap.within is not None
            if unbounded or (isinstance(value, int | float) and value > cap.most):
                cap.put(lowered)
        n, m = (lowered.get(name, whole.get(name)) for name in ("n", "m"))
        if isinstance(n, int) and isinstance(m, int):
            # A default n that was lowered may be no multiple of m any more.
            lowered |= {"n": n - n % m} if n >= m else {"m": n}
        return parse_search(lowered, self._strategies)


class _Merged:
    """Flat settings laid over one another, and where a client wrote each of them."""

    def __init__(self, base: Flat) -> None:
        self.flat = dict(base)
        self.origins: dict[str, str] = {}

    def lay(self, layer: Mapping[str, Any], origin: str | None) -> None:
        """``origin`` is ``model``, ``search``, or None where the request's own fields say it."""
        chosen = layer.get("strategy", self.flat.get("strategy"))
        if chosen != self.flat.get("strategy"):
            # What was said for one strategy means nothing to another, what every search has stays.
            own = {"temperature", "top_p"} & self.origins.keys()
            self.flat = {key: value for key, value in self.flat.items() if key in own.union(SHARED_SETTINGS)}
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
        """Where the client would look for a setting of that flat path."""
        first = setting.partition(".")[0]
        return self.origins.get(setting) or self.origins.get(first) or f"search.{setting}"

    def refused(self, error: ValidationError) -> BadRequest:
        reply = refused(error)
        written = reply.param or "search"
        path = self.path(written) if reply.param else "search"
        if written == "m" and "m" not in self.origins and "n" in self.origins:
            # Only n was written: it is n that does not fit the default m.
            path = self.path("n")
        if path.startswith("search.") and path.count(".") < written.count(".") + 1:
            path = f"search.{written}"
        return BadRequest(reply.message.replace(written, path, 1), path, reply.code)


def _origin(key: str, origin: str | None) -> str:
    if origin == "search":
        return f"search.{key}"
    own = {"max_path_tokens": "max_tokens", "budget.tokens": "max_completion_tokens", "budget": "max_completion_tokens"}
    return origin or own.get(key, key)
