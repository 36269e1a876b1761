"""Methods that Banyan adds to vLLM's workers (``worker_extension_cls``), called by ``AsyncLLM.collective_rpc``.

vLLM imports this module in an engine's process before it loads the model, and with it the loader.
"""

from typing import Any

from deployments.engines.allocator import release_free_memory
from deployments.engines.loader import missing_weights
from kvstore.memory.engine_geometry import GeometryReport


class WorkerExtension(GeometryReport):
    """Base class that vLLM adds to its worker's class; it has no state of its own."""

    def release_free_memory(self) -> None:
        """See ``deployments.engines.allocator``."""
        release_free_memory()

    def missing_weights(self) -> list[str]:
        """See ``deployments.engines.loader``."""
        return missing_weights()

    def runner_class(self: Any) -> str:
        """Full name of the class of vLLM's model runner in this worker."""
        kind = type(self.model_runner)
        return f"{kind.__module__}.{kind.__qualname__}"
