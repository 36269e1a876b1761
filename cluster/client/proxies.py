"""Checks the proxies that the environment names. httpx uses them, but its errors name no variable."""

from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx

from cluster.client.errors import ClientError

ADDRESSES = "IPv6 addresses are written without brackets, port and prefix length"


def check_proxies() -> None:
    """Checks the proxies of ``HTTP_PROXY``, ``HTTPS_PROXY`` and ``ALL_PROXY``, and the hosts of ``NO_PROXY``.

    Raises:
        ClientError: httpx cannot use one; the message names the variable.
    """
    named = getproxies()
    variable, hint = "", ""
    try:
        for scheme in ("http", "https", "all"):
            if scheme not in named:
                continue
            variable, url = f"{scheme.upper()}_PROXY", named[scheme]
            url = url if "://" in url else f"http://{url}"
            _ = urlsplit(url).port  # httpx takes any number
            httpx.AsyncHTTPTransport(proxy=url)
        if "no" in named:
            variable, hint = "NO_PROXY", f" ({ADDRESSES})"
            httpx.AsyncClient()
    except (httpx.InvalidURL, ValueError, ImportError) as error:  # ImportError: the package for SOCKS is missing
        raise ClientError(f"the environment's {variable} cannot be used: {error}{hint}") from error
