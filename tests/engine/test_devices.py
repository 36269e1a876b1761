"""Whether an engine's GPUs are computing, with NVML replaced."""

from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest
from vllm.platforms import current_platform

from deployments.engines import devices


def nvml_of(uses: Sequence[int | None]) -> Mock:
    """NVML of a machine whose GPUs have this utilization, per cent; None for one that reports none."""
    nvml = Mock(NVMLError=RuntimeError)

    def rates(index: int) -> Any:
        if uses[index] is None:
            raise nvml.NVMLError("Not Supported")
        return Mock(gpu=uses[index])

    nvml.nvmlDeviceGetHandleByIndex.side_effect = int
    nvml.nvmlDeviceGetUtilizationRates.side_effect = rates
    return nvml


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("uses", "number", "compute"),
    [((0, 7, 7), 1, False), ((0, 7, 7), 2, True), ((0, 0, 0), 3, False), ((None, 0, 0), 1, True), ((0, 0, 0), 4, True)],
    ids=["its own idle", "one busy", "all idle", "not told", "on other nodes, too"],
)
def test_the_gpus_of_an_engine_compute_if_nvml_says_so_or_nothing(
    monkeypatch: pytest.MonkeyPatch, uses: tuple[int | None, ...], number: int, compute: bool
) -> None:
    nvml = nvml_of(uses)
    monkeypatch.setattr(devices, "import_pynvml", lambda: nvml)
    monkeypatch.setattr(current_platform, "device_id_to_physical_device_id", lambda index: range(3)[index])
    assert devices.gpus_compute(number) is compute
    nvml.nvmlShutdown.assert_called_once_with()


def test_without_nvml_gpus_compute_and_on_a_cpu_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not devices.gpus_compute(1)
    monkeypatch.setattr(current_platform, "is_cpu", lambda: False)
    assert devices.gpus_compute(1)
