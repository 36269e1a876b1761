"""Last test: the application ends, and with it everything that it started."""

import psutil
from ray import serve

from tests.faults.processes import assert_none_unused, below, running
from tests.serve.application import Application, until


def test_nothing_is_left_when_it_ends(application: Application, shared_memory_before: set[str]) -> None:
    processes = below(psutil.Process())[1:]
    replicas = [each for each in processes if f"ServeReplica:{application.NAME}:" in " ".join(each.cmdline())]
    engines = [child for replica in replicas for child in below(replica)]
    assert len(engines) > len(replicas)
    serve.delete(application.NAME)
    until(lambda: not running(engines), "all replicas and their engines have ended", 60.0)
    assert_none_unused(shared_memory_before)
