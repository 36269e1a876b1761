"""vLLM plugin for every process of an engine: the entry point ``vllm.general_plugins`` of pyproject.toml."""

from threading import RLock

from tqdm import tqdm  # type: ignore[import-untyped]

from deployments.engines.rewards import FAMILIES
from deployments.engines.rewards.family import RewardModelSettings


def register() -> None:
    """Registers the families' models that vLLM does not have. vLLM calls it at start, perhaps more than once."""
    # Otherwise tqdm's first progress bar makes a lock between processes, whose semaphore a killed engine leaves behind.
    tqdm.set_lock(RLock())
    _let_compiled_code_load()
    from vllm import ModelRegistry

    known = ModelRegistry.get_supported_archs()
    for settings in FAMILIES.values():
        if issubclass(settings, RewardModelSettings) and (model := settings.reader.vllm_model):
            _, _, name = model.partition(":")
            if name not in known:
                ModelRegistry.register_model(name, model)


def _let_compiled_code_load() -> None:
    """Adds the method that vLLM 0.32 calls on compiled code from its cache.

    Code of vLLM's own compiler has it; that of torch's inductor, which vLLM uses on a CPU, does not. Without the method
    vLLM compiles again at every start: 10 s per engine instead of 2 s.
    """
    from torch._dynamo.aot_compile_types import BundledAOTAutogradSerializableCallable as InductorCode

    if "finalize_loading" not in vars(InductorCode):
        InductorCode.finalize_loading = lambda code, vllm_config: None  # type: ignore[attr-defined]
