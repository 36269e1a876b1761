"""What vLLM is told in every process of an engine: the entry point ``vllm.general_plugins`` of pyproject.toml."""

from threading import RLock

from tqdm import tqdm  # type: ignore[import-untyped]

from deployments.engines.rewards import FAMILIES
from deployments.engines.rewards.family import RewardModelSettings


def register() -> None:
    """Tells vLLM of the families' models that it does not have. Called by it when it starts, perhaps more than once."""
    # Else its first progress bar makes a lock between processes, a semaphore that an engine leaves behind when killed.
    tqdm.set_lock(RLock())
    from vllm import ModelRegistry

    known = ModelRegistry.get_supported_archs()
    for settings in FAMILIES.values():
        if issubclass(settings, RewardModelSettings) and (model := settings.reader.vllm_model):
            _, _, name = model.partition(":")
            if name not in known:
                ModelRegistry.register_model(name, model)
