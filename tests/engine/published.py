"""Inputs of reward models as the authors' published code makes them, independent of ours."""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from deployments.engines.rewards.generative_presets import RPrmSettings

R_PRM_TEMPLATE = "9081f49f2d995e032c673a6adf1ab12fbed97355b167271ad2b7893be7995502"


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


class VerifierInput(NamedTuple):
    """The texts behind which a verifier's critique and its verdict are generated, and the tokens of the verdict."""

    critique: str
    verdict: str
    labels: tuple[int, int]


def verifier_input(
    tokenizer: PreTrainedTokenizerBase, prompt: str, verdict: str, labels: tuple[str, str]
) -> VerifierInput:
    """``labels``: as they are read behind ``verdict``."""
    good, bad = (last_token(tokenizer, verdict + label) for label in labels)
    return VerifierInput(prompt, verdict, (good, bad))


def in_chat(tokenizer: PreTrainedTokenizerBase, *turns: tuple[str, str]) -> str:
    messages = [{"role": role, "content": text} for role, text in turns]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


REVIEW = (
    "Review and critique each step in the proposed solution to determine whether each step is correct. "
    "If the solution is incomplete, only verify the provided steps."
)


def think_prm_input(
    tokenizer: PreTrainedTokenizerBase, question: str, steps: Sequence[str], critique: str
) -> VerifierInput:
    """``APIThinkPRMVerifier`` with ``process_verifier`` of mukhal/ThinkPRM (214cce9), ``prm/thinkprm_api.py``, and
    ``format_verification_cot_for_thinkprm`` in ``utils/helper.py``."""
    lines = [f"Step {n}: " + re.sub(r"Step \d+:", "", step).strip() for n, step in enumerate(steps, 1)]
    text = (
        "You are given a math problem and a proposed step-by-step solution:\n\n[Math Problem]\n\n"
        + question
        + "\n\n[Solution]\n\n"
        + "\n".join(lines)
        + "\n\n"
        + REVIEW
    )
    prompt = in_chat(tokenizer, ("user", text)) + "\nLet's verify step by step:"
    stops = ["Is the solution correct?", str(tokenizer.eos_token), "</think>", f"Step {len(steps) + 1}:"]
    critique = critique[: min([critique.find(stop) for stop in stops if stop in critique], default=None)]
    predecision = "\nIs the solution correct? "  # its last space is the first letter of the label's token
    return verifier_input(tokenizer, prompt, prompt + critique + predecision[:-1], (" yes", " no"))


def multi_rm_generative_input(
    tokenizer: PreTrainedTokenizerBase, question: str, steps: Sequence[str], critique: str
) -> VerifierInput:
    """``PRM_PROMPT_FORMAT`` of db-Lee/Multi-RM (2fe71be), ``generative/prompt_formats.py``, and ``RewardModel`` in
    ``generative/reward_model.py``. It stops at the label that follows the question."""
    lines = "\n".join(f"Step {n}: {step.strip()}" for n, step in enumerate(steps, 1))
    text = (
        "You are given a math problem and a proposed step-by-step solution:\n\n"
        f"[Math Problem]\n{question}\n\n[Solution]\n{lines}\n\n{REVIEW}"
    )
    prompt = in_chat(tokenizer, ("user", text)) + "Let's verify step by step:"
    cue = "Is the solution correct?"
    written = critique.partition(cue)[0] + cue if cue in critique else f"{critique}\n{cue}"
    return verifier_input(tokenizer, prompt, prompt + written, (" Yes", " No"))


def gen_prm_input(
    tokenizer: PreTrainedTokenizerBase, question: str, steps: Sequence[str], critique: str
) -> VerifierInput:
    """``Reward_Service.inference`` with ``analyze`` alone of RyanLiu112/GenPRM (30c25df),
    ``src/prm_evaluation/infer_module/infer_genprm.py``. Earlier paragraphs are answered by ``output_template``."""
    system = "You are a math teacher. Your task is to review and critique the paragraphs in solution step by step."
    turns = [("system", system)]
    for number, step in enumerate(steps):
        turns.append(("user", step.strip() if number else f"{question}\n{step.strip()}"))
        turns.append(("assistant", "<output>\n**Judgement**: $\\boxed{Yes}$\n</output>\n"))
    prompt = in_chat(tokenizer, *turns[:-1])
    analyze = f"<analyze>\nLet's analyze the Paragraph {len(steps)} step by step: "
    written = critique.partition("</analyze>")[0] + "</analyze>\n" + "<output>\n**Judgement**: $\\boxed"
    return verifier_input(tokenizer, prompt + analyze, prompt + analyze + written + "{", ("Yes", "No"))


def r_prm_input(
    tokenizer: PreTrainedTokenizerBase, question: str, steps: Sequence[str], critique: str
) -> VerifierInput:
    """``get_critique_prompt`` and ``get_reward`` of NJUNLP/R-PRM (e3dd605),
    ``src/reward-guide-search/code/GenPRM-Greedy-Seach-Zero-Shot.py``, with the template of
    ``src/prompts/GenPRM/GenPRM-evaluate-new3.json``, which is known by its digest here."""
    template = re.sub(r"\{\w+\}", "{}", RPrmSettings.preset.user)
    assert hashlib.sha256(template.encode()).hexdigest() == R_PRM_TEMPLATE
    stripped = [step.strip() for step in steps]
    none = "Since the Now Step is the first step, there are no Previous Steps."
    text = template.format(question, "\n".join(stripped[:-1]) if stripped[:-1] else none, stripped[-1])
    prompt = in_chat(tokenizer, ("system", "You are a helpful assistant."), ("user", text))
    cue = "Is the step correct (Yes/No)?"
    written = critique.partition(cue)[0] + cue if cue in critique else f"{critique}\nBased on your analysis. {cue}"
    return verifier_input(tokenizer, prompt, prompt + written, (" Yes", " No"))


VERIFIER_INPUTS: dict[str, Callable[[PreTrainedTokenizerBase, str, Sequence[str], str], VerifierInput]] = {
    "think_prm": think_prm_input,
    "multi_rm_generative": multi_rm_generative_input,
    "gen_prm": gen_prm_input,
    "r_prm": r_prm_input,
}
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
