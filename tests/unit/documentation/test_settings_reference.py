"""docs/settings.md matches the settings."""

import subprocess
import sys

from tests.unit.documentation.pages import ROOT


def test_the_settings_reference_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "settings_reference.py"), "--check"]
    done = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": ""}, check=False, timeout=60)
    assert done.returncode == 0, "run scripts/settings_reference.py"
