"""Progress of a long command: a bar in a terminal, else one line per minute."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

EVERY_S = 60.0


def progress_bar(console: Console) -> Progress:
    """A bar for each task, with the task's ``note``; nothing without a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=not console.is_terminal,
    )


class Pace:
    """Progress of a job, and its speed in this process."""

    def __init__(self, total: int, done: int, now: Callable[[], float] = time.monotonic) -> None:
        self.total, self.done = total, done
        self._before, self._began, self._now = done, now(), now

    @property
    def elapsed_s(self) -> float:
        return self._now() - self._began

    @property
    def per_second(self) -> float:
        return (self.done - self._before) / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Estimated seconds left; None before the first line is done."""
        return (self.total - self.done) / self.per_second if self.per_second > 0 else None

    def __str__(self) -> str:
        left = "" if self.left_s is None else f", {timedelta(seconds=round(self.left_s))} left"
        return f"{self.done:,} of {self.total:,} lines, {self.per_second:.1f} a second{left}"


@asynccontextmanager
async def line_progress(
    console: Console, pace: Pace, note: Callable[[], str], every_s: float = EVERY_S
) -> AsyncIterator[Callable[[], None]]:
    """Shows the progress of lines. Yields a function to call after each finished line."""
    with progress_bar(console) as bar:
        task = bar.add_task("lines", total=pace.total, completed=pace.done, note="")

        def done() -> None:
            pace.done += 1
            bar.update(task, advance=1, note=f"{pace.per_second:.1f}/s{note()}")

        telling = None if console.is_terminal else asyncio.create_task(_tell(console, pace, note, every_s))
        try:
            yield done
        finally:
            if telling is not None:
                telling.cancel()


async def _tell(console: Console, pace: Pace, note: Callable[[], str], every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        console.print(Text(f"{pace}{note()}"), soft_wrap=True)
