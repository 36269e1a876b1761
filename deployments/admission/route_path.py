"""The path of a request without the application's route prefix, which Serve leaves in the path."""

from starlette.types import Scope


def route_path(scope: Scope) -> str:
    """``/v1/models`` for ``/banyan/v1/models`` where the application is served at ``/banyan``."""
    path: str = scope["path"]
    prefix: str = scope.get("root_path", "").rstrip("/")
    return path.removeprefix(prefix) if path == prefix or path.startswith(f"{prefix}/") else path
