"""Reading a Serve config file, checked as far as possible before anything is started."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from cluster.launch.errors import LaunchError

BUILDER = "deployments.app:build"
MOST_BYTES = 1 << 20


def read_config(path: Path | None, host: str | None = None, port: int | None = None) -> dict[str, Any]:
    """The file's content, or without a file the application with its defaults. ``host`` and ``port``
    replace what it says under ``http_options``.

    Raises:
        LaunchError: it cannot be read or says something wrong; names the place and what is allowed.
    """
    config = (
        _load(path) if path else {"applications": [{"name": "banyan", "route_prefix": "/", "import_path": BUILDER}]}
    )
    source = str(path or "the default configuration")
    applications = config.get("applications") if isinstance(config, dict) else None
    if not isinstance(applications, list) or not applications:
        raise LaunchError(f"{source} names no applications")
    for place, application in enumerate(applications):
        if not isinstance(application, dict):
            raise LaunchError(f"{source}: applications.{place} must be a mapping")
        if application.get("import_path") == BUILDER:
            _check_args(f"{source}: applications.{place}.args", application.get("args") or {})
    options = config.get("http_options") or {}
    if not isinstance(options, dict):
        raise LaunchError(f"{source}: http_options must be a mapping")
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    return {**config, "http_options": options | given}


def _load(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise LaunchError(f"{path} is longer than {MOST_BYTES:,} bytes")
        return yaml.safe_load(content.decode("utf-8"))
    except OSError as error:
        raise LaunchError(f"cannot read {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise LaunchError(f"{path} is not YAML: {error}") from error


def _check_args(place: str, args: object) -> None:
    from deployments.config import AppConfig

    try:
        AppConfig.model_validate(args)
    except ValidationError as error:
        wrong = [f"{place}.{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise LaunchError("\n".join(wrong)) from error
