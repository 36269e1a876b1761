"""Reads facts from a model's files before an engine loads them: from its directory, or this machine's hub cache.

Results are None if the files are not on this machine or lack the fact. The engine then finds out at its start, perhaps
on another machine.
"""

import json
from pathlib import Path
from typing import Any

from deployments.engines.settings import CONFIG_FILES, EngineSettings

_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
_UNSCALED_ROPE = ("default", "llama3", "yarn", "longrope", "su", "mrope")
"""RoPE types without a ``factor``, or with one that the file's context length already includes."""
_SAMPLE = r"""Let $f(x) = x^2 - 14x + 45$. We want the sum of its roots, so we factor: $f(x) = (x - 5)(x - 9)$.
Step 2: The roots are 5 and 9, and by Vieta's formulas their sum is $-\frac{-14}{1} = 14$.

A train travels 180 kilometers in 2.5 hours. Its average speed is 180 / 2.5 = 72 km/h; at this rate it needs
another 1,250 / 72 = 17.36 hours. Therefore, the answer is $\boxed{14}$. def area(r): return 3.14159 * r ** 2
"""


def longest_context(settings: EngineSettings) -> int | None:
    """Context length of the model in tokens, as vLLM derives it from ``config.json``."""
    config = _json(settings, "config.json")
    if config is None or "hf_overrides" in settings.engine_args:
        return None
    text = config.get("text_config") or config
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    kind = (rope.get("rope_type") or rope.get("type") or "default") if isinstance(rope, dict) else None
    lengths = [text[name] for name in _CONTEXT if isinstance(text.get(name), int)]
    return min(lengths) if lengths and kind in _UNSCALED_ROPE else None


def token_ratio(written: EngineSettings, read: EngineSettings) -> float | None:
    """Tokens of the second model per token of the first, measured on a page of mathematics; 1 for equal
    tokenizers."""
    first, second = _tokens(written), _tokens(read)
    return second / first if first and second else None


def model_directories(settings: EngineSettings) -> list[Path | None]:
    """Directory of the files of each model that the engine loads; None for one that is not on this machine."""
    revisions = settings.revisions
    configs = (
        _file(settings, CONFIG_FILES[name], path, revisions.get(name)) for name, path in settings.model_paths.items()
    )
    return [config and config.parent for config in configs]


def has_tokenizer(settings: EngineSettings) -> bool:
    """Whether the files of the engine's tokenizer are on this machine."""
    source = settings.tokenizer
    return any(_file(settings, name, source.path, source.revision) for name in _TOKENIZER_FILES)


def _tokens(settings: EngineSettings) -> int | None:
    source = settings.tokenizer
    file = _file(settings, "tokenizer.json", source.path, source.revision)
    if file is None:
        return None
    from tokenizers import Tokenizer  # of the engines' packages, like the hub's client below

    try:
        return len(Tokenizer.from_file(str(file)).encode(_SAMPLE, add_special_tokens=False).ids)
    except Exception:  # the library raises nothing more specific for a file that it cannot read
        return None


def _json(settings: EngineSettings, name: str) -> dict[str, Any] | None:
    file = _file(settings, name)
    if file is None:
        return None
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _file(settings: EngineSettings, name: str, model: str | None = None, revision: str | None = None) -> Path | None:
    """A file of ``model``, which is the engine's own one where none is given."""
    if model is None:
        model, revision = settings.model_path, settings.engine_args.get("revision")
    directory = Path(model)
    if directory.is_dir():
        return directory / name if (directory / name).is_file() else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cache = settings.engine_args.get("download_dir")
        cached = try_to_load_from_cache(model, name, cache_dir=cache, revision=revision)
    except HFValidationError:  # neither a directory here nor a hub id
        return None
    return Path(cached) if isinstance(cached, str) else None
