"""Adds the records of API keys to a Serve config, so that keys can change without a restart."""

from typing import Any

from cluster.launch.config_file import BUILDER, CONTROLLER
from cluster.launch.errors import LaunchError
from deployments.admission.keys import ENVIRONMENT, read_records
from deployments.config import AppConfig, ControllerUserConfig


def with_key_records(config: dict[str, Any]) -> dict[str, Any]:
    """The config of `read_config` with its keys' records in SearchController's ``user_config``. The keys are those that
    the application would find if it were built here.

    Raises:
        LaunchError: the keys cannot be read, or there are none.
    """
    applications = [
        _with_records(application) if application.get("import_path") == BUILDER else application
        for application in config["applications"]
    ]
    return {**config, "applications": applications}


def _with_records(application: dict[str, Any]) -> dict[str, Any]:
    try:
        records = read_records(AppConfig.model_validate(application.get("args") or {}).http.api_keys_file)
    except ValueError as error:
        raise LaunchError(str(error)) from error
    if not records:
        raise LaunchError(f"no keys: neither args.http.api_keys_file nor {ENVIRONMENT} is set")
    deployments: list[dict[str, Any]] = application.get("deployments") or []
    others = [each for each in deployments if each.get("name") != CONTROLLER]
    ours: dict[str, Any] = next((each for each in deployments if each.get("name") == CONTROLLER), {"name": CONTROLLER})
    keys = ControllerUserConfig(keys=records).model_dump(mode="json", include={"keys"})
    user_config = (ours.get("user_config") or {}) | keys
    return {**application, "deployments": [*others, {**ours, "user_config": user_config}]}
