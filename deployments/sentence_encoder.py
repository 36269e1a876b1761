"""A sentence encoder as ``sentence_transformers`` saves them: a transformer, and how its token vectors become one."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MODULES = "modules.json"
"""Names the parts of a sentence encoder; beside the transformer's own files."""
BATCH = 32
"""Texts encoded at a time. Sorted by length before, so that little is padded."""
_OLD_POOLINGS = {
    f"pooling_mode_{flag}": name
    for flag, name in {
        "mean_tokens": "mean",
        "cls_token": "cls",
        "max_tokens": "max",
        "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
        "weightedmean_tokens": "weightedmean",
        "lasttoken": "lasttoken",
    }.items()
}


class SentenceEncoder:
    """A transformer whose token vectors become one vector for a text."""

    def __init__(self, directory: Path) -> None:
        """
        Raises:
            ValueError: it has parts that are not known here.
            OSError: its files cannot be read.
        """
        from transformers import AutoModel, AutoTokenizer

        parts = _parts(directory)
        transformer = directory / parts.get("Transformer", "")
        self._pooling = _pooling(directory / parts["Pooling"]) if "Pooling" in parts else "mean"
        said = _json(transformer / "sentence_bert_config.json")
        self._lower = bool(said.get("do_lower_case"))
        self._tokenizer = AutoTokenizer.from_pretrained(transformer)
        self._model = AutoModel.from_pretrained(transformer).float().eval()
        most = self._model.config.max_position_embeddings
        self._max_tokens = min(int(said.get("max_seq_length") or most), most)

    def encode(self, texts: Sequence[str]) -> "NDArray[np.floating]":
        """A vector for each text, as rows; what is longer than the model reads is cut off."""
        import numpy as np

        by_length = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        rows = [
            self._batch([texts[index] for index in by_length[at : at + BATCH]]) for at in range(0, len(texts), BATCH)
        ]
        vectors = np.concatenate(rows)
        in_order: NDArray[np.floating] = np.empty_like(vectors)
        in_order[by_length] = vectors
        return in_order

    def _batch(self, texts: list[str]) -> "NDArray[np.floating]":
        import torch

        written = [text.lower() for text in texts] if self._lower else texts
        inputs = self._tokenizer(
            written, padding=True, truncation=True, max_length=self._max_tokens, return_tensors="pt"
        )
        with torch.inference_mode():
            hidden = self._model(**inputs).last_hidden_state
        if self._pooling == "cls":
            pooled = hidden[:, 0]
        else:
            mask = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
            pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
        rows: NDArray[np.floating] = pooled.numpy()
        return rows


def _parts(directory: Path) -> dict[str, str]:
    """The folder of each part, by its kind."""
    file = directory / MODULES
    listed = json.loads(file.read_bytes()) if file.is_file() else []
    parts = {module["type"].rpartition(".")[2]: module["path"] for module in listed}
    # Whether vectors are of length 1 makes no difference to the angles between them.
    if unknown := parts.keys() - {"Transformer", "Pooling", "Normalize"}:
        raise ValueError(f"a sentence encoder with {min(unknown)} is not known here")
    return parts


def _pooling(directory: Path) -> str:
    """How a text's vector is made of its tokens'. Older files say it by a flag for each way."""
    said = _json(directory / "config.json")
    modes = said.get("pooling_mode") or [name for name, on in said.items() if on is True and name in _OLD_POOLINGS]
    modes = [modes] if isinstance(modes, str) else list(modes)
    names = [_OLD_POOLINGS.get(mode, mode) for mode in modes]
    if names not in (["mean"], ["cls"]):
        raise ValueError(f"a sentence encoder that pools by {' and '.join(names) or 'nothing'} is not known here")
    return str(names[0])


def _json(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_bytes()) if file.is_file() else {}
    return content
