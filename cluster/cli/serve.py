"""``banyan serve``: runs the application in the foreground and prints example commands."""

import json
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.text import Text

from cluster.cli.defaults import DEFAULT_URL
from cluster.client.wire import authorization
from cluster.launch.application import Running, serving
from cluster.launch.config_file import app_config, read_config
from cluster.launch.errors import LaunchError

EXAMPLE = "Start with 149. Multiply by 3. Add 229. Add 2. Add 19. Subtract 339. What is the result?"
JSON = "Content-Type: application/json"
ASKING_S = 10.0


def serve_until_interrupted(
    config: Path | None, host: str | None, port: int | None, api_key: str | None, console: Console
) -> None:
    """Serves until a signal ends it; returns when every process is gone.

    Raises:
        LaunchError: the configuration is wrong, or the application could not be started.
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
        given = read_config(config, host, port)
        with status, serving(given, tell) as running:
            status.stop()
            if warning := card_warning(given):
                console.print(Text(warning), style="yellow", soft_wrap=True)
            console.print(welcome(running, _model(running.url, api_key)), soft_wrap=True)
            while True:
                signal.pause()
    except KeyboardInterrupt:
        console.print("stopped")


def welcome(running: Running, model: str) -> Text:
    """Text with example commands for a running application."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": EXAMPLE}],
        "search": {"strategy": "beam_search", "n": 16},
        "seed": 1,
    }
    solve_url = "" if running.url == DEFAULT_URL else f" --url {shlex.quote(running.url)}"
    text = Text()
    text.append(f"Banyan serves {model} on {running.url}", style="bold green")
    text.append(f" after {running.seconds:.0f} s. In another terminal:\n\n")
    text.append("watch a tree grow\n", style="dim")
    text.append(f"  {command()} solve {shlex.quote(EXAMPLE)}{solve_url}\n\n")
    text.append("with curl\n", style="dim")
    chat_url = shlex.quote(f"{running.url}/v1/chat/completions")  # shells read the brackets of an IPv6 address
    text.append(f"  curl -s {chat_url} -H {shlex.quote(JSON)} -d {shlex.quote(json.dumps(body))}\n")
    text.append("\n")
    text.append("with the openai client\n", style="dim")
    text.append(f'  client = openai.OpenAI(base_url="{running.url}/v1", api_key="unused")\n')
    text.append(
        f'  client.chat.completions.create(model="{model}:beam-16", messages=[{{"role": "user", "content": "…"}}])\n\n'
    )
    if running.dashboard_url:
        token = f", which asks for the token in {running.token_file}" if running.token_file else ""
        text.append(f"dashboard {running.dashboard_url}{token}\n", style="dim")
    text.append(f"logs {running.logs} · Ctrl-C stops everything", style="dim")
    return text


def card_warning(config: dict[str, Any]) -> str | None:
    """What the card of the configured reward model says, if it was measured to be worth nothing."""
    try:
        card = app_config(config).prm.card
    except LaunchError:  # another application than Banyan's
        return None
    return None if card is None or card.helps else card.verdict


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
