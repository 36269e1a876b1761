"""Engines whose results do not depend on the batch (``exact``).

On a GPU this is vLLM's batch-invariant mode, in which kernels sum in one order for all batch sizes. What that mode does
not cover in vLLM 0.32 is refused here; the engine would start and not be exact:

- FlashAttention 3 chooses its kernel by the longest query in the batch (vLLM issue 51902). So does Triton's attention
  its tiles, for heads of size 256 on compute capability 10.
- Marlin's kernels for quantized weights are not batch-invariant. Some kinds of quantization use other kernels in this
  mode, but vLLM decides that for each layer.
- Latent attention has no prefix cache in this mode. The states of a hybrid model depend on where a prompt was cut.

On a CPU nothing is changed, and float32 is required: about one token in four million is sampled differently there.
"""

from collections.abc import Mapping

from vllm import AsyncEngineArgs
from vllm.config import ModelConfig
from vllm.platforms import current_platform

from deployments.engines.errors import EngineStartError

BACKENDS = ("TRITON_ATTN", "FLEX_ATTENTION")
"""Attention backends with the same tiles for all batches; the first one is the default."""
CAPABILITY = 80
"""Minimum compute capability of vLLM's batch-invariant mode, times ten."""
KV_DTYPES = ("auto", "float32", "bfloat16", "float16", "half")
TUNED_HEAD = 256


def make_exact(args: AsyncEngineArgs, name: str) -> None:
    """Sets the arguments that an exact engine needs; `engine_environment` sets its variables.

    Args:
        name: the model's name in the settings.

    Raises:
        EngineStartError: an engine with these arguments would not be exact on this machine.
    """
    if not current_platform.is_cpu() and args.attention_backend is None and args.attention_config.backend is None:
        args.attention_backend = BACKENDS[0]
    reasons = _on_cpu(args) if current_platform.is_cpu() else _on_gpu(args)
    if reason := next((reason for reason, holds in reasons.items() if holds), None):
        raise EngineStartError(f"exact: true is not possible for {name!r}: {reason}")


def _on_cpu(args: AsyncEngineArgs) -> Mapping[str, bool]:
    """The reasons for which such an engine is not exact, and whether each of them holds."""
    return {
        f"on a CPU dtype must be float32, not {args.dtype}": args.dtype != "float32",
        "its weights are quantized": _model(args).quantization is not None,
    }


def _on_gpu(args: AsyncEngineArgs) -> Mapping[str, bool]:
    if not current_platform.is_cuda():
        return {"it needs an NVIDIA GPU": True}
    if not current_platform.has_device_capability(CAPABILITY):
        return {f"the GPU's compute capability is below {CAPABILITY / 10}": True}
    attention, model = args.attention_config, _model(args)
    backends = {args.attention_backend or attention.backend, *(attention.backend_per_kind or {}).values()}
    names = sorted(str(getattr(backend, "name", backend)) for backend in backends)
    blackwell = current_platform.is_device_capability_family(100)
    return {
        f"its attention must be {' or '.join(BACKENDS)}, not {', '.join(names)}": not {*names} <= {*BACKENDS},
        "its weights are quantized": model.quantization is not None,
        f"its keys and values are quantized ({args.kv_cache_dtype})": args.kv_cache_dtype not in KV_DTYPES,
        "it has latent attention": model.use_mla,
        "it has layers without attention": model.is_hybrid or model.is_attention_free,
        "it has a draft model (speculative_config)": args.speculative_config is not None,
        f"it has heads of size {TUNED_HEAD}": blackwell and model.get_head_size() == TUNED_HEAD,
    }


def _model(args: AsyncEngineArgs) -> ModelConfig:
    try:
        return args.create_model_config()
    except Exception as error:  # any error of vLLM, the hub or a file's reader
        raise EngineStartError(f"{args.model!r}: {error}") from error
