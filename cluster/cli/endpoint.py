"""Target of a command: an endpoint by URL, the application of the cluster that it runs on, the one at the default
address, or one of its own."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.text import Text

from cluster.cli.defaults import DEFAULT_URL, config_file
from cluster.client.client import Client
from cluster.client.wire import authorization

ANSWER_S = 5.0
"""Longest wait for what listens at the default address."""


@dataclass(frozen=True)
class Target:
    """The endpoint or application that a command uses."""

    name: str
    """Name in reports."""
    url: str
    application: str | None = None
    """Name of the application to reach through its handles; None: over HTTP."""

    def client(self, api_key: str | None, timeout_s: float, connections: int, waits_for_room: bool = True) -> Client:
        """Returns a client. Call this in the event loop that uses the client.

        Raises:
            ClientError: the URL or the key cannot be used.
        """
        transport = None
        if self.application is not None:
            from cluster.client.handles import HandleTransport

            transport = HandleTransport(self.application)
        return Client(self.url, api_key, timeout_s, connections, transport=transport, waits_for_room=waits_for_room)


@contextmanager
def target(url: str | None, config: Path | None, api_key: str | None, console: Console) -> Iterator[Target]:
    """Yields the target: without ``url`` the application of the cluster, if there is one; else, without ``config``, the
    one at the default address, if Banyan answers there; else one that this starts, and stops after the block.

    Raises:
        LaunchError: it could not be started, or the cluster could not be joined.
    """
    if url is not None:
        yield Target(url, url)
        return
    from cluster.launch.running import joined_application

    with ExitStack() as stack:
        name = stack.enter_context(joined_application())
        if name is not None:
            from cluster.client.handles import URL

            console.print(Text(f"the application {name!r} of this cluster, by its handles", style="dim"))
            yield Target(f"the application {name!r}", URL, name)
            return
    if config is None and _serves_banyan(DEFAULT_URL, api_key):
        console.print(Text(f"the application at {DEFAULT_URL}", style="dim"))
        yield Target(DEFAULT_URL, DEFAULT_URL)
        return
    with ExitStack() as stack:
        yield Target("an application of its own", _own_application(stack, config, console))


def _serves_banyan(url: str, api_key: str | None) -> bool:
    """Whether Banyan answers at ``url``. An endpoint that wants another key does not say what it is, and counts."""
    try:
        reply = httpx.get(f"{url}/v1/models", headers=authorization(api_key), timeout=ANSWER_S, trust_env=False)
        if reply.status_code == httpx.codes.UNAUTHORIZED:
            return True
        return bool(reply.json()["data"][0]["owned_by"] == "banyan")
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return False


def _own_application(stack: ExitStack, config: Path | None, console: Console) -> str:
    from cluster.launch.application import free_port, serving
    from cluster.launch.config_file import read_config

    status = stack.enter_context(console.status("starting an application"))
    settings = read_config(config_file(config), host="127.0.0.1", port=free_port())
    # Nobody else asks this one: it needs no certificate, which would be another name's.
    settings["http_options"] = {
        name: value for name, value in settings["http_options"].items() if not name.startswith("ssl_")
    }
    running = stack.enter_context(serving(settings, status.update, dashboard=False))
    status.stop()
    console.print(Text(f"an application of its own on {running.url}, {running.seconds:.0f} s to start", style="dim"))
    return running.url
