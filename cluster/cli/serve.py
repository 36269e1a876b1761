"""``banyan serve``: runs the application in the foreground and prints example commands."""

import json
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from rich.console import Console
from rich.text import Text

from cluster.cli.defaults import DEFAULT_URL
from cluster.client.wire import authorization
from cluster.launch.application import Running, serving
from cluster.launch.backend import backend_config
from cluster.launch.config_file import app_config, read_config
from cluster.launch.errors import LaunchError

EXAMPLE = "Start with 149. Multiply by 3. Add 229. Add 2. Add 19. Subtract 339. What is the result?"
"""What the embedded models know."""
WORD_PROBLEM = "Three pens cost 4.50 dollars. What do seven of them and two notebooks at 1.25 dollars each cost?"
"""The same for a backend, whose model knows words."""
JSON = "Content-Type: application/json"
ASKING_S = 10.0
BEAM, VOTE = {"strategy": "beam_search", "n": 16}, {"strategy": "self_consistency", "n": 16}
"""What the examples ask for: the second one of a backend, which has no reward model."""
OBJECT_STORE_BYTES = 128 << 20
"""Shared memory of a Ray without engines: nothing large is sent between its processes."""


class Backend(NamedTuple):
    """A model that another server serves."""

    url: str
    model: str | None
    """Its name there; None: the only one."""
    key_file: Path | None


class Options(NamedTuple):
    """Options of the command."""

    config: Path | None
    backend: Backend | None
    """The generator of an application without a config file."""
    host: str | None
    port: int | None
    api_key: str | None
    dashboard: bool


def serve_until_interrupted(options: Options, console: Console) -> None:
    """Serves until a signal ends it; returns when every process is gone.

    Raises:
        LaunchError: the configuration is wrong, the backend cannot be used, or the application could not be started.
    """
    status = console.status("starting")
    shown = ""

    def tell(progress: str) -> None:
        nonlocal shown
        if console.is_terminal:
            status.update(progress)
        elif progress != shown:
            console.print(Text(progress), soft_wrap=True)
        shown = progress
        if progress == "stopping":
            status.start()

    try:
        backend = options.backend
        source = options.config if backend is None else backend_config(backend.url, backend.model, backend.key_file)
        given = read_config(source, options.host, options.port)
        store_bytes, search = (None, BEAM) if backend is None else (OBJECT_STORE_BYTES, VOTE)
        question = EXAMPLE if backend is None else WORD_PROBLEM
        with status, serving(given, tell, options.dashboard, store_bytes) as running:
            status.stop()
            for warning in card_warnings(given):
                console.print(Text(warning), style="yellow", soft_wrap=True)
            model = _model(running.url, options.api_key)
            console.print(welcome(running, model, search, question), soft_wrap=True)
            while True:
                signal.pause()
    except KeyboardInterrupt:
        console.print("stopped")


def welcome(running: Running, model: str, search: Mapping[str, Any] = BEAM, question: str = EXAMPLE) -> Text:
    """Text with example commands for a running application, which ask ``question`` with ``search``."""
    body = {"model": model, "messages": [{"role": "user", "content": question}], "search": search, "seed": 1}
    alias = {BEAM["strategy"]: "beam-16", VOTE["strategy"]: "sc-16"}[search["strategy"]]
    solve = "" if search == BEAM else f" --strategy {alias}"
    if running.url != DEFAULT_URL:
        solve += f" --url {shlex.quote(running.url)}"
    text = Text()
    text.append(f"Banyan serves {model} on {running.url}", style="bold green")
    text.append(f" after {running.seconds:.0f} s. In another terminal:\n\n")
    text.append("watch a tree grow\n", style="dim")
    text.append(f"  {command()} solve {shlex.quote(question)}{solve}\n\n")
    text.append("with curl\n", style="dim")
    chat_url = shlex.quote(f"{running.url}/v1/chat/completions")  # shells read the brackets of an IPv6 address
    text.append(f"  curl -s {chat_url} -H {shlex.quote(JSON)} -d {shlex.quote(json.dumps(body))}\n")
    text.append("\n")
    text.append("with the openai client\n", style="dim")
    text.append(f'  client = openai.OpenAI(base_url="{running.url}/v1", api_key="unused")\n')
    text.append(
        f'  client.chat.completions.create(model="{model}:{alias}", messages=[{{"role": "user", "content": "…"}}])\n\n'
    )
    if running.dashboard_url:
        token = f", which asks for the token in {running.token_file}" if running.token_file else ""
        text.append(f"dashboard {running.dashboard_url}{token}\n", style="dim")
    text.append(f"logs {running.logs} · Ctrl-C stops everything", style="dim")
    return text


def card_warnings(config: dict[str, Any]) -> list[str]:
    """What the cards of the configured reward model and reader say, where they were measured to be worth nothing."""
    try:
        configured = app_config(config)
    except LaunchError:  # another application than Banyan's
        return []
    cards = (configured.prm.card, configured.controller.reader_card)
    return [card.verdict for card in cards if card is not None and not card.helps]


def _model(url: str, api_key: str | None) -> str:
    """Name of the served model; ``MODEL`` if the endpoint does not tell it, as without a required key."""
    try:
        models = httpx.get(f"{url}/v1/models", headers=authorization(api_key), timeout=ASKING_S, trust_env=False).json()
        return str(models["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return "MODEL"


def command() -> str:
    """How to type this command in another terminal: its name if the shell finds it, else its path."""
    script = Path(sys.argv[0])
    if script.name != "banyan" or shutil.which("banyan"):
        return "banyan"
    path = script.absolute()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
