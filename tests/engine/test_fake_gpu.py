"""vLLM's own code for GPUs takes the arguments and variables that engines get there, on a GPU that is not there."""

import json
import subprocess
import sys

import pytest


@pytest.mark.long
@pytest.mark.parametrize(
    ("capability", "exact", "dtype"),
    [("9.0", False, "torch.bfloat16"), ("9.0", True, "torch.bfloat16"), ("7.5", False, "torch.float16")],
)
def test_vllm_takes_what_engines_get_on_a_gpu(capability: str, exact: bool, dtype: str) -> None:
    command = [sys.executable, "-m", "tests.engine.fake_gpu", capability, *(["exact"] if exact else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    generator, prm = map(json.loads, done.stdout.splitlines()[-2:])
    assert generator == prm
    assert generator == {
        "platform": "cuda",
        "dtype": dtype,
        "batched_tokens": 8192,
        "chunked": True,
        "tokens_per_block": [16],
        "expected_tokens_per_block": 16,
        "named_attention": "TRITON_ATTN" if exact else None,
        "attention": "TRITON_ATTN",  # the build for CPUs has no FlashAttention
        "batch_invariant": exact,
        "flashinfer_sampler": False,
    }
