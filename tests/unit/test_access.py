"""A Ray cluster without authentication is not served on unless that is said."""

import os
import subprocess
import sys

import pytest

ASKING = """
from deployments.startup.access import AccessError, require_authenticated_cluster
from deployments.config import HttpSettings
for allowed in (False, True):
    try:
        require_authenticated_cluster(HttpSettings(allow_unauthenticated_cluster=allowed))
    except AccessError as error:
        print(allowed, error)
    else:
        print(allowed, "served")
"""


@pytest.mark.parametrize("mode", ["token", "disabled"])
def test_a_cluster_open_to_all_is_refused_unless_that_is_said(mode: str) -> None:
    # In a process of its own: Ray reads the mode once.
    asked = subprocess.run(
        [sys.executable, "-c", ASKING],
        env=os.environ | {"RAY_AUTH_MODE": mode},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    unsaid, said = asked.stdout.splitlines()
    assert said == "True served"
    assert (unsaid != "False served") == (mode == "disabled")
    assert ("allow_unauthenticated_cluster: true" in unsaid) == (mode == "disabled")
