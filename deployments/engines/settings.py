"""The settings of one engine, checked without vLLM. The application's settings tree is ``deployments.config``."""

import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from deployments.engines.reasoning import parser_name
from deployments.engines.vllm_build import runs_on_cpu
from deployments.engines.yaml_values import as_meant, with_advice
from search.tools.nearest import no_such

Runner: TypeAlias = Literal["generate", "pooling"]
"""vLLM's way to run a model: ``generate`` writes tokens, ``pooling`` returns numbers for the tokens of a prompt."""

EMBEDDED_MODELS = Path(__file__).parents[1] / "embedded"
EMBEDDED_GENERATOR = "embedded:generator"
EMBEDDED_PRM = "embedded:prm"

CPU_BLOCK_SIZE = 32
"""vLLM's attention on a CPU needs multiples of 32. The smallest shares most: only whole blocks are shared."""
GPU_BLOCK_SIZE = 16
"""vLLM's default on a GPU, for all but a few kinds of attention."""

GPU_SHARE = 0.92
"""Share of a whole GPU's memory that an engine uses: vLLM's default."""

WriteAheadSetting: TypeAlias = Annotated[float, Field(gt=0, le=16)] | Literal["auto", "off"]
"""Whether a generator replica writes ahead, and how far; see `deployments.engines.write_ahead`."""

SystemPrompt: TypeAlias = Annotated[
    str | None, Field(description="System message before the question, if the model was trained with one.")
]


def _is_no_escape(text: str) -> str:
    if re.search(r"\\n(?![a-z])", text):  # not of `\newline`
        raise ValueError(r'a newline is "\n" in double quotes: without them YAML reads a backslash and the letter n')
    return text


Delimiter: TypeAlias = Annotated[str, AfterValidator(_is_no_escape)]
"""Text between steps, where newlines are meant to be newlines."""

Location: TypeAlias = tuple[int | str, ...]


def explained(error: ValidationError, known: Callable[[Location], Iterable[str]]) -> ValidationError:
    """Returns ``error`` with what to write instead: the nearest name, or all names, of each unknown setting, and the
    quotes of a value that YAML reads as another type. ``known`` returns the names of the settings at a path; none where
    it does not know them."""
    faults: list[InitErrorDetails] = []
    for each in error.errors(include_url=False):
        path, message = each["loc"], each["msg"]
        if each["type"] == "extra_forbidden" and (names := known(path[:-1])):
            message = no_such("setting", path[-1], names)
        message = with_advice(message, each["type"], each["input"])
        fault = PydanticCustomError(each["type"], "{message}", {"message": message})
        given = "(not shown)" if path and _may_be_a_key(str(path[-1])) else each["input"]
        faults.append(InitErrorDetails(type=fault, loc=path, input=given))
    return ValidationError.from_exception_data(error.title, faults)


def _may_be_a_key(name: str) -> bool:
    """Whether somebody may have written a key as the value of a setting, known or not: errors do not repeat it."""
    return "key" in name or name in ("url", "password", "secret")


class TokenizerSource(NamedTuple):
    """Where an engine's tokenizer is, as vLLM looks for it."""

    path: str
    """Directory or hub id."""
    revision: str | None
    trust_remote_code: bool


CONFIG_FILES = {"model": "config.json", "reference": "config.json", "lora": "adapter_config.json"}
"""The file that every model has, by the setting that names the model."""

PARALLEL = ("tensor", "pipeline", "data")

READ_ENGINE_ARGS: dict[str, type] = {
    "download_dir": str,
    "revision": str,
    "tokenizer": str,
    "tokenizer_revision": str,
    "trust_remote_code": bool,
}
"""vLLM's arguments that Banyan reads too: controllers and checks load tokenizer and configuration as engines do."""
NOT_IN_ENGINE_ARGS = {
    "convert": "the reward family decides it (prm.family)",
    "hf_token": "set HF_TOKEN in the environment of every node: controllers load the tokenizer with it too",
    "hf_config_path": "only vLLM would read it: put the config.json into the model's directory, or change entries "
    "with hf_overrides",
    "pooler_config": "the reward family decides it (prm.family)",
    "runner": "Banyan decides it: generate for the generator, for a reward model what its family reads (prm.family)",
    "served_model_name": "set generator.served_name instead",
    "skip_tokenizer_init": "Banyan makes the prompts with the tokenizer",
    "tokenizer_mode": "Banyan reads tokenizers as transformers does; name another one with engine_args.tokenizer",
    "worker_extension_cls": "Banyan has one of its own",
}
"""vLLM's arguments that would change the engine alone, and what to use in their place."""


def _looks_local(path: str) -> bool:
    return path.startswith((".", "/", "~")) or path.count("/") > 1


def _is_missing(path: str, file: str) -> bool:
    return _looks_local(path) and not (Path(path) / file).is_file()


class Settings(BaseModel):
    """Base of every node of the tree: frozen, no unknown keys, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="wrap")
    @classmethod
    def _as_meant(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(as_meant(cls, given))
        except ValidationError as error:
            raise explained(error, cls._names_at) from None

    @classmethod
    def _names_at(cls, path: Location) -> Iterable[str]:
        """Names of the settings below ``path``, as far as its annotations are plain models: others name their own."""
        model: Any = cls
        for name in path:
            field = model.model_fields.get(name)
            model = field.annotation if field is not None else None
            if not (isinstance(model, type) and issubclass(model, BaseModel)):
                return ()
        names: Iterable[str] = model.model_fields
        return names


class ReplicaSettings(Settings):
    """The number of a deployment's replicas, and the resources that each of them reserves."""

    min_replicas: int = Field(
        1, ge=1, le=1024, description="Lower bound of autoscaling, and the number of replicas at the start."
    )
    max_replicas: int = Field(
        1, ge=1, le=1024, description="Upper bound of autoscaling; autoscaling is on where it exceeds min_replicas."
    )
    upscale_delay_s: float = Field(
        10.0, ge=0, le=86_400, description="Scale up after this many seconds of too few replicas."
    )
    downscale_delay_s: float = Field(
        300.0,
        ge=0,
        le=86_400,
        description="Scale down only after this many seconds of low load, to the largest number of replicas that was "
        "needed in that time.",
    )
    drain_s: float | None = Field(
        None,
        gt=0,
        le=86_400,
        description="Drain timeout of a stopping replica, seconds. Unset: 10 for an engine, whose calls other "
        "replicas take over; controller.limits.seconds for a controller.",
    )
    max_ongoing_requests: int = Field(512, ge=1, le=100_000, description="Maximum concurrent calls of a replica.")
    router: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="module:class of a Ray Serve request router. Unset: deployments.scaling.router:HomeRouter for "
        "engines, which keeps a search on one replica; for controllers Serve's choice of the less busy "
        "of two.",
    )
    num_cpus: float = Field(
        0.2,
        ge=0,
        description="CPU cores that Ray reserves for a replica. Placement only: Ray does not limit what it uses.",
    )
    num_gpus: float | None = Field(
        None,
        ge=0,
        description="GPUs that Ray reserves for a replica. Below 1 it is also the share of one GPU's memory that vLLM "
        "may use. Unset: engines are planned onto the cluster's GPUs at the start "
        "([gpu.md](gpu.md#where-engines-go)); other replicas reserve none.",
    )
    resources: dict[str, float] = Field(
        default_factory=dict,
        description="Custom Ray resources that a replica reserves, by name; nodes offer them with `ray start "
        "--resources`.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> "ReplicaSettings":
        if self.max_replicas < self.min_replicas:
            raise ValueError(f"max_replicas ({self.max_replicas}) must be at least min_replicas ({self.min_replicas})")
        return self


MODEL = "Model directory, hub id, or an embedded model: `embedded:generator` or `embedded:prm`."
"""Description of the setting ``model``."""


class EngineSettings(Settings):
    """One vLLM engine. All other arguments of vLLM go into ``engine_args`` under vLLM's names."""

    model: str = Field(description=MODEL)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Data type of weights, activations and KV. `auto`: float32 on a CPU; on a GPU the checkpoint's "
        "type, or bfloat16 where that is float32.",
    )
    exact: bool = Field(
        False,
        description="Make results independent of the batch, so that one seed gives one tree in 16 bits as well; set it "
        "for generator and prm. On a GPU this is vLLM's batch-invariant mode, which is slower; on a CPU it requires "
        "float32 ([gpu.md](gpu.md#equal-trees)).",
    )
    max_model_len: int = Field(1024, ge=64, le=1_048_576, description="Context length, tokens.")
    max_num_seqs: int = Field(64, ge=1, le=4096, description="Maximum batch size: sequences in one engine step.")
    block_size: int | None = Field(
        None, ge=16, description="Tokens per KV block. Unset: 32 on a CPU, vLLM's default on a GPU."
    )
    kv_cache_memory_bytes: int | None = Field(
        None,
        ge=1 << 20,
        description="Memory for KV blocks, bytes. Unset: 256 MiB on a CPU; on a GPU what vLLM finds free.",
    )
    cpu_threads: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="OpenMP threads of a CPU engine. Unset: all cores, or one for a model too small to gain from more.",
    )
    stall_s: float = Field(
        10.0,
        ge=1,
        le=3600,
        description="Kill an engine that has work but uses neither CPU nor GPU and returns nothing for this many "
        "seconds.",
    )
    max_step_s: float = Field(
        120.0,
        ge=1,
        le=86_400,
        description="Kill an engine without progress for this many seconds, even if it is busy.",
    )
    chat_template: str | None = Field(
        None,
        min_length=1,
        description="File with a Jinja chat template to use instead of the model's own. Every node needs it.",
    )
    engine_args: dict[str, Any] = Field(
        default_factory=dict, description="Further vLLM engine arguments, under vLLM's names."
    )
    replicas: ReplicaSettings = ReplicaSettings()

    @property
    def seeded(self) -> bool:
        """Whether requests to the engine have sampling seeds."""
        return True

    @property
    def model_path(self) -> str:
        """The directory or hub id with ``embedded:`` resolved."""
        if self.model.startswith("embedded:"):
            return str(EMBEDDED_MODELS / self.model.removeprefix("embedded:"))
        return self.model

    @property
    def model_paths(self) -> dict[str, str]:
        """Directories or hub ids of all models that the engine loads, by setting."""
        return {"model": self.model_path}

    @property
    def chat_template_file(self) -> Path | None:
        """Path of ``chat_template``."""
        return None if self.chat_template is None else Path(self.chat_template).expanduser()

    @property
    def revisions(self) -> dict[str, str | None]:
        """Branch, tag or commit of the models on the hub, by setting."""
        return {"model": self.engine_args.get("revision")}

    @property
    def parallel_sizes(self) -> tuple[int, int, int]:
        """Tensor, pipeline and data parallel sizes. One that is no number is left to the engine, which refuses it."""
        sizes = [as_meant(int, self.engine_args.get(f"{name}_parallel_size")) for name in PARALLEL]
        tensor, pipeline, data = (size if isinstance(size, int) and size > 0 else 1 for size in sizes)
        return tensor, pipeline, data

    @property
    def gpus(self) -> int:
        """GPUs that the engine has if it shares none."""
        return math.prod(self.parallel_sizes)

    @property
    def tokenizer(self) -> TokenizerSource:
        """Where the tokenizer is: with the model, unless ``engine_args`` say otherwise."""
        arguments = self.engine_args
        return TokenizerSource(
            arguments.get("tokenizer") or self.model_path,
            arguments.get("tokenizer_revision") or arguments.get("revision"),
            bool(arguments.get("trust_remote_code")),
        )

    @property
    def missing_models(self) -> dict[str, str]:
        """Those of ``model_paths`` that are written as directories, and hold no model on this machine."""
        return {name: path for name, path in self.model_paths.items() if _is_missing(path, CONFIG_FILES[name])}

    @property
    def missing_files(self) -> dict[str, str]:
        """What is wrong with other files that the settings name, by setting: they are not on this machine."""
        found: dict[str, str] = {}
        tokenizer = self.engine_args.get("tokenizer")
        if tokenizer and _looks_local(tokenizer) and not Path(tokenizer).is_dir():
            found["engine_args.tokenizer"] = (
                f"there is no directory {tokenizer}: give a hub id, or a tokenizer's directory"
            )
        if self.chat_template_file and not self.chat_template_file.is_file():
            found["chat_template"] = f"there is no file {self.chat_template}"
        return found

    @property
    def kv_settings(self) -> str:
        """The settings on which keys and values depend beside the weights.

        Some models choose their rotary embeddings by the longest context, and ``dtype: auto`` the type by the device.
        """
        names = {"model", "dtype", "exact", "max_model_len", "block_size", "engine_args"}
        return f"{'cpu' if runs_on_cpu() else 'gpu'} {self.model_dump_json(include=names)}"

    @property
    def expected_block_size(self) -> int:
        """Tokens per KV block, before the engine runs: a GPU's if GPUs are reserved or the installed vLLM is built for
        them, otherwise a CPU's."""
        on_cpu = not self.replicas.num_gpus and runs_on_cpu()
        return self.block_size or (CPU_BLOCK_SIZE if on_cpu else GPU_BLOCK_SIZE)

    @field_validator("engine_args")
    @classmethod
    def _no_own_settings(cls, given: dict[str, Any]) -> dict[str, Any]:
        if own := sorted(given.keys() & cls.model_fields.keys()):
            raise ValueError(f"{', '.join(own)}: set it beside engine_args, not in it: the rest of Banyan reads it too")
        if refused := [f"{name}: {NOT_IN_ENGINE_ARGS[name]}" for name in given if name in NOT_IN_ENGINE_ARGS]:
            raise ValueError("; ".join(refused))
        for name, kind in READ_ENGINE_ARGS.items():
            if not isinstance(given.get(name), kind | None):
                raise ValueError(f"{name}: must be a {kind.__name__}, not {given[name]!r}: Banyan reads it too")
        return given

    @field_validator("model")
    @classmethod
    def _known_embedded(cls, model: str) -> str:
        if model.startswith("embedded:") and model not in (EMBEDDED_GENERATOR, EMBEDDED_PRM):
            raise ValueError(f"unknown embedded model {model!r}; available: {EMBEDDED_GENERATOR!r}, {EMBEDDED_PRM!r}")
        return model


class GeneratorSettings(EngineSettings):
    """The generator: a causal language model behind a chat template."""

    model: str = Field(EMBEDDED_GENERATOR, description=MODEL)
    served_name: str = Field("banyan-arithmetic", min_length=1, description="Model name at the HTTP endpoint.")
    step_delimiter: Delimiter = Field(
        "\n\n", min_length=1, description="Text that ends a reasoning step; it stays part of the step."
    )
    reasoning: Annotated[str, AfterValidator(parser_name)] | None = Field(
        None,
        description="How the model marks its thinking: the name of vLLM's reasoning parser, such as `qwen3` or "
        "`deepseek_r1`; `think_text` for `<think>` and `</think>` as plain text; `none` for a model that does not "
        "think. Unset: found from the chat template, where that is certain.",
    )
    tool_parser: str | None = Field(
        None,
        min_length=1,
        description="vLLM's parser for the model's tool calls (its `--tool-call-parser`). Unset: found from the chat "
        "template where that is certain ([clients.md](clients.md#agents-and-tools)).",
    )
    clamp: Literal["wait", "shrink", "off"] = Field(
        "wait",
        description="When KV memory is full: `wait` queues branches, `shrink` rejects some and the search "
        "continues with fewer, `off` lets vLLM preempt.",
    )
    write_ahead: WriteAheadSetting = Field(
        "auto",
        description="Speculative generation: number of children of a new step that an idle replica starts before the "
        "search requests any, as a multiple of the number that it is expected to request. `auto`: chosen by device and "
        "scoring latency; `off`: none, and no solutions of later rounds of a vote either.",
    )
