"""Asks a generator's backend what it can do, once, when the application is built."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from deployments.backends.capabilities import Capabilities
from deployments.backends.errors import BackendError
from deployments.backends.models import CONTEXT_TOKENS
from deployments.backends.probing import asked
from deployments.backends.settings import UrlGeneratorSettings
from deployments.config import AppConfig
from search.settings import parse_search


def asked_backend(config: AppConfig) -> tuple[AppConfig, Capabilities | None]:
    """The settings with what the backend says of its model, and what it can do; None where the generator is an engine.

    Raises:
        ValueError: the backend cannot be reached or has no such model, or cannot do a search of the settings.
    """
    settings = config.backend
    if settings is None:
        return config, None
    with ThreadPoolExecutor(1) as pool:  # Serve may build in a thread that runs an event loop
        can = pool.submit(lambda: asyncio.run(_found(settings))).result()
    controller = config.controller
    searches = {"default_search": controller.default_search}
    searches |= {f"efforts.{name}": search for name, search in controller.efforts.items()}
    for name, search in searches.items():
        if lack := can.lacks(parse_search(search, controller.catalog)):
            raise ValueError(f"controller.{name}.{lack}")
    told = {
        "model": can.model,
        "served_name": settings.served_name or can.model,
        "max_model_len": settings.max_model_len or can.context_tokens or CONTEXT_TOKENS,
    }
    return config.model_copy(update={"generator": settings.model_copy(update=told)}), can


async def _found(settings: UrlGeneratorSettings) -> Capabilities:
    try:
        can = await asked(settings, settings.model)
    except BackendError as error:
        raise ValueError(f"generator.url: {error}") from None
    except ValueError as error:
        raise ValueError(f"generator.model: {error}") from None
    try:
        return can if settings.tokenizer is None else can.with_tokenizer()
    except ValueError as error:
        raise ValueError(f"generator.tokenizer: {error}") from None
