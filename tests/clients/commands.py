"""Commands of the client tests: ``banyan``, and programs in the environments of `make test-clients`."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RUN_S = 900.0


def program_of(client: str, name: str) -> Path:
    """A program in a client's own environment."""
    program = ROOT / ".venv-clients" / client / "bin" / name
    assert program.is_file(), f"no {program}: `make test-clients` sets it up"
    return program


def banyan(directory: Path, *arguments: str) -> None:
    run([sys.executable, "-m", "cluster.cli.main", *arguments], directory)


def run(command: list[str], directory: Path) -> None:
    """Runs a command to its end; its output is shown if it fails."""
    # No downloads, and nothing in the user's caches.
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(directory / "huggingface")}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        cwd=directory,
        env=os.environ | offline | {"PYTHONPATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
