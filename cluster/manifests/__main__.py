"""Writes the manifests of all configurations."""

from pathlib import Path

from cluster.manifests.ray_up import ray_up
from cluster.manifests.rayservice import rayservice
from cluster.manifests.served import Served
from cluster.manifests.yaml_text import as_yaml

FOLDER = Path(__file__).parent
CONFIGS = FOLDER.with_name("configs")
RAY_UP = "qwen2.5-1.5b_math-prm-7b"
"""The configuration of `ray_up.yaml`: any other serves on the same machines, if their GPUs suffice."""
NOT_RUN = "Checked against KubeRay's and Kubernetes' schemas, but not run: the tests have no Kubernetes cluster."


def manifests() -> dict[Path, str]:
    """Content of every manifest, by its path."""
    found = {
        FOLDER / "rayservices" / path.name: as_yaml(rayservice(Served.read(path)), made_from(path, NOT_RUN))
        for path in sorted(CONFIGS.glob("*.yaml"))
    }
    path = CONFIGS / f"{RAY_UP}.yaml"
    told = "Checked against Ray's schema; not run, which needs the machines. Replace the addresses."
    return found | {FOLDER / "ray_up.yaml": as_yaml(ray_up(Served.read(path)), made_from(path, told))}


def made_from(config: Path, told: str) -> str:
    return f"Made from cluster/configs/{config.name} by `python -m cluster.manifests`: do not edit.\n{told}"


def main() -> None:
    for path, text in manifests().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
