"""Measures one part in this process and prints its rows, a line of JSON each. `benchmarks.on_gpu` starts it.

python -m benchmarks.on_gpu.part heavy '["graphs", "bfloat16", "", false, false, false]' log.txt
"""

import os
import sys
import traceback
from pathlib import Path

import uvloop

from benchmarks.lock_step.worker import private_stdout
from benchmarks.on_gpu.parts import PARTS, Measurement
from benchmarks.on_gpu.setups import Setup
from deployments.startup.environment import set_environment


async def measured(measurement: Measurement, name: str) -> None:
    """Ends the process if the part fails: threads may still be waiting for engines that start."""
    try:
        await PARTS[name].measure(measurement)
    except Exception:
        traceback.print_exc()
        os._exit(1)


def main(name: str, setup: str, log: str) -> None:
    report = private_stdout()
    set_environment()  # before vLLM and Ray are imported
    uvloop.run(measured(Measurement(PARTS[name], Setup.parse(setup), Path(log), report), name))


if __name__ == "__main__":
    main(*sys.argv[1:])
