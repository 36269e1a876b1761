"""Who sends a request: its API key, else a job on the cluster, else the address of the connection."""

import ipaddress
from functools import lru_cache

from starlette.types import Scope

from deployments.admission.auth import is_job, key_of

IPV6_PREFIX = 64
"""Bits of an IPv6 address that name a client: one machine has all addresses of such a network."""
MAX_ADDRESS_CHARACTERS = 64
JOBS = "jobs"
"""The name of all jobs without a key together."""


def client_of(scope: Scope) -> str:
    """Returns the name under which a request counts for limits by client: the digest of its key, else its address.

    The address is that of the connection, or what one of ``http.trusted_proxies`` says.
    """
    if (key := key_of(scope)) is not None:
        return key.digest
    if is_job(scope):
        return JOBS
    host, *_ = scope.get("client") or ("",)
    return _by_network(str(host)[:MAX_ADDRESS_CHARACTERS])


@lru_cache(maxsize=4096)
def _by_network(host: str) -> str:
    """Returns the name of the client at an address. Behind its prefix no address reads as another client's name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"address {host}"
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        network = ipaddress.IPv6Network((int(address), IPV6_PREFIX), strict=False)
        return f"address {network}"
    return f"address {getattr(address, 'ipv4_mapped', None) or address}"
