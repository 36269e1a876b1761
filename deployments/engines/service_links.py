"""Environment variables that Kubernetes sets in a pod for every Service of its namespace, unless the pod says
``enableServiceLinks: false``.

A Service named ``vllm`` sets ``VLLM_PORT=tcp://10.0.0.1:8000``, a variable in which vLLM expects a number: every engine
ends at its start. LMCache, Ray and torch have variables of such names too.
"""

import os
import re
from collections.abc import MutableMapping

LINK = re.compile(r"(?:tcp|udp|sctp)://\S+")


def drop_service_links(environment: MutableMapping[str, str] = os.environ) -> None:
    """Removes every variable ``…_PORT`` whose value is the URL of a Service. No program means such a value."""
    for name in [name for name, value in environment.items() if name.endswith("_PORT") and LINK.fullmatch(value)]:
        del environment[name]
