"""Models that `scripts/models` has fetched; `make test-models` runs it first."""

import warnings
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import tests.ray_environment  # noqa: F401  # before vLLM imports Ray

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's imports warn about torch
    import deployments.engines.lifecycle  # noqa: F401

MODELS = Path(__file__).resolve().parents[2] / ".models"


def model_directory(name: str) -> Path:
    """A fetched model or tokenizer. Without it a test fails; it is not skipped."""
    directory = MODELS / name
    if not directory.is_dir():
        pytest.fail(f"there is no {directory}: `make test-models` fetches it")
    return directory


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(model_directory(name))
