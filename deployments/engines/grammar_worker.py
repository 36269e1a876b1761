"""Worker process that finds out what a JSON schema costs an engine: reads one schema per line, compiles it as the
engine would, writes some texts under it, and answers with the figures.

A script, started by ``deployments.service.schemas``. A schema may take minutes and gigabytes, so the process limits its
own CPU time and address space. It ends when its stdin closes, so it never outlives its parent.
"""

import contextlib
import ctypes
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

MEMORY_BYTES = 1 << 30
"""Address space for a schema, besides what the process has when it is ready."""
OUT_OF_MEMORY = 3
"""Exit status when a schema needs more."""
THREADS = 4
"""Maximum threads of the compiler."""
NICENESS = 5
"""Added to that of the controller: an engine on the same core goes first."""
MIN_TOKENS = 2000
"""Tokens written under a schema, besides one for each of its characters: names of required properties come one after
the other, so what follows them is that far away."""
WALK_CPU_S = 1.0
"""CPU time after which no more tokens are written: half of it for the whole schema, half for its parts."""
MANY = 16
"""Alternatives or properties from which on a part of a schema is tried alone."""
WINDOW = 64
"""The dearest tokens of a text are those of the dearest window of this length."""
COMPILED = (False, None, (",", ":"), True, None, False)
"""Options of the compiler as vLLM sets them under ``disable_any_whitespace``: any whitespace, indent, separators,
strict mode, maximum whitespace, any order."""

_STRUCTURE = frozenset('"{}[],:')
_ENDS = frozenset("}]")


class Vocabulary(NamedTuple):
    """See `deployments.engines.encoding.ChatEncoder.spelling`."""

    tokens: list[str]
    parts: str
    stop: int | None


def load_xgrammar() -> Any:
    """xgrammar's classes, without importing torch and transformers, which it needs for nothing here: 40 MB in place of
    270."""
    sys.modules["torch"] = None  # type: ignore[assignment]
    stub: Any = ModuleType("transformers")
    stub.PreTrainedTokenizerBase = stub.PreTrainedTokenizerFast = type("Tokenizer", (), {})
    sys.modules["transformers"] = stub
    spec = find_spec("xgrammar")
    assert spec is not None
    package = ModuleType("xgrammar")
    sys.modules["xgrammar"] = package
    package.__path__ = list(spec.submodule_search_locations or ())
    # The order of xgrammar's own ``__init__``.
    for name in ("load_binding", "base", "tokenizer_info"):
        __import__(f"xgrammar.{name}")
    return package


class Judge:
    """Compiles schemas and writes under them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import numpy as np

        xgrammar = load_xgrammar()
        self._numpy = np
        self._core = xgrammar.base._core
        info = _tokenizer_info(xgrammar, vocabulary)
        # Without a cache, because `deployments.service.schemas` has one.
        self._compiler = self._core.GrammarCompiler(info, min(THREADS, os.cpu_count() or 1), False, -1)
        self._mask = np.zeros((1, (len(vocabulary.tokens) + 31) // 32), dtype=np.int32)
        self._any = self._mask_of([True] * len(vocabulary.tokens))
        self._structure = self._mask_of([not _STRUCTURE.isdisjoint(token) for token in vocabulary.tokens])
        self._ends = self._mask_of([not _ENDS.isdisjoint(token) for token in vocabulary.tokens])

    def _mask_of(self, tokens: list[bool]) -> Any:
        """These tokens as the words of a mask."""
        bits = self._numpy.zeros(self._mask.size * 32, dtype=bool)
        bits[: len(tokens)] = tokens
        return self._numpy.packbits(bits, bitorder="little").view(self._numpy.int32)

    def figures(self, schema: str) -> dict[str, Any]:
        """What a schema costs: ``compile_s``, CPU seconds of compiling it, ``bytes`` of its grammar, ``token_s``, CPU
        seconds per token of a text, and ``state_bytes`` per token while it is written; or ``error`` if it cannot be
        compiled.

        Raises:
            MemoryError: it does not fit into the process's address space.
        """
        began = time.process_time()
        try:
            compiled = self._compiled(schema)
        except ValueError as error:
            return {"error": str(error)}
        compile_s = time.process_time() - began
        written = [self._written(compiled, MIN_TOKENS + len(schema), WALK_CPU_S / 2)]
        parts = dict.fromkeys(many_sided(json.loads(schema)))
        for part in parts:
            # It may not be a schema without the rest.
            with contextlib.suppress(ValueError):
                alone = self._compiled(part)
                written.append(self._written(alone, MIN_TOKENS + len(part), WALK_CPU_S / 2 / len(parts)))
        return {
            "compile_s": compile_s,
            "bytes": compiled.memory_size_bytes(),
            "token_s": max(token_s for token_s, _ in written),
            "state_bytes": max(state_bytes for _, state_bytes in written),
        }

    def _compiled(self, schema: str) -> Any:
        """The grammar of a schema.

        Raises:
            ValueError: it has none.
            MemoryError: it does not fit into the process's address space.
        """
        try:
            return self._compiler.compile_json_schema(schema, *COMPILED)
        except MemoryError:
            raise
        except Exception as error:
            if "bad_alloc" in str(error):
                raise MemoryError from error
            raise ValueError(str(error)) from error

    def _written(self, compiled: Any, count: int, cpu_s: float) -> tuple[float, float]:
        """CPU seconds a token of the dearest window of several texts, ``count`` tokens in all, and bytes a token of the
        text whose state is the largest for its length. Beginning a text counts as its first token."""
        rng, dearest, largest, written = random.Random(0), 0.0, 0.0, 0
        end = time.process_time() + cpu_s
        while written < count and time.process_time() < end:
            costs: list[float] = []
            taste = rng.randrange(3)
            held, began = _allocated_bytes(), time.process_time()
            matcher = self._core.GrammarMatcher(compiled, None, False, -1, None)
            while written < count and began < end and not matcher.is_terminated():
                matcher.fill_next_token_bitmask(self._mask, 0, False)
                filled = time.process_time()
                token = self._chosen(rng, taste)
                chosen = time.process_time()
                accepted = token is not None and matcher.accept_token(token, False)
                now = time.process_time()
                costs.append(now - chosen + filled - began)
                dearest = max(dearest, sum(costs[-WINDOW:]))
                written += 1
                if len(costs) % WINDOW == 0:
                    largest = max(largest, (_allocated_bytes() - held) / len(costs))
                began = time.process_time()
                if not accepted:
                    break
            largest = max(largest, (_allocated_bytes() - held) / max(len(costs), WINDOW))
            del matcher
        return dearest / WINDOW, largest

    def _chosen(self, rng: random.Random, taste: int) -> int | None:
        """One of the tokens that the mask allows; None if there is none. By ``taste`` any; one that goes on in the
        structure; or one that does so and ends nothing, to see as much of it as possible."""
        allowed = self._mask[0] & self._any
        wanted = allowed if not taste else allowed & self._structure
        if taste == 2:
            wanted = wanted & ~self._ends
        words = self._numpy.flatnonzero(wanted)
        if not len(words):
            wanted, words = allowed, self._numpy.flatnonzero(allowed)
        if not len(words):
            return None
        word = int(words[rng.randrange(len(words))])
        bits = int(wanted[word]) & 0xFFFFFFFF
        return word * 32 + rng.choice([bit for bit in range(32) if bits >> bit & 1])


def many_sided(schema: dict[str, Any]) -> Iterator[str]:
    """Schemas inside a schema that may be dear by themselves. Texts under the whole may not come to them: they may be
    in one of hundreds of optional properties."""
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    stack: list[Any] = [each for key, each in schema.items() if key not in ("enum", "const")]
    while stack:
        part = stack.pop()
        if isinstance(part, list):
            stack += part
        elif isinstance(part, dict):
            stack += [each for key, each in part.items() if key not in ("enum", "const")]
            sides = [
                len(part[key]) for key in ("anyOf", "oneOf", "properties") if isinstance(part.get(key), dict | list)
            ]
            sides += [part[key] // 16 for key in ("minItems", "minLength") if isinstance(part.get(key), int)]
            if sides and max(sides) >= MANY:
                yield json.dumps(part | definitions)


class _MallInfo2(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [
        (name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")
    ] + [(name, ctypes.c_size_t) for name in ("uordblks", "fordblks", "keepcost")]


_mallinfo2: Any = getattr(ctypes.CDLL(None), "mallinfo2", _MallInfo2)
_mallinfo2.restype = _MallInfo2


def _allocated_bytes() -> int:
    """Bytes that this thread has from malloc; always 0 where there is no glibc."""
    found = _mallinfo2()
    return int(found.uordblks + found.hblkhd)


def _tokenizer_info(xgrammar: Any, vocabulary: Vocabulary) -> Any:
    """xgrammar's own reading of a tokenizer, or of its plain tokens where its parts are unknown."""
    module = xgrammar.tokenizer_info
    if not vocabulary.parts:
        return module.TokenizerInfo(vocabulary.tokens, stop_token_ids=vocabulary.stop)._handle
    tokenizer: Any = sys.modules["transformers"].PreTrainedTokenizerFast()
    tokenizer.get_vocab = lambda: {token: index for index, token in enumerate(vocabulary.tokens) if token}
    tokenizer.backend_tokenizer = ModuleType("backend")
    tokenizer.backend_tokenizer.to_str = lambda: vocabulary.parts
    tokenizer.eos_token_id = vocabulary.stop
    return module.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(vocabulary.tokens))._handle


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    # Output that a library prints to stdout must not be read as a reply.
    os.dup2(2, 1)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    *vocabulary, cpu_s = json.loads(sys.stdin.readline())
    judge = Judge(Vocabulary(*vocabulary))
    judge.figures('{"type":"object"}')  # Warm-up: libraries load what they need at first use.
    with contextlib.suppress(ValueError, OSError):
        pages, *_ = Path("/proc/self/statm").read_text().split()
        most = int(pages) * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    replies.write("ready\n")
    for line in sys.stdin:
        # Its signal kills the process: nothing else interrupts the compiler.
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            figures = judge.figures(json.loads(line))
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
