"""``banyan check-backend``: what a server of OpenAI's API can do for searches, by what was sent and what came back."""

import asyncio
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cluster.launch.backend import HINTS, key_source
from cluster.launch.errors import LaunchError
from deployments.backends.capabilities import Capabilities
from deployments.backends.errors import BackendError
from deployments.backends.probing import asked
from deployments.backends.settings import BackendSettings
from search.settings import parse_search
from search.strategies.catalog import STRATEGIES

HOLDS = {True: "yes", False: "no", None: "not seen"}


def show_backend(url: str, model: str | None, key_file: Path | None, console: Console) -> None:
    """Prints a line for each thing that the backend can do or cannot, and which strategies that leaves.

    Raises:
        LaunchError: it cannot be asked.
    """
    try:
        settings = BackendSettings.model_validate({"url": url, **key_source(key_file)})
        can = asyncio.run(asked(settings, model))
    except ValidationError as error:
        faults = (".".join(map(str, fault["loc"])) + ": " + fault["msg"] for fault in error.errors())
        raise LaunchError("\n".join(faults)) from None
    except BackendError as error:
        hint = HINTS.get(error.fault)
        raise LaunchError(f"{error}{f': {hint}' if hint else ''}") from None
    except ValueError as error:
        raise LaunchError(str(error)) from None
    table = Table("", "", "sent", "came back", title=Text(f"{url}: {can.model}"), title_justify="left")
    for name, holds, sent, received in can.findings:
        table.add_row(name, HOLDS[holds], Text(sent), Text(received))  # a model may write what rich takes for markup
    console.print(table)
    names = ", ".join(strategies(can))
    console.print(f"Strategies that it can run: {names}. Those that use rewards also need a reward model (prm).")
    if not can.seeds:
        console.print("Without seeds no search can be repeated or resumed, and search.seed is refused.")


def strategies(can: Capabilities) -> list[str]:
    """The names of the strategies that the backend can do."""
    return [name for name in STRATEGIES if can.lacks(parse_search({"strategy": name})) is None]
