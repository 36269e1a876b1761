"""Base classes of reward families: how a path becomes engine requests, and how outputs become rewards.

A family is one module, with its settings and its code. The module is imported wherever settings are checked: vLLM,
torch and transformers are imported inside functions only.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeAlias

from pydantic import Field, model_validator

from deployments.engines.rewards.card_file import CardSetting
from deployments.engines.settings import EngineSettings, Runner

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase
    from vllm import PoolingParams, SamplingParams
    from vllm.config import PoolerConfig

    from deployments.engines.engine_calls import Output

LOADING = {"load_format", "model_loader_extra_config", "worker_extension_cls"}
"""vLLM's arguments by which weights are changed while they are loaded."""
WRAPPER = "pretrained_model."
"""Where TRL's models with a value head have the language model, in checkpoints that its trainer did not write."""
MAX_CHARACTERS_PER_TOKEN = 32
"""Above the average of any text."""
TEMPLATE_TOKENS = 64
"""Upper bound on what a chat template adds: default system prompt, role marks and the last step's tag."""


Shapes: TypeAlias = dict[str, tuple[int | None, ...]]
"""Shapes of weights by name. None is any size."""


class Query(NamedTuple):
    """One request to the engine, which scores one or more steps of a path."""

    token_ids: list[int]
    params: "PoolingParams | SamplingParams"
    tags: tuple[int, ...]
    """Positions in ``token_ids`` at which its steps are scored, one per step, in order."""
    known: int = 0
    """Number of first tokens that the queries for the path's earlier steps began with, as far as the family knows."""
    first: int = sys.maxsize
    """First position whose row the rewards are made of, where that is before the last: if the output begins behind it,
    the query is sent again without the prefix cache."""

    def uncached(self) -> "Query":
        """The same query, which does not read the prefix cache."""
        params = self.params.clone()
        params.skip_reading_prefix_cache = True
        return self._replace(params=params)


class LinearHead(NamedTuple):
    """A checkpoint's linear layer, which turns a token's hidden state into numbers."""

    prefix: str
    """What its weights' names in the checkpoint begin with."""
    classes: int = 1
    """Numbers per token."""
    file: str | None = None
    """File of its own beside the checkpoint's, where it has one. Its weights' names there are without the prefix."""
    mean: bool = False
    """Whether its numbers stand for their mean: one number."""
    bias: bool | str = True
    """Whether it has a bias; or the entry of the model's configuration that says so."""

    def shapes(self, config: "PreTrainedConfig") -> Shapes:
        """The shapes of its weights, by their names in the checkpoint."""
        has_bias = getattr(config, self.bias, True) if isinstance(self.bias, str) else self.bias
        weights = linear(self.prefix, config.hidden_size, None if self.mean else self.classes)
        return weights if has_bias else {name: shape for name, shape in weights.items() if not name.endswith("bias")}


def linear(prefix: str, width: int, rows: int | None) -> Shapes:
    """The weights of a linear layer that makes ``rows`` numbers of ``width``."""
    return {f"{prefix}weight": (rows, width), f"{prefix}bias": (rows,)}


def two_layers(prefix: str, width: int, classes: int) -> Shapes:
    """The weights of a linear layer, an activation and another linear layer."""
    return linear(f"{prefix}0.", width, width) | linear(f"{prefix}2.", width, classes)


class RewardFamily(ABC):
    """One way of scoring steps. The texts that ``queries`` gets are untrusted."""

    runner: ClassVar[Runner]
    """The vLLM runner that the family's engine needs."""
    vllm_model: ClassVar[str | None] = None
    """``module:Class`` of the model to load, whatever architecture the checkpoint names; None if vLLM has the model."""
    reserved_tokens: int = 0
    """Tokens of the context that a query leaves free."""
    head: ClassVar[LinearHead | None] = None
    """The head to add to a language model of any architecture; None if the model has one that vLLM knows."""
    classifier: ClassVar[str | None] = None
    """End of the names of those of transformers' architectures that have the family's head."""
    classes: ClassVar[int] = 1
    """Numbers per token of a head."""
    reads_chat: ClassVar[bool] = False
    """Whether paths are encoded in the model's chat template."""
    step_by_step: ClassVar[bool] = False
    """Whether each step takes a query of its own, with the path up to it; else one query scores all of a path's."""

    @abstractmethod
    def __init__(self, settings: Any, tokenizer: "PreTrainedTokenizerBase") -> None:
        """``settings``: the family's own. Raises EngineStartError when the model does not suit the family."""

    @classmethod
    def pooler(cls) -> "PoolerConfig | None":
        """The configuration of the engine's pooler; None where the runner has no pooler."""
        return None

    @classmethod
    def head_shapes(cls, config: "PreTrainedConfig") -> Shapes | None:
        """The weights that the checkpoint has beside a language model's without output layer; None for a family that
        reads the output layer."""
        return None

    @abstractmethod
    def prompt_ids(self, question: str, steps: Sequence[str]) -> list[int]:
        """The token ids of a path.

        Raises:
            ValueError: a text is not valid Unicode, or the chat template refuses the path.
        """

    @abstractmethod
    def query(self, question: str, steps: Sequence[str], unscored: int) -> Query:
        """The request that scores the last ``unscored`` steps of a path: one step if the family reads ``step_by_step``.

        Raises:
            ValueError: a text is not valid Unicode, or the chat template refuses the path.
        """

    def queries(self, question: str, steps: Sequence[str], unscored: int) -> list[Query]:
        """The requests that score the last ``unscored`` steps, oldest first. Raises ValueError like ``query``."""
        if not self.step_by_step:
            return [self.query(question, steps, unscored)]
        ends = range(len(steps) - unscored + 1, len(steps) + 1)
        return [self.query(question, steps[:end], 1) for end in ends]

    def missing_rows(self, output: "Output", query: Query) -> int:
        """Number of the query's first tokens of which the output has no rows."""
        return 0

    def unread(self, question: str, steps: Sequence[str]) -> int:
        """Number of characters that are encoded for a query of this path."""
        return len(question) + sum(map(len, steps))

    @abstractmethod
    def rewards(self, output: "Output", query: Query) -> list[float]:
        """The rewards of the query's steps, in order; not validated.

        Raises:
            ValueError: the output does not have the expected shape.
        """


class RewardModelSettings(EngineSettings):
    """A process reward model. Settings of a single family are listed with that family ([rewards.md](rewards.md))."""

    family: str
    """How the model scores a step; each family says its own name."""
    reward_cache_size: int = Field(100_000, ge=0, description="Rewards that a replica caches, one per scored path.")
    scoring_delay_s: float = Field(
        0.5,
        gt=0,
        le=3600,
        description="Target for the longest wait of a step before it is scored, seconds; the pool scales up at 0.8 "
        "of it.",
    )
    lora: str | None = Field(
        None,
        min_length=1,
        description="Directory or hub id of a LoRA adapter, merged into the model at startup.",
    )
    card: CardSetting = None
    reader: ClassVar[type[RewardFamily]]
    """The family's class."""

    @model_validator(mode="after")
    def _is_loaded(self) -> Self:
        if (self.lora or self.reader.head) and (taken := sorted(LOADING & self.engine_args.keys())):
            names = ", ".join(taken)
            raise ValueError(f"Banyan loads the weights of this model itself: engine_args may not set {names}")
        if "hf_overrides" in self.engine_args and (self.reader.head or self.reader.vllm_model):
            raise ValueError(
                "the family changes the model's configuration itself: engine_args may not set hf_overrides"
            )
        if self.chat_template and not self.reads_chat:
            raise ValueError("chat_template has no effect with this family: it does not encode paths as a chat")
        return self

    @property
    def engines(self) -> "dict[str, RewardModelSettings]":
        """Settings of the engines of a replica, by their path below these."""
        return {"": self}

    @property
    def model_paths(self) -> dict[str, str]:
        return super().model_paths | ({} if self.lora is None else {"lora": self.lora})

    @property
    def seeded(self) -> bool:
        return False

    @property
    def reads_chat(self) -> bool:
        """Whether paths are encoded in the model's chat template."""
        return self.reader.reads_chat

    @property
    def max_characters(self) -> int:
        """Characters above which a question and its steps are too long for the context, whatever they are."""
        return MAX_CHARACTERS_PER_TOKEN * self.max_model_len

    @property
    def tokens_per_step(self) -> int:
        """Maximum number of tokens that the format adds to a step, less the delimiter that it removes: 0 where a tag
        takes the delimiter's place."""
        return 0

    @property
    def critique_tokens(self) -> int:
        """Maximum number of tokens that the model writes about a step before it is scored."""
        return 0

    @property
    def hf_overrides(self) -> dict[str, Any]:
        """Entries of the model's configuration that the family sets, beside the architecture."""
        return {}

    @property
    def added_text(self) -> str:
        """Text of the settings that the format adds once to a path."""
        return getattr(self, "system_prompt", None) or ""

    def format_tokens(self, steps: int) -> int:
        """Maximum number of tokens that format and critique add to a question and ``steps`` steps."""
        # A token has at least one byte, so a text has at most as many tokens as bytes.
        return TEMPLATE_TOKENS + len(self.added_text.encode()) + self.critique_tokens + self.tokens_per_step * steps
