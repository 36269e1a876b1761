"""Without the token, nothing can be executed on the cluster; other machines reach only the replicas' ports."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import psutil
import pytest
import ray
from ray.serve.generated.serve_pb2 import ASGIRequest
from ray.serve.generated.serve_pb2_grpc import ASGIServiceStub

from deployments.admission.auth import is_loopback
from tests.serve.application import Application

CALL_S = 20.0
JOINING = """
import asyncio, sys, ray
from ray import serve
ray.init(address=sys.argv[1], namespace="serve", logging_level="ERROR")
async def ask():
    return await asyncio.wait_for(serve.get_deployment_handle("Generator", sys.argv[2]).stats.remote(), 30)
print(asyncio.run(ask())["branches_alive"])
"""


class Listener(NamedTuple):
    """A TCP port that a process of the application listens on."""

    process: str
    host: str
    port: int

    @property
    def is_replica(self) -> bool:
        return self.process.startswith("ray::ServeReplica:")


def listeners(since: float) -> Iterator[Listener]:
    """Listening ports of this process, of the processes with its token, and of the cache servers, which do not have
    it."""
    token = os.environ["RAY_AUTH_TOKEN_PATH"]
    for process in psutil.process_iter():
        try:
            name = " ".join(process.cmdline())
            if (
                process.pid == os.getpid()
                or process.environ().get("RAY_AUTH_TOKEN_PATH") == token
                or ("lmcache" in name and process.create_time() >= since)
            ):
                for connection in process.net_connections("tcp"):
                    if connection.status == psutil.CONN_LISTEN:
                        yield Listener(name, connection.laddr.ip, connection.laddr.port)
        except psutil.Error:
            continue


@pytest.fixture
def replica_ports(application: Application) -> list[Listener]:
    """The ports to which callers send pickles, one for each replica."""
    return [each for each in listeners(application.started_at) if each.is_replica and not is_loopback(each.host)]


class Exploit:
    """Creates a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


def test_only_the_replicas_ports_can_be_reached_from_outside(idle: Application, replica_ports: list[Listener]) -> None:
    everything = list(listeners(idle.started_at))
    assert any("gcs_server" in each.process for each in everything)
    assert any("raylet" in each.process for each in everything)
    assert any("lmcache" in each.process for each in everything)
    known = {each.port for each in replica_ports}  # a replica's process is named after the method that it runs
    assert [each for each in everything if not is_loopback(each.host) and each.port not in known] == []
    deployments = ("Generator", "ProcessRewardModel", "SearchController", "BatchRunner")
    assert len(replica_ports) == sum(len(idle.replica_pids(deployment)) for deployment in deployments)


def test_a_replicas_port_unpickles_messages_only_with_the_token(
    idle: Application, replica_ports: list[Listener], tmp_path: Path
) -> None:
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text()
    for index, listener in enumerate(replica_ports):
        with grpc.insecure_channel(f"127.0.0.1:{listener.port}") as channel:
            stub = ASGIServiceStub(channel)
            for sent in ([], [("authorization", "Bearer guessed")], [("authorization", f"Bearer {token}")]):
                deed = tmp_path / str(index)
                request = ASGIRequest(pickled_request_metadata=pickle.dumps(Exploit(deed)))
                with pytest.raises(grpc.RpcError) as ended:
                    stub.HandleRequest(request, metadata=sent, timeout=CALL_S)
                has_token = token in str(sent)
                assert (ended.value.code() is grpc.StatusCode.UNAUTHENTICATED) == (not has_token)
                # With the token it is executed, which is why there is a token.
                assert deed.exists() == has_token


def test_handles_require_the_token(idle: Application, tmp_path: Path) -> None:
    other = tmp_path / "token"
    other.write_text("0" * 64)
    tokens = {"none": {"RAY_AUTH_MODE": "disabled"}, "another": {"RAY_AUTH_TOKEN_PATH": str(other)}, "ours": {}}
    address = ray.get_runtime_context().gcs_address

    def joined(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", JOINING, address, idle.NAME],
            env=os.environ | {"RAY_NUM_REDIS_GET_RETRIES": "3"} | environment,
            capture_output=True,
            check=False,
            text=True,
            timeout=120,
        )

    with ThreadPoolExecutor(len(tokens)) as pool:  # a refusal takes a second a try
        ended = dict(zip(tokens, pool.map(joined, tokens.values()), strict=True))
    assert ended["ours"].returncode == 0, ended["ours"].stderr
    assert "0" in ended["ours"].stdout.split()
    for whose in ("none", "another"):
        assert ended[whose].returncode != 0, whose
        assert "0" not in ended[whose].stdout.split()
        assert "auth" in ended[whose].stderr.lower(), ended[whose].stderr
