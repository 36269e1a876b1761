"""A file for `ray up`: the same application on machines without Kubernetes, in containers of the same image."""

from typing import Any

from cluster.manifests.rayservice import HOME, IMAGE, OF_A_CLUSTER
from cluster.manifests.served import GIB, KEYS_FILE, OBJECT_STORE_GIB, Served
from deployments.startup.environment import variables

TOKEN = f"{HOME}/.banyan/ray_token"
EXAMPLE_HEAD, EXAMPLE_WORKERS = "192.0.2.1", ["192.0.2.2"]
"""Addresses that are nobody's (RFC 5737)."""


def ray_up(served: Served) -> dict[str, Any]:
    """Each machine must have the GPUs, the memory and the shared memory of the largest group of nodes."""
    shm = max(group.shm_gib for group in served.groups)
    environment = {**variables(), **OF_A_CLUSTER, "RAY_AUTH_TOKEN_PATH": TOKEN}
    ray_start = f"--object-store-memory={OBJECT_STORE_GIB * GIB} --metrics-export-port=8080"
    return {
        "cluster_name": f"banyan-{served.name}",
        "max_workers": len(EXAMPLE_WORKERS),
        "provider": {"type": "local", "head_ip": EXAMPLE_HEAD, "worker_ips": EXAMPLE_WORKERS},
        "auth": {"ssh_user": "banyan"},
        "docker": {
            "image": f"{IMAGE}:cuda",
            "container_name": "banyan",
            "pull_before_run": False,
            "run_options": [
                f"--shm-size={shm}g",
                "--gpus=all",
                "--user=1000:1000",
                "--cap-drop=ALL",
                "--security-opt=no-new-privileges",
                *(f"--env={name}={value}" for name, value in environment.items()),
                "--env=HF_TOKEN",
            ],
        },
        "file_mounts": {TOKEN: "~/.banyan/ray_token", KEYS_FILE: "~/.banyan/api.keys"},
        "head_start_ray_commands": [
            "ray stop",
            "ulimit -n 65536; ray start --head --port=6379 --autoscaling-config=~/ray_bootstrap_config.yaml "
            + ray_start,
        ],
        "worker_start_ray_commands": [
            "ray stop",
            f"ulimit -n 65536; ray start --address=$RAY_HEAD_IP:6379 {ray_start}",
        ],
    }
