"""The endpoint and the config file of commands that name none."""

from pathlib import Path

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_CONFIG = Path("serve_config.yaml")


def config_file(given: Path | None) -> Path | None:
    """The config file that was given, else the default one; None where there is none."""
    return DEFAULT_CONFIG if given is None and DEFAULT_CONFIG.is_file() else given
