"""A RayService for KubeRay."""

from importlib.metadata import version
from typing import Any

from cluster.manifests.served import GIB, KEYS_FILE, OBJECT_STORE_GIB, Group, Served
from cluster.manifests.yaml_text import as_yaml
from deployments.startup.environment import variables

Json = dict[str, Any]
HOME = "/home/banyan"
IMAGE = "banyan"
HTTP_PORT = 8000
NO_SUCH_FILE = {"RAY_AUTH_TOKEN_PATH"}
"""Variables of `scripts/environment` that a pod has not: KubeRay gives the token itself."""
OF_A_CLUSTER = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
"""Variables with another value on a cluster: Ray listens on the pods' network."""
DASHBOARD = {
    "RAY_PROMETHEUS_HOST": "http://prometheus-operated.monitoring:9090",
    "RAY_GRAFANA_HOST": "http://grafana.monitoring:80",
    "RAY_GRAFANA_IFRAME_HOST": "http://127.0.0.1:3000",
}
"""Where Ray's dashboard, and the browser that shows it, find Prometheus and Grafana: as usually named; change them."""
USER = {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}
CONFINED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
HEAD = Group("head", 1, 1, gpus=0, cpus=2, memory_gib=6, shm_gib=OBJECT_STORE_GIB)


def rayservice(served: Served) -> Json:
    seconds = int(served.config.controller.limits.seconds)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": f"banyan-{served.name.replace('_', '-').replace('.', '-')}"},
        "spec": {
            # A changed cluster is made beside the old one, and gets the requests once it serves. The old one stays as
            # long as a search may take.
            "upgradeStrategy": {"type": "NewCluster"},
            "rayClusterDeletionDelaySeconds": seconds,
            "excludeHeadPodFromServeSvc": True,
            "serveConfigV2": as_yaml(served.serve),
            "rayClusterConfig": {
                "rayVersion": version("ray"),
                "authOptions": {"mode": "token"},
                "enableInTreeAutoscaling": True,
                "autoscalerOptions": {
                    "version": "v2",
                    "idleTimeoutSeconds": 300,
                    "securityContext": CONFINED,
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                },
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0", **_object_store()},
                    "template": _pod(served, HEAD, HEAD_PORTS, DASHBOARD),
                },
                "workerGroupSpecs": [_workers(served, group) for group in served.groups],
            },
        },
    }


def _workers(served: Served, group: Group) -> Json:
    pod = _pod(served, group, WORKER_PORTS, {})
    pod["spec"]["automountServiceAccountToken"] = False
    pod["spec"]["containers"][0]["readinessProbe"] = {
        # A pod gets requests when searches can be answered through it. No liveness probe asks for that: an engine that
        # fails is replaced by its replica, and KubeRay's own probe looks after Ray.
        "httpGet": {"path": "/health", "port": "serve"},
        "periodSeconds": 10,
        "timeoutSeconds": 2 + int(served.config.http.canary_timeout_s),
        "failureThreshold": 3,
    }
    return {
        "groupName": group.name,
        "replicas": group.least,
        "minReplicas": group.least,
        "maxReplicas": group.most,
        "rayStartParams": {**_object_store(), "resources": f"'{{\"{group.name}\": 1}}'"},
        "template": pod,
    }


HEAD_PORTS = {"gcs-server": 6379, "dashboard": 8265, "client": 10001, "metrics": 8080, "serve": HTTP_PORT}
WORKER_PORTS = {"metrics": 8080, "serve": HTTP_PORT}


def _object_store() -> dict[str, str]:
    return {"object-store-memory": str(OBJECT_STORE_GIB * GIB)}


def _pod(served: Served, group: Group, ports: dict[str, int], environment: dict[str, str]) -> Json:
    kind = "cuda" if any(each.gpus for each in served.groups) else "cpu"
    size: Json = {"cpu": str(group.cpus), "memory": f"{group.memory_gib}Gi"}
    if group.gpus:
        size["nvidia.com/gpu"] = str(group.gpus)
    volumes: dict[str, Json] = {
        "tmp": {"emptyDir": {}},
        "home": {"emptyDir": {}},
        "shm": {"emptyDir": {"medium": "Memory", "sizeLimit": f"{group.shm_gib}Gi"}},
        "api-keys": {"secret": {"secretName": "banyan-api-keys", "defaultMode": 0o440}},
    }
    mounts = {"tmp": "/tmp", "home": HOME, "shm": "/dev/shm"}
    set_here = {name: value for name, value in variables().items() if name not in NO_SUCH_FILE}
    return {
        # A cluster whose pods change is replaced as a whole: so are changed `args`, which would restart the replicas of
        # this one. What is under `deployments` changes where it is.
        "metadata": {"annotations": {"banyan/args": served.args_digest}},
        "spec": {
            "enableServiceLinks": False,  # a Service named `vllm` would set VLLM_PORT to a URL
            "securityContext": {**USER, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "ray-head" if group is HEAD else "ray-worker",
                    "image": f"{IMAGE}:{kind}",
                    "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
                    "env": [
                        *(_variable(*each) for each in {**set_here, **OF_A_CLUSTER, **environment}.items()),
                        {
                            "name": "HF_TOKEN",
                            "valueFrom": {"secretKeyRef": {"name": "banyan-hub", "key": "token", "optional": True}},
                        },
                    ],
                    "resources": {"requests": size, "limits": size},
                    "securityContext": CONFINED,
                    "volumeMounts": [
                        *({"name": name, "mountPath": path} for name, path in mounts.items()),
                        {"name": "api-keys", "mountPath": KEYS_FILE.rpartition("/")[0], "readOnly": True},
                    ],
                }
            ],
            "volumes": [{"name": name, **volume} for name, volume in volumes.items()],
        },
    }


def _variable(name: str, value: str) -> Json:
    return {"name": name, "value": value}
