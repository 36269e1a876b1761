"""Which vLLM is installed. Imports nothing of it."""

from importlib.metadata import PackageNotFoundError, version


def runs_on_cpu() -> bool:
    """Whether the installed vLLM is the build for CPUs, by which vLLM itself decides where it runs."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:  # the build for CPUs is a package of another name
        return True
