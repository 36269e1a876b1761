"""Asks the backend of some settings what it can do."""

from contextlib import aclosing

from deployments.backends.capabilities import Capabilities, find_capabilities
from deployments.backends.pool import Pool
from deployments.backends.settings import BackendSettings


async def asked(settings: BackendSettings, model: str | None) -> Capabilities:
    """As `find_capabilities`, over connections of its own. A server may fail at a request that it does not know: probes
    are tried twice at most, so that its URL does not count as failing, which takes three failures in a row."""
    probing = settings.model_copy(update={"attempts": min(2, settings.attempts)})
    async with aclosing(Pool(probing)) as pool:
        return await find_capabilities(pool, model)
