"""Inputs of reward models as the authors' published code makes them, independent of ours."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase


class LabelInput(NamedTuple):
    """Token ids, the positions at which labels are read, and the labels for right and wrong."""

    token_ids: list[int]
    tags: list[int]
    labels: tuple[int, int]


def label_input(tokenizer: PreTrainedTokenizerBase, text: str, tag: int, labels: Sequence[int]) -> LabelInput:
    """A text in which labels are read wherever the tag is."""
    ids = tokenizer.encode(text)
    if tokenizer.bos_token_id is not None and ids[0] != tokenizer.bos_token_id:
        ids.insert(0, tokenizer.bos_token_id)  # tokenizers of the tests, which have one and do not add it
    good, bad = labels
    return LabelInput(ids, [position for position, token in enumerate(ids) if token == tag], (good, bad))


def last_token(tokenizer: PreTrainedTokenizerBase, text: str) -> int:
    return int(tokenizer.encode(text, add_special_tokens=False)[-1])


def numbered(steps: Sequence[str]) -> list[str]:
    """``Step 1: `` before the first step, unless the step says so itself."""
    texts = [step.strip() for step in steps]
    return [text if text.startswith(("Step", "step")) else f"Step {n}: {text}" for n, text in enumerate(texts, 1)]


def math_shepherd_input(tokenizer: PreTrainedTokenizerBase, question: str, steps: Sequence[str]) -> LabelInput:
    """``MathShepherd.getitem_function`` of ssmisya/PRMBench (a1ae4ea), ``mr_eval/models/math_shepherd.py``."""
    text = f"{question} " + "".join(f"{step} ки\n" for step in numbered(steps))
    labels = tokenizer.encode("+ -", add_special_tokens=False)
    return label_input(tokenizer, text, last_token(tokenizer, "ки"), labels)


def er_prm_input(tokenizer: PreTrainedTokenizerBase, question: str, steps: Sequence[str]) -> LabelInput:
    """``select_sample`` and ``worker`` of hanningzhang/ER-PRM (5a996d4), ``evaluation/evaluate_math_reward_model.py``,
    with an answer as in its README."""
    answer = "\n".join(f"{step} ки" for step in numbered(steps)).replace(" ки\n", " ки")
    labels = last_token(tokenizer, " +"), last_token(tokenizer, " -")
    return label_input(tokenizer, f"{question} {answer}", last_token(tokenizer, " ки"), labels)


def math_psa_input(tokenizer: PreTrainedTokenizerBase, question: str, steps: Sequence[str]) -> LabelInput:
    """``_qwen_math_infer_fn`` of openreasoner/openr (54ae004), ``prm/infer_fns.py``, with the text of the example in
    ``prm/code/test_qwen.py``."""
    text = f"{question} " + " ".join(f"{step} \n\n\n\n\n" for step in numbered(steps))
    labels = tokenizer.encode(" + -", add_special_tokens=False)
    return label_input(tokenizer, text, last_token(tokenizer, " \n\n\n\n\n"), labels)


def versaprm_input(tokenizer: PreTrainedTokenizerBase, question: str, steps: Sequence[str]) -> LabelInput:
    """``main`` of UW-Madison-Lee-Lab/VersaPRM (81a3c99), ``evaluation/get_rewards_reasoning_step.py``, and of
    db-Lee/Multi-RM (65b3e8e) ``flatten_all_data`` in ``discriminative/get_reward.py``."""
    text = f"{question.strip()} \n\n" + "".join(f"{step.strip()} \n\n\n\n" for step in steps)
    labels = last_token(tokenizer, "+"), last_token(tokenizer, "-")
    return label_input(tokenizer, text, last_token(tokenizer, " \n\n\n\n"), labels)


LABEL_INPUTS: dict[str, Callable[[PreTrainedTokenizerBase, str, Sequence[str]], LabelInput]] = {
    "math_shepherd": math_shepherd_input,
    "er_prm": er_prm_input,
    "math_psa": math_psa_input,
    "versaprm": versaprm_input,
    "multi_rm": versaprm_input,
}


def trl_input(
    tokenizer: PreTrainedTokenizerBase, question: str, steps: Sequence[str], separator: str
) -> tuple[list[int], list[int]]:
    """Token ids, and the positions of labels: ``PRMTrainer.tokenize_row`` of huggingface/trl (f2cd577),
    ``trl/experimental/prm/prm_trainer.py``."""
    ids = tokenizer(question, add_special_tokens=False)["input_ids"]
    ids = [*([] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]), *ids]
    ends: list[int] = []
    for step in steps:
        ids += tokenizer(step, add_special_tokens=False)["input_ids"]
        ids += tokenizer.encode(separator, add_special_tokens=False)
        ends.append(len(ids) - 1)
    return ids, ends


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


Input = tuple[list[int], list[int]]
"""Token ids, and the positions at which rewards are read."""


def pqm_input(tokenizer: PreTrainedTokenizerBase, question: str, steps: Sequence[str]) -> Input:
    """``instruction_format`` and ``data_collator`` of WindyLee0822/Process_Q_Model (c5a2a02), ``bon_eval_hf.py``."""
    query = (
        "Below is an instruction that describes a task.\nWrite a response that appropriately completes the request.\n\n"
        f"### Instruction:\n{question}\n\n### Response: Let's think step by step"
    )
    answer = " [PRM]\n".join(numbered(steps)) + " [PRM]"
    ids = tokenizer.encode(f"{query}\n{answer}", add_special_tokens=False)
    tag = tokenizer.encode("[PRM]", add_special_tokens=False)[-1]
    return ids, [position for position, token in enumerate(ids) if token == tag]


def llemma_prm_input(tokenizer: PreTrainedTokenizerBase, question: str, steps: Sequence[str]) -> Input:
    """The example in the model card of ScalableMath/llemma-7b-prm-prm800k-level-1to3-hf, for tokenizers like its own.
    Without the two empty lines around the heading, of which the example leaves out one and says that of both."""
    text = f"# Question\n\n{question}\n\n# Solution\n\n" + "".join(f"{step.strip()}\n\n" for step in steps)
    heading = tokenizer.encode("\n\n# Solution", add_special_tokens=False)[1:]
    tag = tokenizer.encode("\n\n", add_special_tokens=False)[1:]
    ids = label_input(tokenizer, text, -1, (0, 0)).token_ids
    [begin] = [index for index in range(len(ids)) if ids[index : index + len(heading)] == heading]
    found = [index for index in range(begin, len(ids)) if ids[index : index + len(tag)] == tag]
    return ids, found[2:]


def math_minos_input(tokenizer: PreTrainedTokenizerBase, question: str, steps: Sequence[str]) -> Input:
    """``getitem_function`` of ssmisya/PRMBench (a1ae4ea), ``mr_eval/models/mathminos_mistral.py``."""
    text = f"Human: {question}\n\nAssistant:" + "".join(f"{step} и\n" for step in numbered(steps))
    published = label_input(tokenizer, text, last_token(tokenizer, "и"), (0, 0))
    return published.token_ids, published.tags


def reason_eval_input(tokenizer: PreTrainedTokenizerBase, question: str, steps: Sequence[str]) -> Input:
    """``get_results`` of GAIR-NLP/ReasonEval (6c91c7a), ``codes/examples.py``: that of the 7B model where the padding
    token is the beginning-of-text token, else that of the 34B model."""
    separator = str(tokenizer.pad_token)
    prompt = f"Question:\n{question}\nAnswer:\nLet's think step by step.\n"
    text = prompt + separator + "".join(step.strip() + separator for step in steps)
    ids: list[int] = []
    ends: list[int] = []
    for token in label_input(tokenizer, text, -1, (0, 0)).token_ids:
        if token == tokenizer.pad_token_id:
            ends.append(len(ids) - 1)
        else:
            ids.append(token)
    if tokenizer.pad_token == tokenizer.bos_token:
        return [tokenizer.bos_token_id, *ids], ends[2:]
    return ids, ends[1:]
