"""What vLLM is told in every process of an engine: the entry point ``vllm.general_plugins`` of pyproject.toml."""

from vllm import ModelRegistry

VALUE_HEAD = "Qwen2ForPrmModel"


def register() -> None:
    """Called by vLLM when it starts, perhaps more than once."""
    if VALUE_HEAD not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(VALUE_HEAD, f"deployments.engines.rewards.value_head_model:{VALUE_HEAD}")
