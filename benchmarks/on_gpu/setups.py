"""How the engines of a part run: mode, type, and what is done without because it failed before."""

import json
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from benchmarks.model_pairs import ModelPair
from deployments.config import AppConfig

KV_BYTES = 4 << 30
"""KV memory of each engine on a GPU."""
MAX_NUM_SEQS = 512
"""Most sequences in an engine step, on both sides: vLLM captures no larger CUDA graph."""
BATCH_TOKENS = 8192
BLOCK_SIZE = 16
BANYANS_SHARE = 0.3
"""Share of the GPU of each of Banyan's engines."""
LOCK_STEP_SHARE = 0.1
"""Of each engine in lock step: there are up to eight."""


class Mode(StrEnum):
    """What of vLLM's compilation is used."""

    EAGER = "eager"
    GRAPHS = "graphs"
    """CUDA graphs of whole decode steps, and no compiler."""
    COMPILED = "compiled"
    """vLLM's default: compiled by torch, with CUDA graphs."""


class Setup(NamedTuple):
    """How engines run, on both sides alike."""

    mode: Mode
    dtype: str
    attention: str = ""
    """vLLM's attention backend; empty: its own choice."""
    older_runner: bool = False
    """Whether vLLM's older model runner runs where the newer one would."""
    batch_invariant: bool = False
    """Whether a sequence's tokens do not depend on its batch: what ``exact: true`` sets."""
    cpu: bool = False
    """Whether there is no GPU; types, graphs and attention are then the CPU's."""

    @classmethod
    def parse(cls, line: str) -> "Setup":
        mode, *rest = json.loads(line)
        return cls(Mode(mode), *rest)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the processes."""
        return {
            **({"VLLM_USE_V2_MODEL_RUNNER": "0"} if self.older_runner else {}),
            **({"VLLM_BATCH_INVARIANT": "1"} if self.batch_invariant else {}),
        }

    def engine_args(self, role: str) -> dict[str, Any]:
        """vLLM's arguments for the engine of a role, ``generator`` or ``prm``."""
        if self.cpu:
            return {"enforce_eager": self.mode is not Mode.COMPILED}
        args: dict[str, Any] = {"enforce_eager": self.mode is Mode.EAGER}
        if self.mode is Mode.GRAPHS:
            # A reward model has no decode steps.
            args["compilation_config"] = {"mode": 0} | (
                {"cudagraph_mode": "FULL_DECODE_ONLY"} if role == "generator" else {}
            )
        return args | ({"attention_config": {"backend": self.attention}} if self.attention else {})

    def app_config(self, models: ModelPair, cache: bool = False) -> AppConfig:
        """Banyan's settings. ``cache``: with LMCache."""

        def engine(role: str) -> dict[str, Any]:
            own = {"model": models._asdict()[role], "engine_args": self.engine_args(role)}
            if self.cpu:
                return own
            own["engine_args"]["max_num_batched_tokens"] = BATCH_TOKENS
            return own | {
                "dtype": self.dtype,
                "exact": self.batch_invariant,
                "max_num_seqs": MAX_NUM_SEQS,
                "kv_cache_memory_bytes": KV_BYTES,
                "replicas": {"num_gpus": BANYANS_SHARE},
            }

        return AppConfig.model_validate(
            {
                "generator": engine("generator"),
                "prm": engine("prm"),
                "cache": {"enabled": cache},
                "http": {"canary_every_s": 0},
            }
        )

    def lock_step_arguments(self) -> dict[str, dict[str, Any]]:
        """Engine arguments of lock step, by role. Where nothing is said here they are vLLM's defaults for offline
        engines, such as 16,384 tokens in a batch on an H100."""

        def arguments(role: str) -> dict[str, Any]:
            if self.cpu:
                return self.engine_args(role)
            return self.engine_args(role) | {
                "dtype": self.dtype,
                "max_num_seqs": MAX_NUM_SEQS,
                "kv_cache_memory_bytes": KV_BYTES,
                "gpu_memory_utilization": LOCK_STEP_SHARE,
                "block_size": BLOCK_SIZE,
                "enable_chunked_prefill": None,
                "max_num_batched_tokens": None,
            }

        return {role: arguments(role) for role in ("generator", "prm")}


class Fallback(NamedTuple):
    """Something that a setup can do without."""

    words: tuple[str, ...]
    """What a traceback names if this has failed."""
    changes: Mapping[str, Any]
    """The setup's fields without it."""
    has_it: Callable[[Setup], bool]

    def of(self, setup: Setup) -> Setup:
        """The setup without it."""
        return setup._replace(**self.changes) if self.has_it(setup) else setup


FALLBACKS = (
    Fallback(
        ("flash_attn", "FlashAttention", "_vllm_fa3_C"),
        {"attention": "TRITON_ATTN"},
        lambda setup: not setup.attention and setup.dtype != "float32",  # which has no FlashAttention
    ),
    Fallback(("graph",), {"mode": Mode.EAGER}, lambda setup: setup.mode is Mode.GRAPHS),
    Fallback(("v1/worker/gpu/",), {"older_runner": True}, lambda setup: not setup.older_runner),
)


def next_fallback(setup: Setup, log: str) -> Fallback | None:
    """What to do without after a setup has failed: what the first traceback of its log names, otherwise the first that
    is left. None if nothing is left, or if the setup is compiled: without the compiler it is that of an earlier part,
    which has found everything else."""
    if setup.mode is Mode.COMPILED:
        return None
    left = [fallback for fallback in FALLBACKS if fallback.has_it(setup)]
    traceback = log[max(log.find("Traceback"), 0) :]
    named = (fallback for fallback in left if any(word in traceback for word in fallback.words))
    return next(named, None) or next(iter(left), None)


def without(setup: Setup, given_up: Iterable[Fallback]) -> Setup:
    """The setup without what has failed in earlier parts."""
    for fallback in given_up:
        setup = fallback.of(setup)
    return setup
