"""The tokenizer of a GGUF file whose vocabulary is Qwen2.5's with other added tokens, such as DeepSeek-R1-Distill's.

    python scripts/gguf_tokenizer.py MODEL.gguf QWEN2.5 DIRECTORY

transformers reads such a file as if it had Qwen2's own added tokens: it drops some of the file's, and appends three.
The file may be only the beginning of a model: what it says of the tokenizer comes before the weights. Needs the package
gguf, like ``gguf_to_safetensors.py``.
"""

import json
import os
import sys
from pathlib import Path

from gguf import GGUFReader, TokenType

WHOLE = 32 << 30
"""Size that no such model exceeds, bytes: the reader maps the weights, so a beginning becomes a sparse file of it."""


def main(source: Path, base: Path, target: Path) -> None:
    os.truncate(source, WHOLE)
    reader = GGUFReader(source)

    def value(name: str) -> object:
        field = reader.get_field(f"tokenizer.{name}")
        assert field is not None, name
        return field.contents()

    tokens, types = value("ggml.tokens"), value("ggml.token_type")
    assert isinstance(tokens, list)
    assert isinstance(types, list)
    tokenizer = json.loads((base / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    if any(tokens[index] != token for token, index in vocabulary.items()):
        sys.exit(f"{source} has another vocabulary than {base}")
    tokenizer["added_tokens"] = [
        {
            "id": index,
            "content": tokens[index],
            "special": types[index] == TokenType.CONTROL,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        }
        for index in range(len(vocabulary), len(tokens))
        if types[index] in (TokenType.CONTROL, TokenType.USER_DEFINED)
    ]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": value("chat_template"),
        **{f"{name}_token": tokens[int(str(value(f"ggml.{name}_token_id")))] for name in ("bos", "eos")},
        "clean_up_tokenization_spaces": False,
    }
    target.mkdir()
    (target / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    (target / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
