"""An application that is started, and measured until its first answer."""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from benchmarks.model_pairs import EMBEDDED
from benchmarks.pace.applications import Application, StartError, config_for
from benchmarks.pace.checkouts import Checkout
from benchmarks.start.processes import ProcessRow, ProcessSamples
from cluster.cli.serve import EXAMPLE

START_S = 600.0
"""A start that takes longer is recorded as such."""
POLL_S = 0.1
READY = "Banyan serves"
"""Beginning of the line that ``banyan serve`` prints when the application is healthy."""
DASHBOARD = re.compile(r"^dashboard (?P<url>[^\s,]+)(, which asks for the token in (?P<token>.+))?$", re.MULTILINE)


class Start(NamedTuple):
    """A start, until its first answer."""

    seconds: float | None
    """None if there was no answer."""
    parts: dict[str, float]
    """Seconds by part."""
    processes: list[ProcessRow]
    failure: str | None = None

    @property
    def shown_seconds(self) -> float | str | None:
        """The seconds, ``> 600`` if they were over, or None if the application failed before that."""
        return f"> {START_S:g}" if self.seconds is None and self.failure is None else self.seconds

    @property
    def json(self) -> dict[str, Any]:
        failure = {"failure": self.failure} if self.failure else {}
        processes = [row.json for row in self.processes]
        return {"seconds": self.shown_seconds, **failure, "parts": self.parts, "processes": processes}


class Progress:
    """The lines that ``banyan serve`` prints while it starts, with the time of each."""

    def __init__(self, output: Path, began: float) -> None:
        self.parts: list[tuple[str, float]] = [("process", began)]
        self._output = output
        self._seen = 0

    @property
    def is_ready(self) -> bool:
        return self.parts[-1][0].startswith(READY)

    def read_output(self) -> None:
        lines = self._output.read_text(encoding="utf-8", errors="replace").splitlines()
        for line in lines[self._seen :]:
            # The line names the deployments that are not ready yet, and changes with each one: all of it is one part.
            name = "starting deployments" if line.startswith("starting ") and "Ray" not in line else line
            if name != self.parts[-1][0]:
                self.parts.append((name, time.monotonic()))
            if self.is_ready:
                break  # the lines that follow tell a user what to type
        self._seen = len(lines)

    def seconds(self, ended: float) -> dict[str, float]:
        """Seconds by part."""
        parts = [("first answer" if name.startswith(READY) else name, at) for name, at in self.parts]
        times = [*(at for _, at in parts), ended]
        return {name: round(times[index + 1] - at, 2) for index, (name, at) in enumerate(parts)}


class StartedApplication:
    """An application that ``banyan serve`` of a checkout runs, with samples of its processes."""

    def __init__(self, application: Application, config: dict[str, Any], samples: ProcessSamples, began: float) -> None:
        self.url = application.url
        self.samples = samples
        self.config = config
        self._application, self._began = application, began

    def wait_first_answer(self) -> Start:
        """Returns after the first answer of the endpoint, or once it is clear that there will be none in time."""
        progress, failure, seconds = Progress(self._application.output, self._began), None, None
        try:
            while not progress.is_ready:
                self._application.check_running()
                self._remaining()
                time.sleep(POLL_S)
                progress.read_output()
            self.ask(seed=1, timeout_s=self._remaining())
            seconds = time.monotonic() - self._began
        except (TimeoutError, httpx.TimeoutException):
            pass
        except (StartError, httpx.HTTPError) as error:
            failure = str(error)
        rows = self.samples.rows()
        parts = progress.seconds(self._began + seconds if seconds is not None else time.monotonic())
        return Start(None if seconds is None else round(seconds, 2), parts, rows, failure)

    def ask(self, seed: int, timeout_s: float, **search: Any) -> None:
        """Asks one question, with the default search where none is given.

        Raises:
            httpx.HTTPError: there was no answer, or not in time.
        """
        body: dict[str, Any] = {
            "model": self._application.model,
            "messages": [{"role": "user", "content": EXAMPLE}],
            "seed": seed,
        }
        if search:
            body["search"] = search
        url = f"{self.url}/v1/chat/completions"
        with httpx.Client(trust_env=False, timeout=timeout_s) as http:
            http.post(url, json=body).raise_for_status()

    def dashboard(self) -> tuple[str, dict[str, str]]:
        """URL of Ray's dashboard, and the headers that it asks for.

        Raises:
            LookupError: ``banyan serve`` named none.
        """
        found = DASHBOARD.search(self._application.output.read_text(encoding="utf-8", errors="replace"))
        if found is None:
            raise LookupError("`banyan serve` named no dashboard")
        if not found["token"]:
            return found["url"], {}
        token = Path(found["token"]).expanduser().read_text(encoding="ascii").strip()
        return found["url"], {"Authorization": f"Bearer {token}"}

    def _remaining(self) -> float:
        """Seconds that are left of ``START_S``.

        Raises:
            TimeoutError: none are left.
        """
        if (left := self._began + START_S - time.monotonic()) <= 0:
            raise TimeoutError
        return left


@contextmanager
def started_application(
    checkout: Checkout, directory: Path, inherited: Mapping[str, str]
) -> Iterator[StartedApplication]:
    """Starts ``banyan serve`` of the checkout's ``.venv``. All its processes are gone at the end.

    ``directory``: for its temporary files; not there yet, and its path is to be short, for Ray's sockets.
    """
    directory.mkdir(parents=True)
    config = config_for(checkout, EMBEDDED)
    command = [str(checkout.python.with_name("banyan"))]
    began = time.monotonic()
    application = Application(checkout, config, directory, {**inherited, "TMPDIR": str(directory)}, command)
    try:
        with ProcessSamples(application.pid, directory) as samples:
            yield StartedApplication(application, config, samples, began)
    finally:
        application.begin_shutdown()
        application.end()
