"""The commands of docs/operating.md as a user types them, in a shell that sourced what the docs name.

It takes several minutes, Ray's own ports and port 8000, so it is not among the other tests: `make test-commands`.
"""

import json
import signal
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.commands.shell import COMMAND_S, ROOT, START_S, URL, Shell, head, replicas, until

DASHBOARD = "http://127.0.0.1:8265"
ROTATE_S = 15.0
"""Time within which a removed key must be refused."""
DEPLOYMENTS = 4
"""Generator, reward model, controller and batch runner: one replica each."""
KEYS = {name: f"key-of-{name}-0123456789" for name in ("ann", "bob", "cleo")}

pytestmark = pytest.mark.timeout(3000)


def by_hand(shell: Shell, tmp_path: Path) -> None:
    """All commands that docs/operating.md gives for one machine, typed by hand."""
    problems = tmp_path / "problems.jsonl"
    with head(shell):
        shell("serve deploy serve_config.yaml")
        shell.wait_for("RUNNING")
        assert httpx.get(f"{URL}/health", timeout=60).status_code == 200
        shell(f"banyan problems --n 4 --seed 1 --output {problems}")
        output = shell(
            f"ray job submit -- banyan eval --url {URL} --problems {problems} --strategy greedy --strategy beam_search"
        )
        assert "succeeded" in output
        assert "beam_search" in output
        results = tmp_path / "results.jsonl"
        output = shell(f"ray job submit -- banyan batch {problems} {results} --n 4")
        assert "the application 'banyan' of this cluster, by its handles" in output
        assert "4 lines: 4 results" in output
        assert len(results.read_text().splitlines()) == 4
        assert httpx.get(f"{DASHBOARD}/api/version").status_code == 401
        token = shell("ray get-auth-token").strip()
        cookie = {"ray-authentication-token": token}  # as the docs do where the token is typed in
        assert httpx.get(f"{DASHBOARD}/api/version", cookies=cookie).status_code == 200
        shell("serve shutdown -y")
        running = shell.start("serve run serve_config.yaml", tmp_path / "serve_run")
        try:
            shell.wait_for("RUNNING")  # the config's log level is WARNING, so `serve run` itself prints nothing
            assert httpx.get(f"{URL}/health", timeout=60).status_code == 200
        finally:
            running.send_signal(signal.SIGINT)
            running.wait(COMMAND_S)


def test_by_hand_before_a_make_run(shell: Shell, tmp_path: Path) -> None:
    by_hand(shell, tmp_path)


def test_make_run(shell: Shell, tmp_path: Path) -> None:
    log = tmp_path / "log"
    running = shell.start("banyan serve --config serve_config.yaml", log)  # what `make run` executes
    try:
        until(lambda: "Ctrl-C" in log.read_text() or running.poll() is not None, log.read_text)
        welcome = log.read_text()
        assert running.poll() is None, welcome
        assert f"dashboard {DASHBOARD}" in welcome
        token = Path(welcome.split("token in ")[1].split()[0]).read_text()
        bearer = {"Authorization": f"Bearer {token}"}
        assert httpx.get(f"{DASHBOARD}/api/version").status_code == 401
        assert httpx.get(f"{DASHBOARD}/api/version", headers=bearer).status_code == 200
        assert shell.status()["status"] == "RUNNING"  # the same commands reach this application
    finally:
        running.send_signal(signal.SIGINT)
        assert running.wait(COMMAND_S) == 0, log.read_text()
    assert not (shell.home / ".ray").exists()


def test_with_a_certificate_keys_are_encrypted(shell: Shell, tmp_path: Path) -> None:
    """TLS in Serve's own proxies, as docs/operating.md has it: by the certificate only, and nothing without it."""
    certificate, key, config_file = tmp_path / "certificate.pem", tmp_path / "key.pem", tmp_path / "config.yaml"
    shell(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=DNS:localhost "
        f"-keyout {key} -out {certificate}"
    )
    config = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    config["http_options"] |= {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
    config_file.write_text(yaml.safe_dump(config))
    log = tmp_path / "log"
    running = shell.start(f"env BANYAN_API_KEYS={KEYS['ann']} banyan serve --config {config_file}", log)
    try:
        until(lambda: "Ctrl-C" in log.read_text() or running.poll() is not None, log.read_text)
        welcome = log.read_text()
        assert running.poll() is None, welcome
        assert "https://127.0.0.1:8000" in welcome
        url = "https://localhost:8000"
        with httpx.Client(verify=ssl.create_default_context(cafile=certificate)) as client:
            models = f"{url}/v1/models"
            assert client.get(models).status_code == 401
            assert client.get(models, headers={"Authorization": f"Bearer {KEYS['ann']}"}).status_code == 200
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(models)
        with pytest.raises(httpx.TransportError):
            httpx.get("http://localhost:8000/v1/models")
        solved = shell(f"env SSL_CERT_FILE={certificate} BANYAN_API_KEY={KEYS['ann']} banyan solve '2+3' --url {url}")
        assert "tokens" in solved
    finally:
        running.send_signal(signal.SIGINT)
        assert running.wait(COMMAND_S) == 0, log.read_text()


def test_by_hand_after_a_make_run(shell: Shell, tmp_path: Path) -> None:
    by_hand(shell, tmp_path)


def test_keys_can_be_rotated_live_and_missing_ones_are_an_error(shell: Shell, tmp_path: Path) -> None:
    keys_file, config_file = tmp_path / "api.keys", tmp_path / "config.yaml"
    config = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    config["applications"][0]["args"]["http"] = {"api_keys_file": str(keys_file)}
    config_file.write_text(yaml.safe_dump(config))
    deployed = tmp_path / "deployed.yaml"

    def rotate(*names: str) -> None:
        keys_file.write_text("".join(f"{KEYS[name]}\n" for name in names))
        shell(f"banyan keys --config {config_file} > {deployed} && serve deploy {deployed}")

    with head(shell):
        # The task that builds the application finds no keys where it runs.
        shell(f"serve deploy {config_file}")
        assert f"{keys_file} cannot be read on" in shell.wait_for("DEPLOY_FAILED")["message"]

        rotate("ann", "bob")
        shell.wait_for("RUNNING")
        assert answers(None) == 401
        assert (answers("ann"), answers("bob"), answers("cleo")) == (200, 200, 401)

        before = replicas(shell)
        assert len(before) == DEPLOYMENTS
        with load("bob") as seen:
            rotate("bob", "cleo")
            changed = time.monotonic()
            until(lambda: answers("ann") == 401, lambda: "the removed key is accepted", ROTATE_S)
            until(lambda: answers("cleo") == 200, lambda: "the new key is refused", ROTATE_S)
            print(f"keys changed {time.monotonic() - changed:.1f} s after `serve deploy` returned")
        assert len(seen) > 10
        assert set(seen) == {200}
        assert replicas(shell) == before

        # A controller that gets no keys although some were promised refuses to start, and says why.
        config["applications"][0]["deployments"] = [{"name": "SearchController", "user_config": {"keys": []}}]
        deployed.write_text(yaml.safe_dump(config))
        shell(f"serve deploy {deployed}")
        status = until(
            lambda: found if "promises API keys" in (found := json.dumps(shell.status())) else None,
            lambda: json.dumps(shell.status()),
            START_S,
        )
        assert str(keys_file) in status
        assert answers(None) != 200
        rotate("cleo")
        shell.wait_for("RUNNING")
        assert (answers("cleo"), answers("bob"), answers(None)) == (200, 401, 401)


def test_limits_and_replicas_change_while_it_serves(shell: Shell, tmp_path: Path) -> None:
    """A limit changes, then one generator is added, then one removed, under load: no engine restarts, and no client
    notices."""
    keys_file, config_file, deployed = (tmp_path / name for name in ("api.keys", "config.yaml", "deployed.yaml"))
    keys_file.write_text(f"{KEYS['ann']}\n")
    config = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    application = config["applications"][0]
    application["args"]["http"] = {"api_keys_file": str(keys_file)}

    def deploy(generators: int, **controller: Any) -> None:
        application["deployments"] = [
            {"name": "Generator", "num_replicas": generators},
            {"name": "SearchController", "user_config": {"controller": controller}},
        ]
        config_file.write_text(yaml.safe_dump(config))
        shell(f"banyan keys --config {config_file} > {deployed} && serve deploy {deployed}")

    def engines() -> dict[int, str]:
        return {pid: name for pid, name in replicas(shell).items() if "Generator" in name or "RewardModel" in name}

    with head(shell):
        deploy(1)
        shell.wait_for("RUNNING")
        assert answers("ann", n=16) == 200
        before, caches = replicas(shell), _cache_servers(shell)
        assert (len(before), len(caches)) == (DEPLOYMENTS, 1)
        with load("ann") as seen:
            deploy(1, limits={"n": 8})
            until(lambda: answers("ann", n=16) == 400, lambda: "the new limit is not in force", ROTATE_S)
            assert replicas(shell) == before

            deploy(2, limits={"n": 8})
            until(lambda: len(engines()) == 3, lambda: json.dumps(shell.status()))
            shell.wait_for("RUNNING")
            assert before.items() <= replicas(shell).items()
            assert _cache_servers(shell) == caches

            deploy(1)
            until(lambda: len(engines()) == 2, lambda: json.dumps(shell.status()))
            until(lambda: answers("ann", n=16) == 200, lambda: "the old limit is not back", ROTATE_S)
            assert _cache_servers(shell) == caches
        print(f"{len(seen)} searches meanwhile")
        assert set(seen) == {200}


def answers(name: str | None, n: int = 4) -> int:
    """Status of a search with that key, or without one; 0 if there is no reply in time."""
    headers = {"Authorization": f"Bearer {KEYS[name]}"} if name else {}
    question = [{"role": "user", "content": "Take 12. Increase by 74. Take away 51. What do you get?"}]
    body = {"model": "banyan-arithmetic", "messages": question, "search": {"strategy": "beam_search", "n": n, "m": 2}}
    try:
        return httpx.post(f"{URL}/v1/chat/completions", json=body, headers=headers, timeout=60).status_code
    except httpx.TimeoutException:  # Serve's proxy waits for a replica
        return 0


@contextmanager
def load(name: str, clients: int = 4) -> Iterator[list[int]]:
    """Clients that send requests all the time; yields their statuses."""
    seen: list[int] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            seen.append(answers(name))

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _cache_servers(shell: Shell) -> set[int]:
    return {process.pid for process in shell.processes() if "lmcache.v1" in " ".join(process.cmdline())}
