"""Methods that Banyan adds to vLLM's workers (``worker_extension_cls``), called by ``AsyncLLM.collective_rpc``."""

from deployments.engines.allocator import release_free_memory
from kvstore.memory.engine_geometry import GeometryReport


class WorkerExtension(GeometryReport):
    """Base class that vLLM adds to its worker's class; it has no state of its own."""

    def release_free_memory(self) -> None:
        """See ``deployments.engines.allocator``."""
        release_free_memory()
