"""Tiny random models of every reward family's architecture and weight names, with the published formula computed by
transformers and torch alone."""

import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    MistralConfig,
    MistralForCausalLM,
    MistralForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForTokenClassification,
)

from deployments.engines.rewards.ensemble_head import SYSTEM_PROMPT
from scripts.embedded.tokenizer import CONTEXT_TOKENS, build_tokenizer
from tests.engine.adapters import add_by_hand, save_adapter
from tests.engine.published import (
    Input,
    llemma_prm_input,
    math_minos_input,
    math_psa_input,
    pqm_input,
    reason_eval_input,
    skywork_input,
    trl_input,
)
from tests.engine.vocabularies import LLAMA_3, byte_level, sentencepiece

HEADS = 3
BETA = 0.02
WIDTH = 128
SHAPE: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 384,
    "max_position_embeddings": CONTEXT_TOKENS,
    "initializer_range": 0.2,  # so that scores differ clearly
}

Formula = Callable[[str, Sequence[str]], list[float]]
Inputs = Callable[[PreTrainedTokenizerBase, str, Sequence[str]], Input]
Numbers = Callable[[torch.Tensor], torch.Tensor]


class RewardModel(NamedTuple):
    """A family's own settings, and its formula."""

    settings: dict[str, Any]
    formula: Formula


@cache
def _built_tokenizer() -> PreTrainedTokenizerBase:
    return build_tokenizer()


def own_tokenizer() -> PreTrainedTokenizerBase:
    """The embedded models' tokenizer, to be changed as a model needs: training it takes longer than all else here."""
    return deepcopy(_built_tokenizer())


def random_path(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    steps = tuple(
        f"{rng.randint(1, 99)} {rng.choice('+-*')} {rng.randint(1, 99)} = {rng.randint(1, 999)}\n\n"
        for _ in range(rng.randint(1, 6))
    )
    return f"Start with {rng.randint(1, 99)}. What is the result?", steps


def read_at(body: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, inputs: Inputs, rewards: Numbers) -> Formula:
    """Rewards made of the hidden states at the positions of an input."""

    @torch.inference_mode()
    def formula(question: str, steps: Sequence[str]) -> list[float]:
        ids, ends = inputs(tokenizer, question, steps)
        hidden = body(input_ids=torch.tensor([ids])).last_hidden_state[0, ends]
        return [float(reward) for reward in rewards(hidden)]

    return formula


def at_last_token(inputs: Callable[[PreTrainedTokenizerBase, str, str], list[int]]) -> Callable[..., Formula]:
    """The formula of models that read the path up to each step as a solution."""

    def formula_of(body: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rewards: Numbers) -> Formula:
        def last(tokenizer: PreTrainedTokenizerBase, question: str, steps: Sequence[str]) -> Input:
            ids = inputs(tokenizer, question, "".join(steps))
            return ids, [len(ids) - 1]

        one = read_at(body, tokenizer, last, rewards)
        return lambda question, steps: [one(question, steps[:end])[0] for end in range(1, len(steps) + 1)]

    return formula_of


def chat_ids(tokenizer: PreTrainedTokenizerBase, question: str, solution: str) -> list[int]:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": solution}]
    return encoded(tokenizer, tokenizer.apply_chat_template(turns, tokenize=False))


def encoded(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def sigmoid_of(head: torch.nn.Module) -> Numbers:
    return lambda hidden: head(hidden)[:, 0].double().sigmoid()


def save_with_head(
    directory: Path,
    model: PreTrainedModel,
    architecture: str,
    head: dict[str, torch.Tensor],
    prefix: str = "",
    **settings: Any,
) -> None:
    """A model's weights and a head, named as in the family's checkpoints."""
    model.config.update({"architectures": [architecture], **settings})
    model.config.save_pretrained(directory)
    weights = {f"{prefix}{name}": part.detach().clone() for name, part in model.state_dict().items()}
    save_file(weights | head, directory / "model.safetensors", metadata={"format": "pt"})


def linear(classes: int, bias: bool = True) -> torch.nn.Linear:
    head = torch.nn.Linear(WIDTH, classes, bias)
    torch.nn.init.normal_(head.weight, std=0.3)
    return head.eval()


def named(prefix: str, head: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {f"{prefix}{name}": part.detach().clone() for name, part in head.state_dict().items()}


def qwen2() -> Qwen2ForCausalLM:
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE)).float().eval()


def llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**SHAPE)).float().eval()


def mistral_config() -> MistralConfig:
    return MistralConfig(**SHAPE, sliding_window=None)


@torch.inference_mode()
def label_share(model: torch.nn.Module, prompt: list[int], labels: tuple[int, int]) -> float:
    """Softmax over the logits of the two labels after a prompt."""
    logits = model(input_ids=torch.tensor([prompt])).logits[0, -1]
    return float(torch.softmax(logits[list(labels)].double(), dim=0)[0])


def turns_formula(directory: Path) -> Formula:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = LlamaForCausalLM.from_pretrained(directory).float().eval()
    labels = tokenizer.encode("+")[-1], tokenizer.encode("-")[-1]

    def rewards(question: str, steps: Sequence[str]) -> list[float]:
        turns: list[dict[str, str]] = []
        found: list[float] = []
        for index, step in enumerate(steps):
            turns.append({"role": "user", "content": step.strip() if index else f"{question} {step.strip()}"})
            text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
            found.append(label_share(model, tokenizer.encode(text, add_special_tokens=False), labels))
            turns.append({"role": "assistant", "content": "+"})
        return found

    return rewards


def math_psa_formula(directory: Path) -> Formula:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = Qwen2ForCausalLM.from_pretrained(directory).float().eval()
    with torch.no_grad():
        add_by_hand(dict(model.named_parameters()), directory / "adapter")

    @torch.inference_mode()
    def rewards(question: str, steps: Sequence[str]) -> list[float]:
        published = math_psa_input(tokenizer, question, steps)
        logits = model(input_ids=torch.tensor([published.token_ids])).logits[0, published.tags]
        return [float(share) for share in logits[:, list(published.labels)].double().softmax(dim=-1)[:, 0]]

    return rewards


@torch.inference_mode()
def log_probabilities(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    """Of each token but the first, given those before it."""
    logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].double()
    return logits.log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]


def implicit_formula(directory: Path) -> Formula:
    """r_t of arXiv 2412.01981; `get_logps` as in PRIME-RL/ImplicitPRM (c044175), ``eval/prm_eval_utils.py``."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    models = [Qwen2ForCausalLM.from_pretrained(path).float().eval() for path in (directory, directory / "reference")]

    def rewards(question: str, steps: Sequence[str]) -> list[float]:
        turn = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        texts = [turn + "".join(f"{step.strip()}\n\n" for step in steps[:end]) for end in range(len(steps) + 1)]
        lengths = [len(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
        policy, reference = (log_probabilities(model, tokenizer.encode(texts[-1])) for model in models)
        ratios = policy - reference
        # The first one is of the second token.
        return [float((BETA * ratios[start - 1 : end - 1].sum()).sigmoid()) for start, end in pairwise(lengths)]

    return rewards


def label_turns(directory: Path) -> RewardModel:
    llama().save_pretrained(directory)
    own_tokenizer().save_pretrained(directory)
    return RewardModel({}, turns_formula(directory))


def math_psa(directory: Path) -> RewardModel:
    byte_level([" \n\n\n\n\n", " +", " -", "Step"], LLAMA_3).save_pretrained(directory)
    # As it is published: an adapter.
    base = qwen2()
    base.save_pretrained(directory)
    projections = {name: part for name, part in base.named_parameters() if "q_proj.w" in name or "v_proj.w" in name}
    save_adapter(directory / "adapter", projections)
    return RewardModel({"lora": str(directory / "adapter")}, math_psa_formula(directory))


def token_class(directory: Path) -> RewardModel:
    model = Qwen2ForTokenClassification(Qwen2Config(**SHAPE, num_labels=2)).eval()
    torch.nn.init.normal_(model.score.bias)
    model.save_pretrained(directory)
    tokenizer = saved(own_tokenizer(), directory)

    def inputs(tokenizer: PreTrainedTokenizerBase, question: str, steps: Sequence[str]) -> Input:
        return trl_input(tokenizer, question, [step.strip() for step in steps], "\n")

    return RewardModel(
        {}, read_at(model.model, tokenizer, inputs, lambda hidden: model.score(hidden).double().softmax(dim=-1)[:, 1])
    )


def value_head(directory: Path) -> RewardModel:
    model, head = qwen2(), linear(1)
    # As in Skywork's checkpoints, whose config names another architecture: the family corrects it.
    save_with_head(directory, model, "Qwen2ForPrmModel", named("v_head.summary.", head))
    tokenizer = saved(own_tokenizer(), directory)

    def inputs(tokenizer: PreTrainedTokenizerBase, question: str, steps: Sequence[str]) -> Input:
        ids, flags = skywork_input(tokenizer, question, "\n".join(step.strip() for step in steps))
        return ids, [index for index, flag in enumerate(flags) if flag]

    return RewardModel({}, read_at(model.model, tokenizer, inputs, sigmoid_of(head)))


def pqm(directory: Path) -> RewardModel:
    model, head = llama(), linear(1)
    save_with_head(directory, model, "LlamaForCausalLM", named("v_head.summary.", head), "pretrained_model.")
    tokenizer = own_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["[PRM]"]})
    return RewardModel({}, read_at(model.model, saved(tokenizer, directory), pqm_input, sigmoid_of(head)))


def llemma_prm(directory: Path) -> RewardModel:
    model = llama()
    with torch.no_grad():
        model.lm_head.weight.copy_(model.lm_head.weight[:2].repeat(SHAPE["vocab_size"] // 2, 1))
    model.save_pretrained(directory)
    tokenizer = saved(sentencepiece(), directory)
    mean: Numbers = lambda hidden: model.lm_head(hidden).mean(dim=-1).double().sigmoid()  # noqa: E731
    return RewardModel({}, read_at(model.model, tokenizer, llemma_prm_input, mean))


def math_minos(directory: Path) -> RewardModel:
    config = mistral_config()
    config.num_labels = 1
    model = MistralForTokenClassification(config).eval()
    torch.nn.init.normal_(model.score.bias)
    model.save_pretrained(directory)
    tokenizer = saved(sentencepiece(), directory)
    return RewardModel({}, read_at(model.model, tokenizer, math_minos_input, sigmoid_of(model.score)))


def reason_eval(directory: Path) -> RewardModel:
    model, head = MistralForCausalLM(mistral_config()).eval(), linear(3)
    save_with_head(
        directory, model, "ReasonEval_7B", named("score_head.", head), score_dimension=len(head.bias), use_bias=True
    )
    tokenizer = sentencepiece()
    tokenizer.pad_token = tokenizer.bos_token
    validity: Numbers = lambda hidden: head(hidden).double().softmax(dim=-1)[:, 1:].sum(dim=-1)  # noqa: E731
    return RewardModel({}, read_at(model.model, saved(tokenizer, directory), reason_eval_input, validity))


def outcome(directory: Path) -> RewardModel:
    model = qwen2()
    head = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), linear(1))
    save_with_head(directory, model, "Qwen2ForRewardModel", named("score.", head))
    formula = at_last_token(chat_ids)(model.model, saved(own_tokenizer(), directory), sigmoid_of(head))
    return RewardModel({}, formula)


def outcome_of_a_classifier(directory: Path) -> RewardModel:
    """As Skywork-Reward, AceMath-RM."""
    config = LlamaConfig(**SHAPE, num_labels=1)
    model = LlamaForSequenceClassification(config).eval()
    model.save_pretrained(directory)
    formula = at_last_token(chat_ids)(model.model, saved(own_tokenizer(), directory), sigmoid_of(model.score))
    return RewardModel({"family": "outcome"}, formula)


def trajectory(directory: Path) -> RewardModel:
    model, head = qwen2(), linear(1)
    model.save_pretrained(directory)
    torch.save(head.state_dict(), directory / "reward_head.pt")
    as_it_is = at_last_token(lambda tokenizer, question, solution: encoded(tokenizer, question + solution))
    return RewardModel({}, as_it_is(model.model, saved(own_tokenizer(), directory), sigmoid_of(head)))


def eurus_rm(directory: Path) -> RewardModel:
    model, head = MistralForCausalLM(mistral_config()).eval(), linear(1, bias=False)
    save_with_head(directory, model, "EurusRewardModel", named("regression_head.", head))

    def inputs(tokenizer: PreTrainedTokenizerBase, question: str, solution: str) -> list[int]:
        return [int(tokenizer.bos_token_id), *encoded(tokenizer, f"[INST] {question} [\\INST] {solution}")]

    formula = at_last_token(inputs)(model.model, saved(sentencepiece(), directory), sigmoid_of(head))
    return RewardModel({}, formula)


def ensemble_head(directory: Path) -> RewardModel:
    model = qwen2()
    sizes = {"nn1": (WIDTH, 128), "nn2": (128, 128), "nn_out": (128, 1)}
    head = {
        f"score.{part}.{name}.{kind}": torch.randn(HEADS, *shape) / shape[0] ** 0.5
        for name, size in sizes.items()
        for kind, shape in (("weight", size), ("bias", size[1:]))
        for part in ("model", "reg_model")  # the second is there for training only
    }
    save_with_head(directory, model, "Qwen2ForEnsemblePRM", head, num_ensemble=HEADS)
    layers = [[head[f"score.model.{name}.{kind}"] for kind in ("weight", "bias")] for name in sizes]

    def inputs(tokenizer: PreTrainedTokenizerBase, question: str, steps: Sequence[str]) -> Input:
        turns = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        ids = encoded(tokenizer, text + "".join(f"{step.strip()}<extra_0>" for step in steps))
        return ids, [n for n, token in enumerate(ids) if token == tokenizer.convert_tokens_to_ids("<extra_0>")]

    def mean_of_sigmoids(hidden: torch.Tensor) -> torch.Tensor:
        shares: list[torch.Tensor] = []
        for number in range(HEADS):
            values = hidden
            for depth, (weight, bias) in enumerate(layers):
                values = (values.relu() if depth else values) @ weight[number] + bias[number]
            shares.append(values[:, 0].double().sigmoid())
        return torch.stack(shares).mean(dim=0)

    return RewardModel({}, read_at(model.model, saved(own_tokenizer(), directory), inputs, mean_of_sigmoids))


def implicit(directory: Path) -> RewardModel:
    for path in (directory, directory / "reference"):
        qwen2().save_pretrained(path)
        own_tokenizer().save_pretrained(path)
    return RewardModel({"reference": str(directory / "reference"), "beta": BETA}, implicit_formula(directory))


def saved(tokenizer: PreTrainedTokenizerBase, directory: Path) -> PreTrainedTokenizerBase:
    """The tokenizer as it is read from the directory."""
    tokenizer.save_pretrained(directory)
    read: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(directory)
    return read


MODELS: dict[str, Callable[[Path], RewardModel]] = {
    make.__name__: make
    for make in (
        label_turns,
        math_psa,
        token_class,
        value_head,
        pqm,
        llemma_prm,
        math_minos,
        reason_eval,
        ensemble_head,
        implicit,
        outcome,
        outcome_of_a_classifier,
        trajectory,
        eurus_rm,
    )
}
"""Writes a model and its tokenizer to a directory; by family, or by a kind of model of a family."""
