"""An installation without engines, `pip install .`, imports all of Banyan but the engines and the training.

As a program, this file imports all that, with the packages hidden that only an extra of pyproject.toml asks for.
"""

import importlib
import json
import pkgutil
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib.machinery import PathFinder
from importlib.metadata import distributions, packages_distributions
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("search", "deployments", "kvstore", "cluster")
NEED_ENGINES = (
    "deployments.engines",  # of which the other packages import what works without engines
    "kvstore.connector",
    "kvstore.memory.engine_geometry",
    "cluster.training",
    "cluster.cli.train_prm",
)
PROGRAMS = ("cluster.dashboards", "cluster.evaluation.code_test_process")
"""Modules that are run: one with a package of the tools, one that reads its standard input."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def only_with_extras() -> set[str]:
    """The modules of all installed packages that the dependencies without extras do not ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requires = {canonical(each.metadata["Name"]): list(each.requires or []) for each in distributions()}
    taken = runpy.run_path(str(ROOT / "scripts" / "lock.py"))["closure"](project["dependencies"], requires)
    return {
        module
        for module, providers in packages_distributions().items()
        if module not in PRODUCT and not taken & {canonical(each) for each in providers}
    }


class HidingFinder:
    """Finds modules as Python does, but for those that are hidden."""

    def __init__(self, hidden: set[str]) -> None:
        self._hidden = hidden

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        hidden = name.partition(".")[0] in self._hidden
        return None if hidden else PathFinder.find_spec(name, path, target)


def main() -> None:
    """Prints as JSON which modules were hidden, which were imported, which failed for what reason, and what commands
    say that need engines."""
    hidden, failed, imported = only_with_extras(), {}, []
    sys.meta_path[sys.meta_path.index(PathFinder)] = HidingFinder(hidden)
    for package in PRODUCT:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not module.name.startswith((*NEED_ENGINES, *PROGRAMS)):
                try:
                    importlib.import_module(module.name)
                except ModuleNotFoundError as error:
                    failed[module.name] = str(error)
                else:
                    imported.append(module.name)
    print(
        json.dumps({"hidden": sorted(hidden), "imported": imported, "failed": failed, "said": said(), "pages": pages()})
    )


def said() -> dict[str, str]:
    from typer.testing import CliRunner

    from cluster.cli.main import app

    commands = {"serve": ["--port", "1"], "train-prm": [__file__, "out"]}
    return {name: CliRunner().invoke(app, [name, *arguments]).output for name, arguments in commands.items()}


def pages() -> list[str]:
    """The pages of an endpoint: that of its bodies is made of files of vLLM's."""
    from fastapi import FastAPI

    from deployments.http.documentation import add_page

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    add_page(app)
    return [str(route) for route in app.routes]


def test_all_but_engines_and_training_imports_without_their_packages() -> None:
    """In a process of its own: here other tests may have imported engines, and Ray has added packages to the path."""
    command = [sys.executable, "-W", "ignore", "-c", f"import runpy; runpy.run_path({__file__!r}, run_name='__main__')"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["failed"] == {}
    assert {"vllm", "torch", "lmcache", "transformers", "safetensors", "huggingface_hub"} <= {*told["hidden"]}
    assert told["pages"] == []
    assert "no engine is installed here" in told["said"]["serve"]
    assert "this command needs torch, which comes with engines" in told["said"]["train-prm"]
    assert {"deployments.app", "deployments.controller", "cluster.cli.serve", "search.run.runner"} <= {
        *told["imported"]
    }


if __name__ == "__main__":
    main()
