"""What no setting can say alone: checked when the application is built, before anything starts.

Models' files are read where they are on this machine. Where they are not, the engines refuse at their start.
"""

from collections.abc import Iterator

from deployments.config import AppConfig
from deployments.engines.rewards.function import FunctionSettings
from deployments.engines.settings import EngineSettings
from deployments.model_files import longest_context


def check_settings(config: AppConfig) -> None:
    """
    Raises:
        ValueError: settings contradict each other or the models that they name; a line for each, with its path.
    """
    engines: dict[str, EngineSettings] = {"generator": config.generator}
    if not isinstance(config.prm, FunctionSettings):
        engines["prm"] = config.prm
    checks = (_context, _shared_device)
    problems = [problem for path, engine in engines.items() for check in checks for problem in check(path, engine)]
    if problems:
        raise ValueError("\n".join(problems))


def _context(path: str, engine: EngineSettings) -> Iterator[str]:
    """A model is not asked for more context than it has."""
    longest = longest_context(engine)
    if longest is not None and engine.max_model_len > longest:
        yield f"{path}.max_model_len: at most {longest}, the context of {engine.model}, not {engine.max_model_len}"


def _shared_device(path: str, engine: EngineSettings) -> Iterator[str]:
    """Engines on one device each keep to a part of it: Ray counts the parts, and vLLM has to be told."""
    part = engine.replicas.num_gpus
    if not 0 < part < 1:
        return
    if engine.kv_cache_memory_bytes is None:
        yield (
            f"{path}.kv_cache_memory_bytes: must be set with replicas.num_gpus {part:g}: vLLM would measure what is "
            "free on the device while the other engine takes its memory"
        )
    utilization = engine.engine_args.get("gpu_memory_utilization")
    if isinstance(utilization, float | int) and utilization > part:
        yield (
            f"{path}.engine_args.gpu_memory_utilization: {utilization:g} of the device is more than "
            f"replicas.num_gpus reserves of it, {part:g}"
        )
