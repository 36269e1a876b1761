"""Second half of the recipe: a process reward model that is trained on steps of the generator.

Solutions to training problems are sampled from the shipped generator, and every step is labelled by checking its
arithmetic. The model is `Qwen2ForProcessRewardModel`: the Qwen2 trunk and a two-layer head that judges a step at the
``<extra_0>`` tag after it; class 1 means correct.

The trunk knows the correct digit, but only in its last layer and one position too early. So three layers are put on
top of it, with heads that initially attend to positions a little before their own. Only these layers and the head are
trained: they learn to compare the written tokens with the trunk's predictions. In training the tags have labels,
and so have the tokens up to the first wrong one, which has ten times the weight of the others.
"""

import math
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from scipy.stats import mannwhitneyu
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, Qwen2Model

from deployments.embedded.problems import LEVELS, Split, check_steps, draw_problems
from scripts.embedded.conversations import Conversation, conversations
from scripts.embedded.language_model import encode_prompt, qwen2_config, write_solutions
from scripts.embedded.tokenizer import STEP_DELIMITER, STEP_TAG

TRAINING_SOLUTIONS = 20_000
TRAINING_SEED = 4
SAMPLING_TEMPERATURE = 1.0
SAMPLING_BATCH = 256
BATCH = 32
EPOCHS = 6
PEAK_LEARNING_RATE = 3e-3
ADDED_LAYERS = 3
CLASS_WEIGHTS = torch.tensor([10.0, 1.0])
"""Loss weights of wrong and correct tokens: a solution has at most one token that is labelled wrong."""
WARM_UP_STEPS = 50
IGNORED = -100
WEIGHTS = "model.safetensors"


class LabelledSolution(NamedTuple):
    conversation: Conversation
    steps: tuple[str, ...]
    right: tuple[bool, ...]


class StepAuc(NamedTuple):
    """How well rewards separate correct from wrong steps, as areas under the ROC curve."""

    every_step: float
    """Over all steps, including those after a mistake."""
    up_to_first_mistake: float
    """Over correct steps and first mistakes only, which is harder."""


class ProcessRewardModel(nn.Module):
    """Its weights have the names of `Qwen2ForProcessRewardModel`: ``model.*``, ``score.0``, ``score.2``."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        self.model = Qwen2Model(config)
        self.score = nn.Sequential(
            nn.Linear(config.hidden_size, config.hidden_size), nn.ReLU(), nn.Linear(config.hidden_size, 2)
        )

    @property
    def added_layers(self) -> nn.ModuleList:
        """The layers on top of the trunk."""
        layers: nn.ModuleList = self.model.layers[-ADDED_LAYERS:]
        return layers

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, length, 2) for token ids (batch, length)."""
        return self.classify(self.read(tokens))

    def read(self, tokens: Tensor) -> Tensor:
        """Hidden states (batch, length, width) of the trunk for token ids (batch, length)."""
        return self._through(self.model.layers[:-ADDED_LAYERS], self.model.embed_tokens(tokens))

    def classify(self, hidden: Tensor) -> Tensor:
        """Logits (batch, length, 2) of the trained part for the trunk's hidden states."""
        logits: Tensor = self.score(self.model.norm(self._through(self.added_layers, hidden)))
        return logits

    def _through(self, layers: nn.ModuleList, hidden: Tensor) -> Tensor:
        positions = self.model.rotary_emb(hidden, torch.arange(hidden.shape[1])[None])
        for layer in layers:
            hidden = layer(hidden, position_embeddings=positions, attention_mask=None)
        return hidden


def prm_config(tokenizer: PreTrainedTokenizerFast) -> Qwen2Config:
    config = qwen2_config(tokenizer)
    config.num_hidden_layers += ADDED_LAYERS
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    config.architectures = ["Qwen2ForProcessRewardModel"]
    config.num_labels = 2
    config.tie_word_embeddings = False
    return config


def save_prm(model: ProcessRewardModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    prm_config(tokenizer).save_pretrained(folder)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def load_prm(tokenizer: PreTrainedTokenizerFast, folder: Path) -> ProcessRewardModel:
    model = ProcessRewardModel(prm_config(tokenizer))
    model.load_state_dict(load_file(folder / WEIGHTS))
    return model.eval()


def label_samples(
    generator: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, split: Split, seed: int, count: int
) -> list[LabelledSolution]:
    """Samples ``count`` solutions from the generator, evenly over the levels, and checks each step."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    streams = [draw_problems(split, seed, level) for level in LEVELS]
    labelled: list[LabelledSolution] = []
    while len(labelled) < count:
        for stream in streams:
            questions = conversations(list(islice(stream, SAMPLING_BATCH)), rng, STEP_DELIMITER)
            for question, steps in zip(
                questions, write_solutions(generator, tokenizer, questions, SAMPLING_TEMPERATURE), strict=True
            ):
                labelled.append(LabelledSolution(question, tuple(steps), tuple(check_steps(question.problem, steps))))
    return labelled[:count]


def train_process_reward_model(
    trunk: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, labelled: Sequence[LabelledSolution]
) -> ProcessRewardModel:
    """Puts layers and a head on the trunk of the language model, and trains them on labelled solutions."""
    torch.manual_seed(TRAINING_SEED)
    model = ProcessRewardModel(prm_config(tokenizer))
    model.model.load_state_dict(trunk.model.state_dict(), strict=False)
    _initialize_tag_as_delimiter(model, tokenizer)
    for layer in model.added_layers:
        _initialize_lookback(layer.self_attn, trunk.config)
    batches = _trunk_outputs(model, tokenizer, labelled)
    trained = [part for module in (*model.added_layers, model.model.norm, model.score) for part in module.parameters()]
    optimizer = torch.optim.AdamW(trained, lr=PEAK_LEARNING_RATE, weight_decay=0.01, fused=True)
    steps = EPOCHS * len(batches)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARM_UP_STEPS, 1.0) * (1.0 - step / steps)
    )
    for epoch in range(EPOCHS):
        for index in torch.randperm(len(batches), generator=torch.Generator().manual_seed(epoch)).tolist():
            hidden, tags, labels = batches[index]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model.classify(hidden.float())
            first_wrong = (labels == 0) & ((labels == 0).cumsum(-1) == 1)
            local = (labels != IGNORED) & ~tags & ((labels == 1) | first_wrong)
            loss = nn.functional.cross_entropy(logits[tags].float(), labels[tags])
            loss = loss + nn.functional.cross_entropy(logits[local].float(), labels[local], CLASS_WEIGHTS)
            loss.backward()
            nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return model.eval()


@torch.no_grad()
def _trunk_outputs(
    model: ProcessRewardModel, tokenizer: PreTrainedTokenizerFast, labelled: Sequence[LabelledSolution]
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Hidden states of the frozen trunk, positions of the tags, and labels, for every batch."""
    tag = tokenizer.convert_tokens_to_ids(STEP_TAG)
    read = []
    for tokens, labels in _batches(tokenizer, labelled, shuffle_seed=0):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = model.read(tokens)
        read.append((hidden.to(torch.bfloat16), tokens == tag, labels))
    return read


@torch.inference_mode()
def measure_auc(
    model: ProcessRewardModel, tokenizer: PreTrainedTokenizerFast, labelled: Sequence[LabelledSolution]
) -> StepAuc:
    tag = tokenizer.convert_tokens_to_ids(STEP_TAG)
    rewards: list[float] = []
    right: list[bool] = []
    before_mistake: list[bool] = []
    for tokens, labels in _batches(tokenizer, labelled, shuffle_seed=None):
        scores = model(tokens).softmax(-1)[..., 1]
        for row, row_labels, tags in zip(scores, labels, tokens == tag, strict=True):
            verdicts = row_labels[tags].bool().tolist()
            rewards += row[tags].tolist()
            right += verdicts
            before_mistake += [all(verdicts[:index]) for index in range(len(verdicts))]
    early = [i for i, keep in enumerate(before_mistake) if keep]
    return StepAuc(
        every_step=_auc(right, rewards),
        up_to_first_mistake=_auc([right[i] for i in early], [rewards[i] for i in early]),
    )


def _auc(right: Sequence[bool], rewards: Sequence[float]) -> float:
    """Area under the ROC curve: U of Mann and Whitney, in which a tie counts half, as a share of all pairs."""
    of_correct, of_wrong = (
        [reward for reward, label in zip(rewards, right, strict=True) if label is kind] for kind in (True, False)
    )
    u = mannwhitneyu(of_correct, of_wrong, method="asymptotic").statistic
    return float(u) / (len(of_correct) * len(of_wrong))


def _batches(
    tokenizer: PreTrainedTokenizerFast, labelled: Sequence[LabelledSolution], shuffle_seed: int | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Token ids and labels (0 wrong, 1 correct, IGNORED elsewhere); the rows of a batch are about equally long."""
    by_length = sorted(labelled, key=_chars)
    starts = torch.arange(0, len(by_length) - (BATCH - 1 if shuffle_seed is not None else 0), BATCH)
    if shuffle_seed is not None:
        starts = starts[torch.randperm(len(starts), generator=torch.Generator().manual_seed(shuffle_seed))]
    pad = nn.utils.rnn.pad_sequence
    for start in starts.tolist():
        rows = [_encode(tokenizer, solution) for solution in by_length[start : start + BATCH]]
        yield (
            pad([tokens for tokens, _ in rows], batch_first=True, padding_value=tokenizer.pad_token_id),
            pad([labels for _, labels in rows], batch_first=True, padding_value=IGNORED),
        )


def _chars(solution: LabelledSolution) -> int:
    return sum(map(len, solution.steps)) + sum(len(turn["content"]) for turn in solution.conversation.turns)


def _encode(tokenizer: PreTrainedTokenizerFast, solution: LabelledSolution) -> tuple[Tensor, Tensor]:
    """Token ids, and a label for every token of the solution; all tokens from the first wrong one on are wrong."""
    tag = tokenizer.convert_tokens_to_ids(STEP_TAG)
    tokens = encode_prompt(tokenizer, solution.conversation)
    labels = [IGNORED] * len(tokens)
    expected = solution.conversation.problem.solution
    all_correct = True
    for index, (step, right) in enumerate(zip(solution.steps, solution.right, strict=True)):
        ids = tokenizer.encode(step.strip(), add_special_tokens=False)
        wanted = tokenizer.encode(expected[index], add_special_tokens=False) if index < len(expected) else []
        correct = len(ids) if right else _common_prefix(ids, wanted) if all_correct else 0
        all_correct = right
        tokens += [*ids, tag]
        labels += [1] * correct + [0] * (len(ids) - correct) + [int(right)]
    return torch.tensor(tokens), torch.tensor(labels)


def _initialize_tag_as_delimiter(model: ProcessRewardModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Initializes the embedding of the tag with that of the step delimiter, which the trunk has seen in its place."""
    embeddings = model.model.embed_tokens.weight
    [delimiter] = tokenizer.encode(STEP_DELIMITER, add_special_tokens=False)
    with torch.no_grad():
        embeddings[tokenizer.convert_tokens_to_ids(STEP_TAG)] = embeddings[delimiter]


def _initialize_lookback(attention: Any, config: Qwen2Config) -> None:
    """Sets the biases so that heads initially attend to earlier tokens: those of the first KV group to the previous
    token, those of the second to about the last dozen, which is a step.

    With rotary embeddings, a key k and the query R(-d)k, where R(-d) rotates by -d positions, score highest at a
    distance of d. The peak is sharper for faster rotations and a larger k.
    """
    head_size = config.hidden_size // config.num_attention_heads
    group = config.num_attention_heads // config.num_key_value_heads
    half = head_size // 2
    for number, (distance, pairs, size) in enumerate(((1, range(6), 7.0), (6, range(3, 7), 4.0))):
        key, query = torch.zeros(head_size), torch.zeros(head_size)
        for pair in pairs:
            angle = distance * 10_000 ** (-2 * pair / head_size)
            key[pair] = size
            query[pair] = size * math.cos(angle)
            query[half + pair] = -size * math.sin(angle)
        with torch.no_grad():
            attention.k_proj.bias[head_size * number : head_size * (number + 1)] = key
            queries = slice(head_size * group * number, head_size * group * (number + 1))
            attention.q_proj.bias[queries] = query.repeat(group)


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right)))
