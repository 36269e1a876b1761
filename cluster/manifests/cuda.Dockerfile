# Banyan for nodes with NVIDIA GPUs:
#
#     docker build --file cluster/manifests/cuda.Dockerfile --tag banyan:cuda .
#
# What serving needs, as requirements/cuda.lock pins it. Checked by hadolint; not built where Banyan is tested, which
# has no Docker. Serves with a read-only root: /tmp, /home/banyan and a large /dev/shm must be writable.
FROM python:3.11-slim-bookworm AS build
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
RUN pip install --no-cache-dir uv==0.13.8
WORKDIR /src
COPY pyproject.toml README.md ./
COPY requirements/cuda.lock requirements/
# What pyproject.toml asks for without its extra `dev`, in the versions of the lock.
RUN uv venv /opt/banyan \
    && uv pip install --no-cache --python /opt/banyan --requirement pyproject.toml --extra cuda \
        --constraint requirements/cuda.lock
COPY deployments deployments
COPY search search
COPY kvstore kvstore
COPY cluster cluster
RUN uv pip install --no-cache --python /opt/banyan --no-deps .

FROM python:3.11-slim-bookworm
# KubeRay starts Ray by bash and asks wget for its health; Triton compiles with g++. The CUDA libraries are in the
# packages of the lock; the node brings the driver and NVIDIA's container runtime. There is no nvcc, which vLLM wants for
# kernels that are in none of its packages.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libnuma1 wget \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home banyan
COPY --from=build /opt/banyan /opt/banyan
ENV PATH=/opt/banyan/bin:$PATH HOME=/home/banyan PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /home/banyan
USER 1000:1000
