"""The environment of tests that start Ray: as `make run` sets it, but with their own token. Import it before Ray."""

import os
import tempfile

from cluster.launch.token import ensure_token
from deployments.startup.environment import set_environment

DIRECTORY = tempfile.TemporaryDirectory(prefix="banyan-tests")
os.environ["RAY_AUTH_TOKEN_PATH"] = f"{DIRECTORY.name}/ray_token"
set_environment()
ensure_token()
