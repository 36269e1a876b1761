"""Servers that tests use, as Debian ships them: installed, or unpacked from their packages."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest


def program(name: str, packages: Sequence[str], directory: Path) -> tuple[str, dict[str, str]]:
    """The program's path and environment. Skips the test if it cannot be had.

    Args:
        packages: what is unpacked into ``directory``, with the libraries that the program needs.
    """
    if installed := shutil.which(name):
        return installed, dict(os.environ)
    with suppress(FileNotFoundError, subprocess.SubprocessError):
        subprocess.run(["apt-get", "download", *packages], cwd=directory, check=True, timeout=300)
    archives = list(directory.glob("*.deb"))
    if len(archives) < len(packages):
        pytest.skip(f"{name} is neither installed nor to be had by apt-get")
    for archive in archives:
        subprocess.run(["dpkg-deb", "-x", str(archive), str(directory)], check=True, timeout=60)
    libraries = sorted({str(path.parent) for path in (directory / "usr" / "lib").rglob("*.so*")})
    found = {**os.environ, "LD_LIBRARY_PATH": ":".join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")])}
    return str(directory / "usr" / "bin" / name), found
