"""The application in front of a model that another server serves, without a config file."""

import asyncio
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cluster.launch.config_file import BUILDER
from cluster.launch.errors import LaunchError
from deployments.backends.errors import BackendError, Fault
from deployments.backends.models import find_model
from deployments.backends.pool import Pool
from deployments.backends.settings import BackendSettings

KEY_VARIABLE = "BANYAN_BACKEND_KEY"
"""Environment variable with the backend's key, where no file of it is named."""
ASKING_S = 15.0
HINTS = {
    Fault.UNREACHABLE: "is it running, and is this its address?",
    Fault.KEY: f"set its key in {KEY_VARIABLE}, or name a file with --backend-key-file",
    Fault.REDIRECT: "name the URL to which it sends callers",
}


def key_source(key_file: Path | None) -> dict[str, Any]:
    """Where the settings of a backend are to read its key: ``key_file``, or `KEY_VARIABLE` if that is set."""
    if key_file is not None:
        return {"api_key_file": str(key_file.absolute())}
    return {"api_key_env": KEY_VARIABLE} if os.environ.get(KEY_VARIABLE) else {}


def backend_config(url: str, model: str | None, key_file: Path | None) -> dict[str, Any]:
    """The Serve config of an application whose generator is the model ``model`` at ``url``; None: its only one. What
    the model can do is asked when the application is built.

    Raises:
        LaunchError: the backend does not answer, wants another key, or has no such model.
    """
    given: dict[str, Any] = {"url": url, **key_source(key_file)}
    try:
        settings = BackendSettings.model_validate(given)
    except ValidationError as error:
        fault = error.errors()[0]
        raise LaunchError(f"--backend: {fault['loc'][-1] if fault['loc'] else 'url'}: {fault['msg']}") from error
    generator = {**given, "model": asyncio.run(_model_name(settings, model))}
    application = {"name": "banyan", "route_prefix": "/", "import_path": BUILDER, "args": {"generator": generator}}
    return {"http_options": {"host": "127.0.0.1"}, "applications": [application]}


async def _model_name(settings: BackendSettings, wanted: str | None) -> str:
    try:
        pool = Pool(settings)
    except ValueError as error:  # the file of the key
        raise LaunchError(f"--backend: {error}") from error
    try:
        return (await find_model(pool, wanted, asyncio.get_running_loop().time() + ASKING_S)).name
    except BackendError as error:
        hint = HINTS.get(error.fault)
        raise LaunchError(f"{error}{f': {hint}' if hint else ''}") from error
    except ValueError as error:
        raise LaunchError(f"{error}; choose with --model") from error
    finally:
        await pool.aclose()
