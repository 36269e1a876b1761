"""The two checkouts that are compared, and how each one's ``banyan`` command is run."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from deployments.startup.environment import ASSIGNMENT

ROOT = Path(__file__).resolve().parents[2]
STAMP = ".banyan"
"""Written by ``scripts/setup`` into an environment; its first word is the hardware, which names the lock file."""
RAY_VARIABLES = frozenset({"RAY_ADDRESS", "RAY_TMPDIR"})
"""Would make an application join another Ray cluster, or share a directory with it."""


class Checkout(NamedTuple):
    """A source tree and the interpreter that runs it."""

    name: str
    root: Path
    python: Path

    @property
    def project(self) -> dict[str, Any]:
        """The ``[project]`` table of its ``pyproject.toml``."""
        with (self.root / "pyproject.toml").open("rb") as file:
            table: dict[str, Any] = tomllib.load(file)["project"]
        return table

    @property
    def command(self) -> list[str]:
        """The ``banyan`` command of this tree, whatever command the environment has installed."""
        module, _, attribute = self.project["scripts"]["banyan"].partition(":")
        code = f"import sys; import {module} as command; sys.argv[0] = 'banyan'; command.{attribute}()"
        return [str(self.python), "-c", code]

    @property
    def variables(self) -> set[str]:
        """Names of the environment variables that this tree sets for its processes."""
        lines = (self.root / "scripts" / "environment").read_text(encoding="utf-8").splitlines()
        return {found["name"] for line in lines if (found := ASSIGNMENT.fullmatch(line))}

    def environment(self, inherited: Mapping[str, str], omitted: Iterable[str], directory: Path) -> dict[str, str]:
        """The environment of this tree's processes.

        Its modules and entry points take precedence over the installed ones. The ``omitted`` variables are left to the
        application, which sets them itself. Temporary files go to ``directory``, whose path is to be short, for Ray's
        sockets.
        """
        kept = {name: value for name, value in inherited.items() if name not in {*omitted, *RAY_VARIABLES}}
        path = os.pathsep.join((str(self.root), str(self._write_metadata(directory / "metadata"))))
        return kept | {"PYTHONPATH": path, "TMPDIR": str(directory)}

    def _write_metadata(self, directory: Path) -> Path:
        """Writes a distribution with this tree's entry points: vLLM finds its plugins by the first one on the path."""
        project = self.project
        distribution = directory / f"{project['name']}-{project['version']}.dist-info"
        distribution.mkdir(parents=True, exist_ok=True)
        header = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        (distribution / "METADATA").write_text(header, encoding="utf-8")
        groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
        lines = [
            line
            for group, entries in groups.items()
            for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
        ]
        (distribution / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return directory


def this_checkout() -> Checkout:
    """The working tree that this program is part of, uncommitted changes included."""
    return Checkout("ours", ROOT, Path(sys.executable))


def short_commit(revision: str) -> str:
    """Returns the abbreviated hash of a revision.

    Raises:
        ValueError: there is no such commit.
    """
    done = subprocess.run(
        ["git", "rev-parse", "--short", "--verify", "--end-of-options", f"{revision}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ValueError(f"{revision!r} is no commit: {done.stderr.strip()}")
    return done.stdout.strip()


@contextmanager
def worktree(commit: str, directory: Path) -> Iterator[None]:
    """A git worktree of the commit in ``directory`` (not there yet), removed at the end."""
    try:
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", directory, commit], cwd=ROOT, check=True)
        yield
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", directory], cwd=ROOT, check=False, capture_output=True)


@contextmanager
def base_checkout(commit: str, directory: Path) -> Iterator[Checkout]:
    """A git worktree of the commit in ``directory`` (not there yet), removed at the end.

    It runs in this program's environment where both trees lock the same packages, else in one of its own, which takes
    minutes to install.
    """
    with worktree(commit, directory):
        ours, base = this_checkout(), Checkout("base", directory, directory / ".venv" / "bin" / "python")
        hardware = hardware_of(Path(sys.prefix))
        if same_packages(ours.root, base.root, hardware):
            base = base._replace(python=ours.python)
        else:
            omitted = ours.variables | base.variables | {"VENV"}
            kept = {name: value for name, value in os.environ.items() if name not in omitted}
            subprocess.run(["scripts/setup"], cwd=directory, env=kept | {"BANYAN_HARDWARE": hardware}, check=True)
        yield base


def hardware_of(environment: Path) -> str:
    """The hardware that an environment was set up for: cpu or cuda."""
    return (environment / STAMP).read_text(encoding="utf-8").split()[0]


def same_packages(ours: Path, base: Path, hardware: str) -> bool:
    """Whether the lock files of two trees are equal byte for byte."""
    locks = [root / "requirements" / f"{hardware}.lock" for root in (ours, base)]
    return all(lock.is_file() for lock in locks) and locks[0].read_bytes() == locks[1].read_bytes()
