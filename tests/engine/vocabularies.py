"""Small byte-level tokenizers with exactly the tokens that a test names, and a token for every byte."""

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

EOS = "<eos>"


def byte_level(merged: Sequence[str]) -> PreTrainedTokenizerFast:
    """A GPT-2-like vocabulary: ``merged`` are its tokens of several bytes, each merged from its bytes left to right.

    Like GPT-2's it never merges over two newlines when it encodes: models write what they have read.
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
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("\n", behavior="merged_with_previous"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(EOS, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, bos_token=EOS)


def token_id(tokenizer: PreTrainedTokenizerFast, text: str) -> int:
    """Id of the one token with the text ``text``."""
    token = tokenizer.convert_tokens_to_ids(text if text == EOS else _letters(text))
    assert isinstance(token, int)
    return token


def token_ids(tokenizer: PreTrainedTokenizerFast, *texts: str) -> list[int]:
    """One id for each text, whatever the tokenizer's own encoding is."""
    return [token_id(tokenizer, text) for text in texts]


def _letters(text: str) -> str:
    """The byte-level spelling: a printable letter for each byte."""
    [(letters, _)] = pre_tokenizers.ByteLevel(False, use_regex=False).pre_tokenize_str(text)
    return str(letters)
