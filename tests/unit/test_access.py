"""A Ray cluster without authentication is not served on unless that is said."""

import os
import subprocess
import sys

import pytest

ASKING = """
import sys
from deployments.access import AccessError, require_authenticated_cluster
from deployments.config import HttpSettings
try:
    require_authenticated_cluster(HttpSettings(allow_unauthenticated_cluster=sys.argv[1] == "True"))
except AccessError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize(("mode", "allowed"), [("token", False), ("disabled", False), ("disabled", True)])
def test_a_cluster_open_to_all_is_refused_unless_that_is_said(mode: str, allowed: bool) -> None:
    # In a process of its own: Ray reads the mode once.
    asked = subprocess.run(
        [sys.executable, "-c", ASKING, str(allowed)],
        env=os.environ | {"RAY_AUTH_MODE": mode},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (asked.returncode != 0) == (mode == "disabled" and not allowed), asked.stderr
    assert ("allow_unauthenticated_cluster: true" in asked.stderr) == (asked.returncode != 0)
