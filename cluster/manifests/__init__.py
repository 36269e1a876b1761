"""What runs Banyan on a cluster: RayServices for KubeRay and a file for `ray up`, which ``python -m cluster.manifests``
makes from the configurations in ``cluster/configs``, and the images' Dockerfiles. See ``docs/kubernetes.md``."""
