"""Small byte-level tokenizers with exactly the tokens that a test names, and a token for every byte."""

import json
from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

EOS = "<eos>"
NEWLINES = pre_tokenizers.Split("\n", behavior="merged_with_previous")
"""A newline ends a piece of text."""
LLAMA_3 = pre_tokenizers.Split(
    Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    behavior="isolated",
)
"""Llama 3's pieces of text, which are Qwen2.5's but for the digits: a run of newlines is one."""


def byte_level(merged: Sequence[str], pieces: pre_tokenizers.PreTokenizer = NEWLINES) -> PreTrainedTokenizerFast:
    """A GPT-2-like vocabulary: ``merged`` are its tokens of several bytes, each merged from its bytes left to right.

    It merges within ``pieces`` only. As GPT-2's it by default never merges over two newlines when it encodes: models
    write what they have read.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(alphabet)}
    merges: list[tuple[str, str]] = []
    for text in merged:
        letters = _letters(text)
        for end in range(2, len(letters) + 1):
            if letters[:end] not in vocabulary:
                merges.append((letters[: end - 1], letters[end - 1]))
                vocabulary[letters[:end]] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(EOS, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, bos_token=EOS)


def sentencepiece() -> PreTrainedTokenizerFast:
    """A tokenizer like Mistral's: every word begins with ▁, also the first one of a text, and unknown letters are
    bytes."""
    words = pre_tokenizers.Metaspace(prepend_scheme="first")
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = words
    texts = ["What is the result? 12 + 34 = 46", *["x + x - ки"] * 9]
    trained.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"]))
    model = json.loads(trained.to_str())["model"]
    vocabulary = model["vocab"] | {f"<0x{byte:02X}>": len(model["vocab"]) + byte for byte in range(256)}
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = words
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def token_id(tokenizer: PreTrainedTokenizerFast, text: str) -> int:
    """Id of the one token with the text ``text``."""
    token = tokenizer.convert_tokens_to_ids(text if text in tokenizer.get_added_vocab() else _letters(text))
    assert isinstance(token, int)
    return token


def token_ids(tokenizer: PreTrainedTokenizerFast, *texts: str) -> list[int]:
    """One id for each text, whatever the tokenizer's own encoding is."""
    return [token_id(tokenizer, text) for text in texts]


def _letters(text: str) -> str:
    """The byte-level spelling: a printable letter for each byte."""
    [(letters, _)] = pre_tokenizers.ByteLevel(False, use_regex=False).pre_tokenize_str(text)
    return str(letters)
