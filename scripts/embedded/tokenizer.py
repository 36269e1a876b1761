"""Tokenizer of both embedded models: byte-level BPE like Qwen2's, with a small vocabulary.

Digits are single tokens, so arithmetic is learned digit by digit. The words of the problems and the step delimiter
``\\n\\n`` are one token each. All other text falls back to bytes, so any input can be encoded.
"""

from itertools import islice

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from deployments.embedded.problems import Split, draw_problems

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
STEP_TAG = "<extra_0>"
STEP_DELIMITER = "\n\n"
CONTEXT_TOKENS = 1024

# ChatML as in Qwen2, without a default system turn.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Qwen2's split: words with their leading space, single digits, punctuation, runs of newlines.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build_tokenizer(corpus_size: int = 2000) -> PreTrainedTokenizerFast:
    """Learns the merges from ``corpus_size`` training problems; every call gives the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        min_frequency=100,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END, STEP_TAG],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = (
        f"user\n{problem.text}\nassistant\n{STEP_DELIMITER.join(problem.solution)}"
        for problem in islice(draw_problems(Split.TRAIN, seed=0), corpus_size)
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START, STEP_TAG],
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
    )
