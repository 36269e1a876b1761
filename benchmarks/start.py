"""Time from ``banyan serve`` to the first answer, by part, for the working tree and another commit.

Each application is started alone, with the embedded models: the base, ours with an empty compile cache, the base again,
ours again. Our first start includes compilation; the second one must not be slower than the base.

    python -m benchmarks.start --base main
"""

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console

from benchmarks.model_pairs import EMBEDDED
from benchmarks.pace.__main__ import TEMPORARY
from benchmarks.pace.applications import START_S, Application, config_for
from benchmarks.pace.checkouts import Checkout, base_checkout, short_commit, this_checkout
from benchmarks.record import claim, show_claims, write_result
from cluster.cli.serve import EXAMPLE

POLL_S = 0.1
READY = "Banyan serves"
"""Beginning of the line that ``banyan serve`` prints when the application is healthy."""
MAX_RATIO = 1.05
"""Ratio to the base's time that is allowed: on a shared machine, one start cannot be timed more precisely."""
console = Console(stderr=True)


class Progress:
    """The lines that ``banyan serve`` prints while it starts, with the time of each."""

    def __init__(self, output: Path, began: float) -> None:
        self.parts: list[tuple[str, float]] = [("process", began)]
        self._output = output
        self._seen = 0

    def read_output(self) -> None:
        lines = self._output.read_text(encoding="utf-8", errors="replace").splitlines()
        for line in lines[self._seen :]:
            # The line names the deployments that are not ready yet, and changes with each one: all of it is one part.
            name = "starting deployments" if line.startswith("starting ") and "Ray" not in line else line
            if name != self.parts[-1][0]:
                self.parts.append((name, time.monotonic()))
            if name.startswith(READY):
                break  # the lines that follow tell a user what to type
        self._seen = len(lines)

    def seconds(self, ended: float) -> dict[str, float]:
        """Seconds by part."""
        times = [*(at for _, at in self.parts), ended]
        return {name: round(times[index + 1] - at, 2) for index, (name, at) in enumerate(self.parts)}


def started(checkout: Checkout, directory: Path, compiled: Path | None) -> dict[str, Any]:
    """Starts an application, asks it one question and stops it; returns the seconds by part.

    Args:
        compiled: where vLLM keeps compiled code; its default if None.
    """
    directory.mkdir(parents=True)
    environment = checkout.environment(os.environ, checkout.variables, directory)
    if compiled is not None:
        environment |= {"VLLM_CACHE_ROOT": str(compiled), "TORCHINDUCTOR_CACHE_DIR": str(compiled / "inductor")}
    began = time.monotonic()
    application = Application(checkout, config_for(checkout, EMBEDDED), directory, environment)
    try:
        progress = Progress(directory / "output.log", began)
        with httpx.Client(base_url=application.url, trust_env=False, timeout=60.0) as http:
            while not progress.parts[-1][0].startswith(READY):
                application.check_running()
                if time.monotonic() - began > START_S:
                    raise TimeoutError(f"{checkout.name} did not start within {START_S:g} s")
                time.sleep(POLL_S)
                progress.read_output()
            healthy = progress.parts.pop()[1]
            messages = [{"role": "user", "content": EXAMPLE}]
            body = {"model": application.model, "messages": messages, "seed": 1}
            http.post("/v1/chat/completions", json=body).raise_for_status()
        answered = time.monotonic()
        parts = progress.seconds(healthy) | {"first answer": round(answered - healthy, 2)}
        return {"side": checkout.name, "seconds": round(answered - began, 2), "parts": parts}
    finally:
        application.begin_shutdown()
        application.end()


def report(base: str, starts: Sequence[Mapping[str, Any]]) -> bool:
    """Writes and prints the figures; returns whether all claims hold."""
    of_base = [start["seconds"] for start in starts if start["side"] == "base"]
    first, second = [start["seconds"] for start in starts if start["side"] == "ours"]
    ratio = second / min(of_base)
    claims = [
        claim("second start, ours over the base's faster one", round(ratio, 3), f"<= {MAX_RATIO}", ratio <= MAX_RATIO)
    ]
    path = write_result(
        "start", {"base": base, "seconds_of_compilation": round(first - second, 1), "claims": claims, "starts": starts}
    )
    for start in starts:
        console.print(f"{start['side']}: {start['seconds']} s: {start['parts']}")
    show_claims(console, claims)
    console.print(f"kept in {path.relative_to(path.parents[2])}")
    return all(each["holds"] for each in claims)


def main(base: Annotated[str, typer.Option(help="The commit to compare with.")]) -> None:
    commit = short_commit(base)
    with (
        tempfile.TemporaryDirectory(prefix="start-", dir=TEMPORARY, ignore_cleanup_errors=True) as temporary,
        base_checkout(commit, Path(temporary) / "base") as theirs,
    ):
        directory, ours = Path(temporary), this_checkout()
        compiled = directory / "compiled"
        starts = [
            started(checkout, directory / str(number), compiled if checkout is ours else None)
            for number, checkout in enumerate((theirs, ours, theirs, ours))
        ]
    if not report(commit, starts):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
