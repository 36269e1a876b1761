# Banyan for nodes without a GPU:
#
#     docker build --file cluster/manifests/cpu.Dockerfile --tag banyan:cpu .
#
# What serving needs, as requirements/cpu.lock pins it. Checked by hadolint; not built where Banyan is tested, which
# has no Docker. Serves with a read-only root: /tmp, /home/banyan and a large /dev/shm must be writable.
FROM python:3.11-slim-bookworm AS build
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_TORCH_BACKEND=cpu
RUN pip install --no-cache-dir uv==0.13.8
WORKDIR /src
COPY pyproject.toml README.md ./
COPY requirements/cpu.lock requirements/cpu.omit requirements/
# What pyproject.toml asks for without its extra `dev`, in the versions of the lock, without what the lock leaves out.
RUN uv venv /opt/banyan \
    && uv pip install --no-cache --python /opt/banyan --requirement pyproject.toml --extra cpu \
        --constraint requirements/cpu.lock --excludes requirements/cpu.omit
COPY deployments deployments
COPY search search
COPY kvstore kvstore
COPY cluster cluster
RUN uv pip install --no-cache --python /opt/banyan --no-deps .

FROM python:3.11-slim-bookworm
# KubeRay starts Ray by bash and asks wget for its health. tcmalloc and g++: docs/operating.md, "Engines on a CPU".
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libnuma1 libtcmalloc-minimal4 wget \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home banyan
COPY --from=build /opt/banyan /opt/banyan
ENV PATH=/opt/banyan/bin:$PATH HOME=/home/banyan PYTHONDONTWRITEBYTECODE=1
WORKDIR /home/banyan
USER 1000:1000
