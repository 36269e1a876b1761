"""Inputs of reward models as the authors' published code makes them, independent of ours."""

from transformers import PreTrainedTokenizerBase


def skywork_input(tokenizer: PreTrainedTokenizerBase, question: str, response: str) -> tuple[list[int], list[int]]:
    """Token ids, and 1 at each position where a reward is read: ``prepare_input`` of SkyworkAI/skywork-o1-prm-inference
    (719b56b), ``model_utils/io_utils.py``, with the step token of its examples, a newline."""
    ids = tokenizer.encode((tokenizer.bos_token or "") + question + "\n")
    flags = [0] * len(ids)
    newline = tokenizer.encode("\n")[-1]
    for line in response.split("\n"):
        line_ids = tokenizer.encode(line) if line else []
        ids += [*line_ids, newline]
        flags += [*(0 for _ in line_ids), 1]
    return ids, flags
