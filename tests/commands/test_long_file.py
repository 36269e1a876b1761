"""A batch file of 200,000 lines, one in a hundred invalid: all invalid lines are reported, and memory stays flat.

It takes some minutes, with an endpoint that answers at once: `make test-commands`.
"""

import json
import subprocess
import sys
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import numpy as np
import psutil
import pytest

from cluster.jobs.outputs import paths, read_lines
from tests.unit.cluster.batch_lines import WRONG, request
from tests.unit.cluster.endpoint_stand_in import listening

LINES = 200_000
WRONG_EVERY = 100
SAMPLE_S = 0.5
MAX_MB = 8.0
"""Most MB that the second half of the file may add. Only one bit is kept per line; 100 bytes for each would be 10
MB."""

pytestmark = pytest.mark.timeout(3000)


def test_every_invalid_line_is_reported_in_flat_memory(tmp_path: Path) -> None:
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    results, errors, _ = paths(out)
    wrong = cycle(WRONG)
    reasons: dict[int, str] = {}
    with given.open("wb") as file:
        for number in range(1, LINES + 1):
            line = json.dumps(request(number)).encode()
            if number % WRONG_EVERY == 0:
                line, reasons[number] = next(wrong)
            file.write(line + b"\n")

    sizes: list[tuple[int, float]] = []
    """Bytes of the output, and resident MB of the process."""
    with listening() as endpoint, (tmp_path / "log").open("wb") as log:
        command = [sys.executable, "-m", "cluster.cli.main", "batch", given, out, "--url", endpoint.url]
        with subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as job:
            process = psutil.Process(job.pid)
            try:
                while job.poll() is None:
                    written = results.stat().st_size if results.exists() else 0
                    sizes.append((written, process.memory_info().rss / 1e6))
                    with suppress(subprocess.TimeoutExpired):
                        job.wait(SAMPLE_S)
            finally:
                job.kill()  # no effect if it has ended
        assert job.returncode == 0, (tmp_path / "log").read_text()

    named = {error["line"]: error["reason"] for error in read_lines(errors)}
    assert named.keys() == reasons.keys()
    assert all(reasons[number] in named[number] for number in reasons)
    answered = [line["line"] for line in read_lines(results)]
    assert sorted(answered + list(named)) == list(range(1, LINES + 1))

    # Only while it runs: when the process ends, it is a zombie without memory.
    half = [(at, size) for at, size in sizes if at >= results.stat().st_size / 2 and size > 0]
    slope, _ = np.polyfit(*zip(*half, strict=True), 1)
    gained, (first, last) = slope * results.stat().st_size / 2, (half[0][1], half[-1][1])
    print(f"{len(answered)} answered, {len(named)} named; resident {first:.1f} MB at half, {last:.1f} at the end;")
    print(f"the second half adds {gained:+.2f} MB by least squares over {len(half)} samples")
    assert gained < MAX_MB
