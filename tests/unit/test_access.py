"""An application is not served on a Ray cluster without authentication unless that is allowed explicitly."""

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
def test_an_unauthenticated_cluster_is_refused_unless_allowed(mode: str) -> None:
    # In a separate process: Ray reads the mode only once.
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
