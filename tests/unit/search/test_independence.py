"""``search`` imports neither Ray nor vLLM nor any other package of this project."""

import subprocess
import sys

FOREIGN = ("ray", "vllm", "torch", "transformers", "fastapi", "httpx", "deployments", "kvstore", "cluster", "sympy")


def test_importing_search_imports_nothing_foreign() -> None:
    program = f"import sys, search.run.runner, search.snapshot; print(*[m for m in {FOREIGN} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
