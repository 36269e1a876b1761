"""Reads a Serve config file and checks it as far as possible before anything starts."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from inspect import isclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import BaseModel, Field, ValidationError, field_validator

from cluster.launch.errors import LaunchError
from cluster.launch.yaml_file import read_yaml
from deployments.engines.yaml_values import BOOLEANS, Boolean, as_meant, with_advice
from deployments.startup.environment import set_environment
from search.tools.nearest import no_such

if TYPE_CHECKING:
    from deployments.config import AppConfig

BUILDER = "deployments.app:build"
CONTROLLER = "SearchController"
DEPLOYMENTS = ("Generator", "ProcessRewardModel", CONTROLLER)
BATCH_RUNNER = "BatchRunner"
"""The deployment that only an application with a store has."""
DEFAULT: dict[str, Any] = {
    "http_options": {"host": "127.0.0.1"},
    "applications": [{"name": "banyan", "route_prefix": "/", "import_path": BUILDER}],
}
HOST = re.compile(r"[\w.:%-]+")

M = TypeVar("M", bound=BaseModel)


class HttpOptions(BaseModel):
    """Serve's address: its defaults, with the bounds that it does not check."""

    host: str = "0.0.0.0"
    port: int = Field(8000, ge=1, le=65535)

    @field_validator("host")
    @classmethod
    def _is_a_host(cls, host: str) -> str:
        if not HOST.fullmatch(host):
            raise ValueError("must be an address (IPv6 without brackets: ::1) or a host's name")
        return host


def read_config(
    given: Path | dict[str, Any] | None, host: str | None = None, port: int | None = None, *, keys_to_come: bool = False
) -> dict[str, Any]:
    """Returns the content of a config file, or ``given`` itself if it is that, or without any the application with its
    defaults. ``host`` and ``port`` replace those in ``http_options``. ``keys_to_come``: whether the ``user_config`` may
    lack keys, since the config is completed and deployed later, perhaps from another machine.

    Raises:
        LaunchError: the file cannot be read or is invalid; the message names the field and what is allowed.
    """
    config = read_yaml(given) if isinstance(given, Path) else given or DEFAULT
    source = str(given) if isinstance(given, Path) else "the default configuration"
    _refuse(f"{source}: ", _misread_by_serve(config))
    applications = config.get("applications") if isinstance(config, dict) else None
    if not isinstance(applications, list) or not applications:
        raise LaunchError(f"{source} has no applications")
    options = {} if (given := config.get("http_options")) is None else given
    if not isinstance(options, dict):
        raise LaunchError(f"{source}: http_options must be a mapping")
    if bool(options.get("ssl_keyfile")) != bool(options.get("ssl_certfile")):
        raise LaunchError(f"{source}: http_options: TLS needs both ssl_keyfile and ssl_certfile")
    options = options | {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    address = _checked(f"{source}: http_options", HttpOptions, options)
    for index, application in enumerate(applications):
        if not isinstance(application, dict):
            raise LaunchError(f"{source}: applications.{index} must be a mapping")
        if application.get("import_path") == BUILDER:
            where = f"{source}: applications.{index}"
            args = _checked_args(where, application)
            _check_deployments(where, application, args, address.host, keys_to_come)
            # The engines of a cluster that is joined, or deployed to later, may have their models on other machines.
            if not keys_to_come and not os.environ.get("RAY_ADDRESS"):
                _refuse(f"{where}.args.", args.missing_models())
                _require_engines(f"{where}.args", args)
    return {**config, "http_options": options}


def _require_engines(where: str, args: "AppConfig") -> None:
    if args.engines and find_spec("vllm") is None:
        raise LaunchError(
            f"{where}: {', '.join(args.engines)}: no engine is installed here. Install one with `make setup`, or from "
            "a checkout with pip install '.[cpu]' or '.[cuda]'; `banyan serve --backend URL` needs none"
        )


def app_config(config: Mapping[str, Any]) -> "AppConfig":
    """The settings of the application in what `read_config` returned.

    Raises:
        LaunchError: there is no such application.
    """
    for index, application in enumerate(config["applications"]):
        if application.get("import_path") == BUILDER:
            return _checked_args(f"applications.{index}", application)
    raise LaunchError(f"no application has the import_path {BUILDER}")


def _checked_args(where: str, application: Mapping[str, Any]) -> "AppConfig":
    from deployments.config import AppConfig

    return _checked(f"{where}.args", AppConfig, application.get("args") or {})


def _checked(where: str, model: type[M], given: object) -> M:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        wrong = [
            f"{where}.{'.'.join(map(str, each['loc']))}: {with_advice(each['msg'], each['type'], each['input'])}"
            for each in error.errors()
        ]
        raise LaunchError("\n".join(wrong)) from error


def _refuse(where: str, faults: Iterable[str]) -> None:
    """Raises a LaunchError with a line for each fault, if there are any."""
    if lines := [f"{where}{fault}" for fault in faults]:
        raise LaunchError("\n".join(lines))


def _misread_by_serve(config: object) -> Iterator[str]:
    """Names in the file that Serve does not know, and would ignore; booleans that it would take for numbers; and
    environment variables that are no texts, for which Ray would fail."""
    set_environment()
    from ray.serve.schema import ServeDeploySchema  # imported here: takes seconds

    return _misread(ServeDeploySchema, config, "")


def _misread(model: type[BaseModel], given: object, path: str) -> Iterator[str]:
    if isinstance(given, list):
        for index, each in enumerate(given):
            yield from _misread(model, each, f"{path}{index}.")
    if not isinstance(given, Mapping):
        return
    for name, value in given.items():
        if name not in model.model_fields:
            yield f"{path}{name}: {no_such('setting', name, model.model_fields)}"
        elif inner := _models_in(model.model_fields[name].annotation):
            yield from _misread(inner[0], value, f"{path}{name}.")
        elif isinstance(as_meant(model.model_fields[name].annotation, value), Boolean):
            yield f"{path}{name}: may not be a boolean; {BOOLEANS}"
        elif name == "runtime_env" and isinstance(value, Mapping):
            yield from _no_texts(value.get("env_vars") or {}, f"{path}{name}.env_vars")


def _no_texts(variables: object, path: str) -> Iterator[str]:
    if not isinstance(variables, Mapping):
        yield f"{path}: must be a mapping"
        return
    for name, value in variables.items():
        if not isinstance(value, str):
            yield f"{path}.{name}: {with_advice('must be a text', 'string_type', value)}"


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Models that an annotation names: itself, as what a list contains, or as an alternative."""
    if isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for each in get_args(annotation) for model in _models_in(each)]


def _check_deployments(
    where: str, application: dict[str, Any], args: "AppConfig", host: str, keys_to_come: bool
) -> None:
    """Checks what Serve or a controller would refuse only after everything else has started. Keys that are read at
    build time are not checked: the application may be built on another machine."""
    from deployments.admission.keys import ENVIRONMENT
    from deployments.startup.access import AccessError, changed_settings, read_user_config, require_keys

    deployments = application.get("deployments") or []
    if not isinstance(deployments, list) or not all(isinstance(each, dict) for each in deployments):
        raise LaunchError(f"{where}.deployments must be a list of mappings")
    known = DEPLOYMENTS if args.controller.store.path is None else (*DEPLOYMENTS, BATCH_RUNNER)
    _refuse(
        f"{where}.deployments.",
        (
            f"{index}.name: {each['name']}: {no_such('deployment', each['name'], known)}"
            for index, each in enumerate(deployments)
            if "name" in each and each["name"] not in known
        ),
    )
    user_config = next(
        (
            each["user_config"]
            for each in deployments
            if each.get("name") == CONTROLLER and each.get("user_config") is not None
        ),
        None,
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
