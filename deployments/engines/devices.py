"""Whether an engine's GPUs are busy, by NVML, which opens no CUDA context. Imports vLLM."""

from vllm.platforms import current_platform
from vllm.utils.import_utils import import_pynvml


def gpus_compute(number: int) -> bool:
    """Whether one of this process's first ``number`` GPUs has run a kernel of any process within the last second.

    True where that is unknown: on a part of a GPU (MIG), and on GPUs of other vendors. False on a CPU.
    """
    if not current_platform.is_cuda():
        return not current_platform.is_cpu()
    nvml = import_pynvml()
    try:
        nvml.nvmlInit()
        try:
            indices = map(current_platform.device_id_to_physical_device_id, range(number))
            handles = map(nvml.nvmlDeviceGetHandleByIndex, indices)
            return any(nvml.nvmlDeviceGetUtilizationRates(handle).gpu > 0 for handle in handles)
        finally:
            nvml.nvmlShutdown()
    except (nvml.NVMLError, IndexError):  # IndexError: engines over several nodes have more GPUs than this one
        return True
