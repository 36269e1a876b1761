"""Access checks before an application serves: an open cluster or endpoint is refused unless the settings allow it.

Ray is imported inside functions: a config file is checked by the same rules before Ray is started.
"""

import os
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from deployments.admission.auth import is_loopback
from deployments.admission.keys import ENVIRONMENT
from deployments.config import AppConfig, ControllerSettings, ControllerUserConfig, HttpSettings, KeyRecord


class AccessError(ValueError):
    """The cluster or endpoint would be open though the settings do not allow it, or ``user_config`` is malformed.

    The message says what to change.
    """


def require_authenticated_cluster(http: HttpSettings) -> None:
    """Checks that the cluster requires a token. Call it in a process of the cluster: a driver may have a token that the
    cluster does not require.

    Raises:
        AccessError: it requires none, so any client that reaches the cluster's ports can run code on it.
    """
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    if not is_token_auth_enabled() and not http.allow_unauthenticated_cluster:
        raise AccessError(
            "this Ray cluster runs without token authentication: anyone who reaches its ports can run code on it. "
            "Start it with the environment of scripts/environment (docs/operating.md), or set "
            "http.allow_unauthenticated_cluster: true if something else protects its ports"
        )


async def endpoint_host() -> str | None:
    """The address at which Serve's proxies listen; None without proxies."""
    import ray
    from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
    from ray.serve.config import ProxyLocation

    controller: Any = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    if await controller.get_proxy_location.remote() == ProxyLocation.Disabled:
        return None
    host: str | None = (await controller.get_http_config.remote()).host
    return host


def read_user_config(user_config: Any) -> ControllerUserConfig:
    """Validates a controller's ``user_config``.

    Raises:
        AccessError: it is malformed; the message names the field, and does not repeat a wrong digest or salt.
    """
    try:
        return ControllerUserConfig.model_validate(user_config)
    except ValidationError as error:
        raise AccessError(f"SearchController: {_places(error, 'user_config')}") from None


def changed_settings(config: AppConfig, told: ControllerUserConfig) -> ControllerSettings:
    """The controller's settings with the changes of its ``user_config``.

    Raises:
        AccessError: the changed settings are malformed; the message names the field.
    """
    try:
        return config.controller.changed(told.controller)
    except ValidationError as error:
        raise AccessError(f"SearchController: {_places(error, 'user_config', 'controller')}") from None
    except ValueError as error:
        raise AccessError(f"SearchController: user_config.controller.{error}") from None


def require_keys(
    records: tuple[KeyRecord, ...], http: HttpSettings, host: str | None, environment: Mapping[str, str] = os.environ
) -> None:
    """Checks that there are API keys, or that none are needed.

    Raises:
        AccessError: there are none, though the settings promise keys or other machines can reach ``host``.
    """
    if records:
        return
    if http.api_keys_file or environment.get(ENVIRONMENT):
        promise = f"http.api_keys_file {http.api_keys_file}" if http.api_keys_file else ENVIRONMENT
        raise AccessError(
            f"{promise} promises API keys, and SearchController's user_config has none. They are read where the "
            "application is built, which may be another node, or stand in the config (docs/operating.md)"
        )
    if host is not None and not is_loopback(host) and not http.allow_anonymous:
        raise AccessError(
            f"http_options.host {host} can be reached by other machines, and there are no API keys: set "
            f"http.api_keys_file or {ENVIRONMENT}, serve on 127.0.0.1, or set http.allow_anonymous: true"
        )


def _places(error: ValidationError, *within: str) -> str:
    return "; ".join(f"{'.'.join(map(str, (*within, *each['loc'])))}: {each['msg']}" for each in error.errors())
