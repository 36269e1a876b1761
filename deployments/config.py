"""The settings tree: everything that ``args:`` in ``serve_config.yaml`` may contain, with defaults and bounds.

Checked when the application is built; a wrong value is refused with its path and what is allowed.
"""

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    Field,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from deployments.backends.prm_settings import AnyPrmSettings, UrlPrmSettings
from deployments.backends.settings import VOTE, BackendSettings, UrlGeneratorSettings
from deployments.engines.rewards import execution_of
from deployments.engines.rewards.card_file import ReaderCardSetting
from deployments.engines.rewards.execution import ExecutionSettings
from deployments.engines.rewards.no_rewards import NoRewardSettings
from deployments.engines.rewards.step_head import StepHeadSettings
from deployments.engines.settings import (
    CONFIG_FILES,
    EngineSettings,
    GeneratorSettings,
    Location,
    ReplicaSettings,
    Settings,
    explained,
)
from deployments.engines.yaml_values import as_meant
from deployments.store import StoreSettings
from deployments.templates_file import TemplatesSetting
from kvstore.settings import CacheSettings
from search.answers.checks import MAX_CHECKS
from search.answers.extraction import extract_answer
from search.answers.programs import program_answer
from search.budget import MAX_SECONDS, Budget
from search.ports import ToolRequest
from search.run.bill import Prices
from search.run.environment import AnswerExtractor, Fallback
from search.run.step_hook import HookCall, HookFallback, StepHook
from search.settings import SHARED_SETTINGS, parse_search
from search.strategies.catalog import Catalog, catalog_of
from search.templates import TEMPLATES, Template
from search.tools.import_path import imported_async_function, imported_function

PROGRAM = "program"
"""Value of ``answer_extractor``; see `search.answers.programs.program_answer`."""


class LimitSettings(Settings):
    """Upper limits of one request."""

    body_bytes: int = Field(1 << 20, ge=1024, le=1 << 24, description="Maximum size of a request body, bytes.")
    n: int = Field(256, ge=1, le=256, description="Maximum width (n) of a search.")
    depth: int = Field(100, ge=1, le=100, description="Maximum number of steps on a path.")
    step_tokens: int = Field(2048, ge=1, description="Maximum tokens of one step.")
    tokens: int = Field(1_000_000, ge=1, description="Maximum generated tokens of one request.")
    nodes: int = Field(100_000, ge=1, description="Maximum number of nodes in a search tree.")
    checks: int = Field(64, ge=1, le=MAX_CHECKS, description="Maximum number of checks (checks) of a program.")
    seconds: float = Field(600.0, gt=0, le=MAX_SECONDS, description="Wall-clock limit of one request, seconds.")


class QueueSettings(Settings):
    """The queue for requests that find all slots taken.

    Off by default: a refused client knows at once and can try another replica or endpoint, and OpenAI's clients retry
    by themselves. A queue adds to the latency of all requests behind it.
    """

    places: int = Field(0, ge=0, le=4096, description="Maximum queue length, requests per replica.")
    seconds: float = Field(
        5.0, gt=0, le=600, description="Queue timeout, seconds; then the request is refused with 429."
    )


LiveName = Literal[
    "searches", "flex_places", "queue", "max_loop_delay_s", "default_search", "efforts", "side_calls", "limits"
]
"""The settings of the controller that may change while it serves."""


def _valid_search(given: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    if "strategies" in info.data:  # missing where the strategies themselves were refused
        strategies = catalog_of(info.data["strategies"])
        try:
            parse_search(given, strategies)
        except ValidationError as error:
            raise explained(error, partial(_search_names, given, strategies)) from None
    return given


def _search_names(given: dict[str, Any], strategies: Catalog, path: Location) -> Iterable[str]:
    """Names of the settings at a path of a search whose strategy there is."""
    if path == ("budget",):
        return Budget.model_fields
    own = (name for name in strategies[given["strategy"]].model_fields if name != "name")
    return () if path else ["strategy", *own, *SHARED_SETTINGS]


Search = Annotated[dict[str, Any], AfterValidator(_valid_search)]
"""A search in the form in which requests write it. Its strategy must be one of the controller's."""
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""The values of OpenAI's ``reasoning_effort``."""
EFFORTS: dict[str, dict[str, Any]] = {
    "low": {"strategy": "beam_search", "n": 4, "m": 4},
    "medium": {"strategy": "beam_search", "n": 16, "m": 4},
    "high": {"strategy": "beam_search", "n": 64, "m": 4},
}


class Example(Settings):
    """A question and the answer that the model should give."""

    question: str = Field(min_length=1)
    answer: str = Field(min_length=1)


class PromptSettings(Settings):
    """Text that the generator reads before the client's messages."""

    system: str | None = Field(None, min_length=1, description="System message of every prompt.")
    client_system: Literal["append", "replace", "refuse"] = Field(
        "append",
        description="What happens to system messages at the start of a client's conversation when `system` is set: "
        "`append` them to it in one message, `replace` it with them, or `refuse` the request.",
    )
    examples: tuple[Example, ...] = Field(
        (),
        max_length=64,
        description="Few-shot examples, as pairs of user and assistant messages between the system message and the "
        "client's messages.",
    )

    @property
    def example_turns(self) -> list[dict[str, str]]:
        """The examples as ``role``/``content`` messages."""
        return [
            {"role": role, "content": text}
            for example in self.examples
            for role, text in (("user", example.question), ("assistant", example.answer))
        ]


ChatWindow = Literal["open-webui", "librechat", "lobe-chat"]
"""Chat windows whose own prompts are known."""


def _one_line(text: str) -> str:
    return " ".join(text.split())


class SideCallSettings(Settings):
    """How side calls are recognized: requests that a chat front end makes by itself, for a title, tags or follow-up
    questions. If set (`{}` is enough), side calls run strategy greedy instead of default_search. A request with a
    search field, an alias or n above 1 is never a side call."""

    clients: tuple[ChatWindow, ...] = Field(
        ("open-webui", "librechat", "lobe-chat"),
        description="Chat front ends whose built-in prompts for titles, tags and follow-up questions are side calls.",
    )
    prefixes: tuple[Annotated[str, AfterValidator(_one_line), Field(min_length=8, max_length=512)], ...] = Field(
        (),
        max_length=64,
        description="Beginnings of further prompts that are side calls, for example of a title prompt that you "
        "rewrote. Runs of whitespace count as one space.",
    )


class AnswerCacheSettings(Settings):
    """A cache of answers in the controller's memory ([answer_cache.md](answer_cache.md)). Off unless set; ``{}`` turns
    it on."""

    seconds: float = Field(3600.0, gt=0, le=30 * 86_400, description="Time to live of a cached answer, seconds.")
    memory_bytes: int = Field(
        1 << 26,
        ge=1 << 20,
        le=1 << 34,
        description="Approximate memory limit of the cache, bytes; the least recently used answers are evicted.",
    )
    embedding: str | None = Field(
        None,
        description="package.module:function, plain or async, that returns an embedding vector for each of a list "
        "of texts. With it, questions of the same meaning share an answer; unset, only identical "
        "questions do.",
    )
    threshold: float | None = Field(
        None,
        gt=0,
        le=1,
        validate_default=True,
        description="Minimum cosine similarity of two questions of the same meaning. Required with `embedding`.",
    )
    embedding_timeout_s: float = Field(
        0.5,
        gt=0,
        le=30,
        description="Timeout of an embedding call, seconds; after it the question counts as new.",
    )

    @field_validator("embedding")
    @classmethod
    def _is_a_function(cls, path: str | None) -> str | None:
        if path is not None:
            imported_function(path)
        return path

    @field_validator("threshold")
    @classmethod
    def _belongs_to_embedding(cls, threshold: float | None, info: ValidationInfo) -> float | None:
        if "embedding" in info.data and (threshold is None) != (info.data["embedding"] is None):
            raise ValueError("embedding and threshold belong together; docs/answer_cache.md says how to choose it")
        return threshold


class TextAnswerSettings(Settings):
    """How answers that are free text are compared ([free-text.md](free-text.md)). Unset: only equal texts are alike."""

    embedding: str = Field(
        description="package.module:function, plain or async, that returns an embedding vector for each of a list of "
        "texts: the solutions of a search in which no answer can be extracted."
    )
    threshold: float = Field(gt=0, le=1, description="Minimum cosine similarity of two texts that mean the same.")
    embedding_timeout_s: float = Field(
        5.0, gt=0, le=60, description="Timeout of an embedding call, seconds; after it only equal texts are alike."
    )

    @field_validator("embedding")
    @classmethod
    def _is_a_function(cls, path: str) -> str:
        imported_function(path)
        return path


class StepHookSettings(Settings):
    """A function that sees every new step before it is scored ([step-hooks.md](step-hooks.md)). Off unless set."""

    function: str = Field(
        description="package.module:async_function, called with the question, the steps so far and the new step. It "
        "returns None, a text to append to the step, or END_PATH."
    )
    timeout_s: float = Field(
        5.0, gt=0, le=600, description="Timeout of one call, seconds; a call that exceeds it has failed."
    )
    max_calls: int = Field(64, ge=1, le=4096, description="Maximum concurrent calls per replica; further calls wait.")
    fallback: HookFallback = Field(
        HookFallback.LEAVE,
        description="When a call fails: `leave` the step as it is and mark the reply as degraded, or `fail` the "
        "request.",
    )

    @field_validator("function")
    @classmethod
    def _is_an_async_function(cls, path: str) -> str:
        imported_async_function(path)
        return path

    def hook(
        self, encode: Callable[[str], Sequence[int]], observe: Callable[[HookCall], None] = lambda call: None
    ) -> StepHook:
        """The hook; the arguments are those of `StepHook`."""
        return StepHook(
            imported_async_function(self.function),
            encode,
            timeout_s=self.timeout_s,
            max_calls=self.max_calls,
            fallback=self.fallback,
            observe=observe,
        )


class PythonToolSettings(Settings):
    """Runs the Python programs that solutions contain and gives the model their output ([tools.md](tools.md))."""

    calls: int = Field(4, ge=1, le=32, description="Maximum programs run on a path; a further one gets an error.")
    seconds: float = Field(
        5.0,
        gt=0,
        le=60,
        description="Time limit of one program, seconds. A reply with a program that met it is marked as degraded.",
    )
    memory_mb: int = Field(128, ge=16, le=2048, description="Memory limit of a path's programs, MiB.")
    output_chars: int = Field(
        2000, ge=16, le=16_384, description="Maximum characters of an output that the model is given; the rest is cut."
    )
    function: str | None = Field(
        None,
        description="package.module:async_function that runs programs instead of the sandbox: it gets the sources of "
        "all programs of the path and returns what the last one prints. The module must be importable at the "
        "generator's replicas.",
    )

    @field_validator("function")
    @classmethod
    def _is_an_async_function(cls, path: str | None) -> str | None:
        if path is not None:
            imported_async_function(path)
        return path

    @property
    def request(self) -> ToolRequest:
        """What calls to the generator say of it."""
        return ToolRequest(self.calls, self.seconds, self.memory_mb << 20, self.output_chars, self.function or "")


class ToolSettings(Settings):
    """What is run inside the branches of searches."""

    python: PythonToolSettings | None = Field(None, description="Unset: programs are text like any other.")


class ControllerSettings(Settings):
    """The search controller: ingress and searches."""

    searches: int = Field(
        64,
        ge=1,
        description="Slots: concurrent searches per replica. Requests beyond them are queued (`queue`) or refused "
        "with 429 and Retry-After.",
    )
    flex_places: float = Field(
        0.75,
        gt=0,
        le=1,
        description="Share of the slots, at least one, up to which requests with service_tier flex are admitted; also "
        "the share of the queue that they may fill.",
    )
    queue: QueueSettings = QueueSettings()
    max_loop_delay_s: float = Field(
        1.0,
        gt=0,
        description="Refuse new requests with 429 and Retry-After while the controller's event loop is delayed by "
        "more than this many seconds.",
    )
    fallback: Fallback = Field(
        Fallback.NEUTRAL,
        description="When the PRM returns no rewards: `neutral` continues with rewards of 0.5 and marks the reply "
        "as degraded, `fail` fails the request.",
    )
    attempts: int = Field(3, ge=1, le=10, description="Maximum attempts of a call that fails because of its replica.")
    backoff_s: float = Field(
        0.05, gt=0, le=60, description="Initial backoff between attempts, seconds; it doubles each time, with jitter."
    )
    backoff_max_s: float = Field(2.0, gt=0, le=60, description="Maximum backoff between attempts, seconds.")
    silence_s: float = Field(
        20.0,
        gt=5,
        description="Abandon a call to a generator after this many seconds without a message. Heartbeats come every "
        "5 s.",
    )
    prm_patience_s: float = Field(
        10.0,
        gt=0,
        description="After this many seconds without a heartbeat the PRM counts as unavailable (see `fallback`) "
        "until it answers again.",
    )
    strategies: tuple[str, ...] = Field(
        (), description="Custom strategies to add to the built-in ones, each as package.module:Class."
    )
    answer_extractor: str | None = Field(
        None,
        description="package.module:function that extracts the answer from a path's text, instead of the built-in one; "
        "or `program`: the built-in one, but where a path ends with a program's output, its last line is the answer.",
    )
    step_clusters: str | None = Field(
        None,
        description="Clustering of steps for strategy ets, which prefers paths from different clusters: "
        "package.module:function that takes the texts of a level's steps and returns a cluster number for each. Unset: "
        "a built-in comparison of formulas and words.",
    )
    step_hook: StepHookSettings | None = None
    tools: ToolSettings = ToolSettings()
    default_search: Search = Field(
        default_factory=lambda: {"strategy": "beam_search", "n": 16, "m": 4},
        description="The search of requests that name none.",
    )
    efforts: dict[Effort, Search] = Field(
        default_factory=dict,
        validate_default=True,
        description="Searches by a request's `reasoning_effort`. Unless named here, low, medium and high are beam "
        "searches of width 4, 16 and 64; without an effort `default_search` applies, for `none` without thinking.",
    )
    side_calls: SideCallSettings | None = Field(
        None, description="Which requests get a greedy answer instead of default_search. Unset: none."
    )
    prompt: PromptSettings = PromptSettings()
    tool_calls: Literal["sample", "vote", "refuse"] = Field(
        "sample",
        description="Requests with `tools` that name no search: `sample` generates one answer; `vote` generates "
        "several and takes a majority vote, in which equal calls are one answer; `refuse` answers with 400.",
    )
    exclude_arguments: tuple[str, ...] = Field(
        (),
        description="Names of arguments that a vote ignores when it compares tool calls, such as an explanation.",
    )
    prm_reads: Literal["last_turn", "conversation"] = Field(
        "last_turn",
        description="What the reward model reads as the question: the client's last message with the results of tools "
        "since, or the whole conversation.",
    )
    prm_reads_thinking: bool = Field(
        False,
        description="Whether the reward model reads a path's thinking as the beginning of its first step. Otherwise it "
        "reads the solution alone.",
    )
    limits: LimitSettings = LimitSettings()
    store: StoreSettings = StoreSettings()
    answer_cache: AnswerCacheSettings | None = None
    text_answers: TextAnswerSettings | None = None
    reader_card: ReaderCardSetting = None
    templates: TemplatesSetting = Field(default_factory=dict)
    replicas: ReplicaSettings = ReplicaSettings()

    @field_validator("strategies")
    @classmethod
    def _are_strategies(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        catalog_of(paths)
        return paths

    @field_validator("templates")
    @classmethod
    def _are_read(cls, templates: dict[str, Template], info: ValidationInfo) -> dict[str, Template]:
        """Only strategies of one's own may read other templates than the default ones."""
        unknown = [name for name in templates if name not in TEMPLATES]
        if unknown and not info.data.get("strategies", True):
            raise ValueError(f"{unknown[0]}: no strategy reads it; there are: {', '.join(TEMPLATES)}")
        return templates

    @field_validator("answer_extractor", "step_clusters")
    @classmethod
    def _is_a_function(cls, path: str | None) -> str | None:
        if path not in (None, PROGRAM):
            imported_function(path)
        return path

    @field_validator("efforts", mode="before")
    @classmethod
    def _with_default_efforts(cls, given: Any) -> Any:
        return {**EFFORTS, **given} if isinstance(given, Mapping) else given

    @property
    def most_inside(self) -> int:
        """Maximum number of requests that work or wait for a slot, per replica."""
        return self.searches + self.queue.places

    def changed(self, given: Mapping[LiveName, Any]) -> "ControllerSettings":
        """Returns these settings with ``given`` merged over them, nested mappings by key.

        Raises:
            ValidationError: the result is malformed.
            ValueError: paths could be deeper than the reward model's context was checked for, or searches longer than
                a stopping controller waits for them.
        """
        changed = ControllerSettings.model_validate(merged(self.model_dump(), as_meant(ControllerSettings, given)))
        if changed.limits.depth > self.limits.depth:
            raise ValueError(
                f"limits.depth may be at most {self.limits.depth}, its value when the application was built"
            )
        if changed.limits.seconds > (most := max(self.limits.seconds, self.replicas.drain_s or 0.0)):
            raise ValueError(
                f"limits.seconds may be at most {most:g}: a controller that stops has only this long to finish its "
                "searches, the drain timeout with which the application was built (replicas.drain_s, limits.seconds)"
            )
        return changed

    @property
    def catalog(self) -> Catalog:
        """All strategies that a request may name."""
        return catalog_of(self.strategies)

    @property
    def known_templates(self) -> dict[str, Template]:
        """The templates of contexts by name: the operator's own, and the default ones that these do not replace."""
        return {**TEMPLATES, **self.templates}

    @property
    def extractor(self) -> AnswerExtractor:
        """The function that finds the answer in a path's text."""
        if self.answer_extractor == PROGRAM:
            return program_answer
        return extract_answer if self.answer_extractor is None else imported_function(self.answer_extractor)


UnknownFields = Literal["ignore", "refuse"]


def _is_origin(given: str) -> str:
    parts = urlsplit(given)
    if given != "*" and (not parts.hostname or given != f"{parts.scheme}://{parts.netloc}".lower()):
        raise ValueError("an origin is scheme://host or scheme://host:port in lower case, without a path; or *")
    return given


Origin = Annotated[str, Field(max_length=256), AfterValidator(_is_origin)]
"""Origin of web pages as browsers send it, or ``*`` for all."""


def _is_network(given: str) -> str:
    ipaddress.ip_network(given)
    return given


Network = Annotated[str, Field(max_length=64), AfterValidator(_is_network)]
"""An IP address, or a network as ``10.0.0.0/8``."""


class HttpSettings(Settings):
    """The HTTP endpoint."""

    api_keys_file: Path | None = Field(
        None,
        description="File with one API key per line, read when the application is built. The variable "
        "BANYAN_API_KEYS (comma-separated) adds more.",
    )
    allow_anonymous: bool = Field(False, description="Serve other machines without API keys.")
    allow_unauthenticated_cluster: bool = Field(
        False,
        description="Serve on a Ray cluster without token authentication, because something else protects its ports.",
    )
    allowed_origins: tuple[Origin, ...] = Field(
        (),
        max_length=64,
        description="Origins of web pages that may use the endpoint (CORS), such as https://app.example:8443; `*` "
        "allows all. Without API keys, pages of other origins are refused, and so are other host names "
        "in the Host header.",
    )
    trusted_proxies: tuple[Network, ...] = Field(
        (),
        max_length=64,
        description="Addresses or networks of reverse proxies whose X-Forwarded-For header is trusted. Requests "
        "through any other proxy count as one client where there are no API keys.",
    )
    unknown_fields: UnknownFields = Field(
        "ignore", description="`ignore` unknown request fields and note them in the reply, or `refuse` the request."
    )
    isolate_keys: bool = Field(
        True,
        description="Share no cached prefixes or rewards between API keys. Otherwise a client could tell from the time "
        "to the reply whether another key has sent the same prompt.",
    )
    canary_timeout_s: float = Field(20.0, gt=0, description="Timeout of the canary generation behind /health, seconds.")
    canary_every_s: float = Field(5.0, ge=0, description="/health reuses a canary result for this many seconds.")


class TracingSettings(Settings):
    """Export of spans by OTLP over HTTP. All other options come from the ``OTEL_*`` environment variables."""

    endpoint: str | None = Field(
        None,
        min_length=1,
        description="OTLP endpoint, such as http://host:4318/v1/traces. Unset: OTEL_EXPORTER_OTLP_ENDPOINT.",
    )
    ratio: float = Field(1.0, ge=0, le=1, description="Fraction of searches that are traced.")


class TelemetrySettings(Settings):
    """Metrics, traces and logs."""

    metrics: bool = Field(True, description="Export Banyan's metrics (docs/monitoring.md) through Ray.")
    engine_metrics: bool = Field(False, description="Export vLLM's own metrics too, at some cost in throughput.")
    tracing: TracingSettings | None = Field(None, description="Trace searches, rounds and calls. Unset: no tracing.")
    search_log: bool = Field(True, description="Log one line of JSON per search, at any log_level.")
    log_texts: bool = Field(False, description="Include questions, answers and the text of unexpected errors in logs.")


UNSEEN = TelemetrySettings(metrics=False, search_log=False)
"""Telemetry settings of a replica that belongs to no application: nothing is published."""


VOTES: dict[str, dict[str, Any]] = {name: {**VOTE, "n": n} for name, n in (("low", 4), ("medium", 16), ("high", 64))}
URLS = ("url", "urls")


def parse_generator(given: Any) -> GeneratorSettings | UrlGeneratorSettings:
    """Validates the settings of a generator: an engine, or with ``url`` or ``urls`` a backend.

    Raises:
        ValidationError: a setting is wrong, unknown, or one of an engine beside ``url``.
    """
    if isinstance(given, GeneratorSettings | UrlGeneratorSettings):
        return given
    if not _names_url(given):
        return GeneratorSettings.model_validate(given)
    engine = [name for name in GeneratorSettings.model_fields if name not in UrlGeneratorSettings.model_fields]
    faults = [
        InitErrorDetails(
            type=PydanticCustomError("of_an_engine", "is a setting of an engine: not together with generator.url"),
            loc=(name,),
            input=given[name],
        )
        for name in engine
        if name in given
    ]
    if faults:
        raise ValidationError.from_exception_data("generator", faults)
    return UrlGeneratorSettings.model_validate(given)


def _names_url(generator: Any) -> bool:
    named = isinstance(generator, Mapping) and any(generator.get(name) for name in URLS)
    return named or isinstance(generator, UrlGeneratorSettings)


Generator = Annotated[
    SerializeAsAny[GeneratorSettings | UrlGeneratorSettings], WrapValidator(lambda given, _: parse_generator(given))
]


class AppConfig(Settings):
    """All settings of an application, under ``args`` of ``serve_config.yaml``."""

    generator: Generator = GeneratorSettings()
    prm: AnyPrmSettings = StepHeadSettings()
    controller: ControllerSettings = ControllerSettings()
    cache: CacheSettings = CacheSettings()
    http: HttpSettings = HttpSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    log_level: str = Field(
        "WARNING",
        pattern="^(DEBUG|INFO|WARNING|ERROR)$",
        description="Minimum level of Banyan's log messages; the lines of telemetry.search_log are always written.",
    )

    @model_validator(mode="before")
    @classmethod
    def _votes_without_rewards(cls, given: Any) -> Any:
        """In front of a backend there is no reward model unless one is named. Without one searches are votes."""
        if not isinstance(given, Mapping):
            return given
        prm, generator, controller = given.get("prm"), given.get("generator"), given.get("controller") or {}
        if prm is None and _names_url(generator):
            given = {**given, "prm": (prm := NoRewardSettings())}
        has_none = isinstance(prm, NoRewardSettings) or (isinstance(prm, Mapping) and prm.get("family") == "none")
        if not has_none or not isinstance(controller, Mapping):
            return given
        efforts = controller.get("efforts") or {}
        efforts = {**VOTES, **efforts} if isinstance(efforts, Mapping) else efforts
        return {**given, "controller": {"default_search": VOTE, **controller, "efforts": efforts}}

    @property
    def backend(self) -> UrlGeneratorSettings | None:
        """The generator's settings if another server serves it."""
        return self.generator if isinstance(self.generator, UrlGeneratorSettings) else None

    @property
    def generator_engine(self) -> GeneratorSettings:
        """The generator's settings where it is an engine, not a ``backend``."""
        assert isinstance(self.generator, GeneratorSettings)
        return self.generator

    @property
    def has_rewards(self) -> bool:
        """Whether there is a reward model, or what stands in for one."""
        return not isinstance(self.prm, NoRewardSettings)

    @property
    def prices(self) -> Prices:
        """What the tokens of models cost that other servers serve."""
        models = (self.generator, self.prm)
        return Prices(*(each.token_price if isinstance(each, BackendSettings) else None for each in models))

    @property
    def execution(self) -> ExecutionSettings | None:
        """Settings of the verifier that runs programs; None if there is none."""
        return None if isinstance(self.prm, UrlPrmSettings) else execution_of(self.prm)

    @property
    def search_context(self) -> int:
        """Longest prompt and path together that fit both models' contexts, in the generator's tokens.

        The reward model's format adds tokens, so with contexts of equal length this is less than either. Where the
        reward model's tokens hold less text, ``deployments.startup.checks`` requires a longer context.
        """
        depth = self.controller.limits.depth
        read = [prm.max_model_len - prm.format_tokens(depth) for prm in self.prm.engines.values()]
        return min([self.generator.max_model_len, *read])

    @property
    def engines(self) -> dict[str, EngineSettings]:
        """Settings of all engines, by their path."""
        written = {} if isinstance(self.generator, UrlGeneratorSettings) else {"generator": self.generator}
        return written | {f"prm{path}": prm for path, prm in self.prm.engines.items()}

    def missing_models(self) -> list[str]:
        """A line for each model directory or file that is not on this machine, with the path of its setting."""
        return [
            f"{name}.{setting}: there is no model in the directory {path}: give a hub id, or a directory with "
            f"{CONFIG_FILES[setting]}"
            for name, engine in self.engines.items()
            for setting, path in engine.missing_models.items()
        ] + [
            f"{name}.{setting}: {fault}"
            for name, engine in self.engines.items()
            for setting, fault in engine.missing_files.items()
        ]


class KeyLimits(Settings):
    """Limits of one key at each controller replica. Unset: the controller's own limits hold."""

    places: int | None = Field(None, ge=1, description="Slots: concurrent requests of the key.")
    tokens_per_minute: int | None = Field(
        None, ge=1, description="Tokens per minute: prompts and all generated tokens."
    )
    tokens: int | None = Field(None, ge=1, description="Generated tokens of one request.")
    nodes: int | None = Field(
        None, ge=1, description="Nodes of one request's tree, and so its branches, scored steps and calls."
    )


class KeyRecord(Settings):
    """One API key, as controllers know it. Made by `deployments.admission.keys.key_record`, or by `banyan keys`."""

    digest: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 digest of the key.")
    cache_salt: str = Field(
        pattern="^[0-9a-f]{32}$", description="Salt that isolates the key's cached prefixes from those of other keys."
    )
    limits: KeyLimits = KeyLimits()
    operator: bool = Field(False, description="Whether the key may read /v1/status.")


class ControllerUserConfig(Settings):
    """Settings of SearchController's ``user_config``, which can change while the application serves."""

    keys: tuple[KeyRecord, ...] = Field((), description="All accepted API keys; empty: requests need none.")
    controller: dict[LiveName, Any] = Field(
        default_factory=dict,
        description="Settings that override args.controller, by name.",
    )


def merged(old: Mapping[str, Any], new: Mapping[Any, Any]) -> dict[str, Any]:
    """Returns ``old`` with ``new`` merged over it, nested settings by name.

    A search is replaced as a whole: no setting of the old search's strategy stays.
    """
    result = dict(old)
    for name, value in new.items():
        if not isinstance(value, Mapping) or not isinstance(old.get(name), Mapping) or name == "default_search":
            result[name] = value
        elif name == "efforts":
            result[name] = {**old[name], **value}
        else:
            result[name] = merged(old[name], value)
    return result
