"""Shows that vLLM 0.32 on a CPU compiles a model again at every start, although it has kept the compiled code.

    python compiled_again.py MODEL_DIRECTORY

Starts an engine twice, each time in a process of its own. The first one compiles and writes the code below
VLLM_CACHE_ROOT. The second one reads it, calls `finalize_loading` on it, which code of torch's inductor does not have
(vLLM's own compiler's has), and compiles again. VLLM_FORCE_AOT_LOAD=1 makes the error visible.
"""

import os
import subprocess
import sys
import tempfile
import time


def start(model: str) -> None:
    from vllm import LLM

    began = time.perf_counter()
    LLM(model, dtype="float32", block_size=32, kv_cache_memory_bytes=64 << 20, max_model_len=256)
    print(f"the engine is up after {time.perf_counter() - began:.1f} s", flush=True)


def main() -> None:
    if len(sys.argv) == 3:
        start(sys.argv[1])
        return
    with tempfile.TemporaryDirectory() as cache:
        # Without plugins: Banyan's adds the method.
        environment = {
            **os.environ,
            "VLLM_CACHE_ROOT": cache,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_PLUGINS": "",
        }
        for force in ("0", "1"):
            command = [sys.executable, __file__, sys.argv[1], "start"]
            environment["VLLM_FORCE_AOT_LOAD"] = force  # 0 at the first start, which has nothing to load
            subprocess.run(command, env=environment, check=False, timeout=600)


if __name__ == "__main__":
    main()
