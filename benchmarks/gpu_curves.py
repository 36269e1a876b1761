"""What steps of real models cost on a GPU: random weights in the shapes of Qwen2.5-1.5B and 7B, torch alone.

    python -m benchmarks.gpu_curves                              within eight minutes, on the GPU
    python -m benchmarks.gpu_curves --device cpu --shapes tiny    to see that the program runs

Three curves determine the time of a search on a GPU: a decode step, by batch and context; a reward model's pass over
the new step of each path, or over the whole path; the KV of a prefix, fetched from host memory or computed again.
Passes are captured graphs, compiled except for attention, as in vLLM. Keys and values are contiguous per request, not
paged, and there is no scheduler, so a real engine takes longer.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.console import Console
from torch import Tensor
from torch.nn import functional

from benchmarks.record import claim, show_claims, write_result

BATCHES = (16, 1, 2, 4, 8, 32, 64, 128, 256)
CONTEXTS = (256, 1024, 4096)
PATHS = (1, 4, 16, 64)
PATH_TOKENS = (256, 1024, 2048)
STEP = 32
"""Tokens of a path's new step."""
LARGEST_PASS = 65_536
"""Most tokens of one pass of a reward model."""
RESTORED = (256, 1024, 4096)
"""Tokens whose keys and values are copied."""
CHUNK = 256
"""Tokens of one copy: a chunk of LMCache."""
BLOCK = 16
POOL_BYTES = {"cuda": 32 << 30, "cpu": 64 << 20}
"""Memory for the keys and values of a batch, in bytes, by device."""
WARM_UP = 3
console = Console(stderr=True)


class Shape(NamedTuple):
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int

    @property
    def kv_bytes(self) -> int:
        """Keys and values of one token, 2 bytes each."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_size

    @property
    def weight_bytes(self) -> int:
        """What a decode step reads of the weights: the layers and the output head."""
        queries, pairs = self.heads * self.head_size, 2 * self.kv_heads * self.head_size
        layer = self.hidden * (2 * queries + pairs) + 3 * self.hidden * self.intermediate
        return 2 * (self.layers * layer + self.vocabulary * self.hidden)


SHAPES = {
    "1.5B": Shape(28, 1536, 12, 2, 128, 8960, 151_936),
    "7B": Shape(28, 3584, 28, 4, 128, 18_944, 152_064),
    "tiny": Shape(2, 64, 4, 2, 16, 128, 512),
}


class Layer(NamedTuple):
    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def before_attention(
    x: Tensor, layer: Layer, cos: Tensor, sin: Tensor, heads: int, kv_heads: int, head_size: int
) -> tuple[Tensor, Tensor]:
    """Queries ``[tokens, heads, head_size]``, and keys and values ``[tokens, 2, kv_heads, head_size]``."""
    qkv = functional.linear(functional.rms_norm(x, x.shape[-1:], layer.norm, 1e-6), layer.qkv, layer.qkv_bias)
    queries, keys, values = qkv.split([heads * head_size, kv_heads * head_size, kv_heads * head_size], -1)
    queries = rotated(queries.unflatten(-1, (heads, head_size)), cos, sin)
    keys = rotated(keys.unflatten(-1, (kv_heads, head_size)), cos, sin)
    return queries, torch.stack((keys, values.unflatten(-1, (kv_heads, head_size))), 1)


def after_attention(x: Tensor, attended: Tensor, layer: Layer) -> Tensor:
    x = x + functional.linear(attended, layer.out)
    gate, up = functional.linear(functional.rms_norm(x, x.shape[-1:], layer.mlp_norm, 1e-6), layer.gate_up).chunk(2, -1)
    return x + functional.linear(functional.silu(gate) * up, layer.down)


def attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention, the last query aligned with the last key. Tensors are ``[requests, heads, tokens, size]``."""
    new, total = queries.shape[2], keys.shape[2]
    if queries.is_cuda:  # torch's own function would align a shorter block of queries with the first key
        attended: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(queries, keys, values, 0.0, new > 1)[0]
        return attended
    seen = torch.ones(new, total, dtype=torch.bool).tril(total - new)
    return functional.scaled_dot_product_attention(queries, keys, values, seen, enable_gqa=True)


class Model:
    """A decoder with random weights."""

    def __init__(self, shape: Shape, device: str, compiled: bool = True, dtype: torch.dtype = torch.bfloat16) -> None:
        self.shape, self._device = shape, device
        torch.compiler.reset()
        self._before = torch.compile(before_attention) if compiled else before_attention
        self._after = torch.compile(after_attention) if compiled else after_attention

        def random(*size: int) -> Tensor:
            return torch.randn(*size, device=device, dtype=dtype) / math.sqrt(size[-1])

        queries, pairs = shape.heads * shape.head_size, 2 * shape.kv_heads * shape.head_size
        self._layers = [
            Layer(
                torch.ones(shape.hidden, device=device, dtype=dtype),
                random(queries + pairs, shape.hidden),
                random(queries + pairs),
                random(shape.hidden, queries),
                torch.ones(shape.hidden, device=device, dtype=dtype),
                random(2 * shape.intermediate, shape.hidden),
                random(shape.hidden, shape.intermediate),
            )
            for _ in range(shape.layers)
        ]
        self._vocabulary = random(shape.vocabulary, shape.hidden)
        self._reward_head = random(2, shape.hidden)
        self._norm = torch.ones(shape.hidden, device=device, dtype=dtype)
        longest = max(*CONTEXTS, *PATH_TOKENS, *RESTORED)
        inverse = 1e6 ** (-torch.arange(0, shape.head_size, 2, device=device) / shape.head_size)
        angles = torch.arange(longest, device=device)[:, None] * inverse
        self._cos, self._sin = angles.cos().to(dtype)[:, None], angles.sin().to(dtype)[:, None]
        self._pool = torch.randn(POOL_BYTES[device] // 2, device=device, dtype=dtype)

    def fits(self, requests: int, tokens: int) -> bool:
        return 2 * self._pool.numel() >= requests * tokens * self.shape.kv_bytes

    def caches(self, requests: int, tokens: int) -> list[Tensor]:
        """One tensor ``[requests, tokens, 2, kv_heads, head_size]`` per layer."""
        shape = self.shape
        size = (shape.layers, requests, tokens, 2, shape.kv_heads, shape.head_size)
        return list(self._pool[: math.prod(size)].view(size))

    def states(self, ids: Tensor, caches: Sequence[Tensor]) -> Tensor:
        """Hidden states ``[requests, new, hidden]`` of the new tokens ``[requests, new]``, which come last in the
        caches."""
        shape, (requests, new), total = self.shape, ids.shape, caches[0].shape[1]
        cos, sin = (each[total - new : total].repeat(requests, 1, 1) for each in (self._cos, self._sin))
        x = functional.embedding(ids.flatten(), self._vocabulary)
        for layer, cache in zip(self._layers, caches, strict=True):
            queries, pairs = self._before(x, layer, cos, sin, shape.heads, shape.kv_heads, shape.head_size)
            cache[:, total - new :] = pairs.unflatten(0, (requests, new))
            keys, values = cache.unbind(2)
            attended = attention(
                queries.unflatten(0, (requests, new)).transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
            )
            x = self._after(x, attended.transpose(1, 2).reshape(requests * new, -1), layer)
        return functional.rms_norm(x, x.shape[-1:], self._norm, 1e-6).view(requests, new, -1)

    def decode(self, ids: Tensor, caches: Sequence[Tensor]) -> Tensor:
        """The next token of each request."""
        return functional.linear(self.states(ids, caches)[:, -1], self._vocabulary).argmax(-1)

    def rewards(self, ids: Tensor, caches: Sequence[Tensor]) -> Tensor:
        """Reward of each path, ``[requests]``."""
        return functional.linear(self.states(ids, caches)[:, -1], self._reward_head).float().softmax(-1)[:, 1]

    def ids(self, requests: int, tokens: int) -> Tensor:
        return torch.randint(self.shape.vocabulary, (requests, tokens), device=self._device)


def seconds(work: Callable[[], Any], device: str, captured: bool = True) -> float:
    """Median seconds of one call; on a GPU, of its captured graph unless ``captured`` is false."""
    if device == "cpu":
        work()
        return statistics.median(_clocked(work) for _ in range(5))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    run = _captured(work) if captured else work
    run()
    torch.cuda.synchronize()
    took: list[float] = []
    began = time.perf_counter()
    while len(took) < 5 or (len(took) < 50 and time.perf_counter() - began < 0.4):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        took.append(start.elapsed_time(end) / 1000)
    return statistics.median(took)


def _captured(work: Callable[[], Any]) -> Callable[[], Any]:
    torch.cuda.empty_cache()  # frees the previous graph's memory
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def _clocked(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def decode_curve(model: Model, device: str, bandwidth: float) -> list[dict[str, Any]]:
    """Times of a decode step, by batch size and by context per request (the new token included)."""
    rows = []
    for context in CONTEXTS:
        for batch in BATCHES:
            if not model.fits(batch, context):
                continue
            ids, caches = model.ids(batch, 1), model.caches(batch, context)
            took = seconds(partial(model.decode, ids, caches), device)
            least = (model.shape.weight_bytes + batch * context * model.shape.kv_bytes) / bandwidth
            rows.append(
                {
                    "batch": batch,
                    "context": context,
                    "step_s": round(took, 7),
                    "bandwidth_share": round(least / took, 3),
                }
            )
    return sorted(rows, key=lambda row: (row["context"], row["batch"]))


def reading_curve(model: Model, device: str) -> list[dict[str, Any]]:
    """Times of a reward model's pass over the whole paths of a batch, and over only the newest step of each."""
    rows = []
    for tokens in PATH_TOKENS:
        for paths in PATHS:
            if paths * tokens > LARGEST_PASS or not model.fits(paths, tokens):
                continue
            ids, caches = model.ids(paths, tokens), model.caches(paths, tokens)
            new = ids[:, -STEP:].contiguous()
            whole = seconds(partial(model.rewards, ids, caches), device)
            step = seconds(partial(model.rewards, new, caches), device)
            rows.append({"paths": paths, "tokens": tokens, "whole_s": round(whole, 7), "step_s": round(step, 7)})
    return rows


def restoring_curve(model: Model, device: str) -> list[dict[str, Any]]:
    """Times to fetch the KV of a prefix from pinned host memory into scattered blocks, to store it there, and to
    compute it."""
    shape, rows = model.shape, []
    for tokens in RESTORED:
        if not model.fits(2, tokens):
            continue
        size = (shape.layers, CHUNK // BLOCK, BLOCK, 2, shape.kv_heads, shape.head_size)
        chunks = tokens // CHUNK
        host = [torch.randn(size).bfloat16() for _ in range(chunks)]
        if device == "cuda":
            host = [each.pin_memory() for each in host]
        staged = torch.empty(size, dtype=torch.bfloat16, device=device)
        blocks = model.caches(1, 2 * tokens)
        apart = torch.stack(blocks).view(shape.layers, -1, *size[2:])
        where = torch.randperm(apart.shape[1], device=device)[: tokens // BLOCK].view(chunks, -1)

        def fetch(
            host: list[Tensor] = host, staged: Tensor = staged, apart: Tensor = apart, at: Tensor = where
        ) -> None:
            for chunk, to in zip(host, at, strict=True):
                staged.copy_(chunk, non_blocking=True)
                apart.index_copy_(1, to, staged)

        def store(host: list[Tensor] = host, apart: Tensor = apart, at: Tensor = where) -> None:
            for chunk, source in zip(host, at, strict=True):
                chunk.copy_(apart.index_select(1, source), non_blocking=True)

        ids, caches = model.ids(1, tokens), model.caches(1, tokens)
        fetched, stored = (seconds(work, device, captured=False) for work in (fetch, store))
        computed = seconds(partial(model.states, ids, caches), device)
        rows.append(
            {
                "tokens": tokens,
                "fetched_s": round(fetched, 7),
                "stored_s": round(stored, 7),
                "computed_s": round(computed, 7),
                "fetched_gb_s": round(tokens * shape.kv_bytes / fetched / 1e9, 2),
            }
        )
    return rows


def same_states(device: str) -> float:
    """Relative difference between the states of a new step and the same rows of a pass over the whole paths: a check
    that attention is aligned correctly."""
    model = Model(SHAPES["tiny"]._replace(head_size=64), device, compiled=False)
    ids, caches = model.ids(3, 96), model.caches(3, 96)
    whole = model.states(ids, caches)[:, -STEP:].float()
    step = model.states(ids[:, -STEP:].contiguous(), caches).float()
    return float((step - whole).norm() / whole.norm())


def ceilings(device: str) -> dict[str, float]:
    """Bytes that a kernel reads and writes per second, and operations per second of a matrix product."""
    elements, side = (1 << 31, 8192) if device == "cuda" else (1 << 22, 256)
    source = torch.randn(elements, device=device, dtype=torch.bfloat16)
    target = torch.empty_like(source)
    copied = seconds(lambda: torch.neg(source, out=target), device)  # a kernel: a copy in a graph is slower
    left, right = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    multiplied = seconds(lambda: left @ right, device)
    return {"bytes_s": 4 * elements / copied, "operations_s": 2 * side**3 / multiplied}


def claims(curves: dict[str, dict[str, list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """The design's assumptions about GPUs, as claims."""
    found = []
    for name, of in curves.items():
        steps = {(row["batch"], row["context"]): row["step_s"] for row in of["decode"]}
        for context in (256, 1024):
            if {(16, context), (64, context)} <= steps.keys():
                ratio = round(steps[64, context] / steps[16, context], 3)
                what = f"{name}: a decode step of 64 over one of 16, {context} tokens each"
                found.append(claim(what, ratio, "<= 1.25", ratio <= 1.25))
        for row in of["reading"]:
            if (row["paths"], row["tokens"]) == (16, 1024):
                ratio = round(row["step_s"] / row["whole_s"], 4)
                what = f"{name}: {STEP} new tokens over whole paths of 1,024, 16 paths"
                found.append(claim(what, ratio, "<= 0.1", ratio <= 0.1))
        for row in of["restoring"]:
            if row["tokens"] == 1024:
                ratio = round(row["fetched_s"] / row["computed_s"], 4)
                what = f"{name}: KV of 1,024 tokens fetched from the host over computed"
                found.append(claim(what, ratio, "<= 0.5", ratio <= 0.5))
    return found


def main(
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    shapes: Annotated[str, typer.Option(help="1.5B, 7B or tiny; several with commas.")] = "1.5B,7B",
    compiled: Annotated[bool, typer.Option("--compiled/--eager")] = True,
    commit: Annotated[str, typer.Option(help="Commit to record where the machine has no git.")] = "",
    out: Annotated[str, typer.Option(help="Result file, if not in benchmarks/results.")] = "",
) -> None:
    torch.manual_seed(7)
    began = time.perf_counter()
    with torch.inference_mode():
        error = same_states(device)
        if not error < 0.02:
            raise SystemExit(f"a new step's states are not those of the whole path: relative difference {error:.4f}")
        limits = ceilings(device)
        console.print(f"a new step differs by {error:.4f}; {limits}")
        curves = {}
        for name in shapes.split(","):
            model = Model(SHAPES[name], device, compiled)
            curves[name] = {
                "decode": decode_curve(model, device, limits["bytes_s"]),
                "reading": reading_curve(model, device),
                "restoring": restoring_curve(model, device),
            }
            del model
            console.print(f"{name}: done after {time.perf_counter() - began:.0f} s")
            for part in curves[name].values():
                for row in part:
                    console.print("  " + "  ".join(f"{key} {value}" for key, value in row.items()))
    found = claims(curves)
    show_claims(console, found)
    figures = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "compiled": compiled,
        "relative_difference": round(error, 5),
        "ceilings": limits,
        "took_s": round(time.perf_counter() - began),
        "curves": curves,
        "claims": found,
    }
    path = write_result("gpu_curves", {**figures, **({"commit": commit} if commit else {})}, Path(out) if out else None)
    console.print(f"kept in {path}")


if __name__ == "__main__":
    typer.run(main)
