"""Reads a Serve config file and checks it as far as possible before anything starts."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from cluster.launch.errors import LaunchError

if TYPE_CHECKING:
    from deployments.config import AppConfig

BUILDER = "deployments.app:build"
CONTROLLER = "SearchController"
DEFAULT: dict[str, Any] = {
    "http_options": {"host": "127.0.0.1"},
    "applications": [{"name": "banyan", "route_prefix": "/", "import_path": BUILDER}],
}
SERVES_HOST = "0.0.0.0"
"""Serve's default host."""
MAX_BYTES = 1 << 20


def read_config(
    path: Path | None, host: str | None = None, port: int | None = None, *, keys_to_come: bool = False
) -> dict[str, Any]:
    """Returns the file's content, or without a file the application with its defaults. ``host`` and ``port`` replace
    those in ``http_options``. ``keys_to_come``: whether the ``user_config`` may lack keys, since it gets them later.

    Raises:
        LaunchError: the file cannot be read or is invalid; the message names the field and what is allowed.
    """
    config = _load(path) if path else DEFAULT
    source = str(path or "the default configuration")
    applications = config.get("applications") if isinstance(config, dict) else None
    if not isinstance(applications, list) or not applications:
        raise LaunchError(f"{source} names no applications")
    options = config.get("http_options") or {}
    if not isinstance(options, dict):
        raise LaunchError(f"{source}: http_options must be a mapping")
    if bool(options.get("ssl_keyfile")) != bool(options.get("ssl_certfile")):
        raise LaunchError(f"{source}: http_options: TLS needs both ssl_keyfile and ssl_certfile")
    options = options | {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    for index, application in enumerate(applications):
        if not isinstance(application, dict):
            raise LaunchError(f"{source}: applications.{index} must be a mapping")
        if application.get("import_path") == BUILDER:
            args = _checked_args(f"{source}: applications.{index}.args", application.get("args") or {})
            reached_at = options.get("host", SERVES_HOST)
            _check_user_config(f"{source}: applications.{index}", application, args, reached_at, keys_to_come)
    return {**config, "http_options": options}


def app_config(config: Mapping[str, Any]) -> "AppConfig":
    """The settings of the application in what `read_config` returned.

    Raises:
        LaunchError: there is no such application.
    """
    for index, application in enumerate(config["applications"]):
        if application.get("import_path") == BUILDER:
            return _checked_args(f"applications.{index}.args", application.get("args") or {})
    raise LaunchError(f"no application has the import_path {BUILDER}")


def _load(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise LaunchError(f"{path} is longer than {MAX_BYTES:,} bytes")
        return yaml.safe_load(content.decode("utf-8"))
    except OSError as error:
        raise LaunchError(f"cannot read {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise LaunchError(f"{path} is not YAML: {error}") from error


def _checked_args(where: str, args: object) -> "AppConfig":
    from deployments.config import AppConfig

    try:
        return AppConfig.model_validate(args)
    except ValidationError as error:
        wrong = [f"{where}.{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise LaunchError("\n".join(wrong)) from error


def _check_user_config(
    where: str, application: dict[str, Any], args: "AppConfig", host: str, keys_to_come: bool
) -> None:
    """Checks what a controller would refuse only after everything else has started. Keys that are read at build time
    are not checked: the application may be built on another machine."""
    from deployments.admission.keys import ENVIRONMENT
    from deployments.startup.access import AccessError, changed_settings, read_user_config, require_keys

    deployments = application.get("deployments") or []
    if not isinstance(deployments, list) or not all(isinstance(each, dict) for each in deployments):
        raise LaunchError(f"{where}.deployments must be a list of mappings")
    user_config = next(
        (each["user_config"] for each in deployments if each.get("name") == CONTROLLER and "user_config" in each), None
    )
    try:
        if user_config is not None:
            read = read_user_config(user_config)
            changed_settings(args, read)
            if "keys" in user_config or not keys_to_come:
                require_keys(read.keys, args.http, host)
        elif not args.http.api_keys_file and not os.environ.get(ENVIRONMENT):
            require_keys((), args.http, host)
    except AccessError as error:
        raise LaunchError(f"{where}: {error}") from error
