"""The second half of the recipe: a process reward model trained on the generator's own steps.

Solutions are sampled from the shipped generator on training problems and every step is labelled by
checking its arithmetic. The model is `Qwen2ForProcessRewardModel`: the Qwen2 trunk and a two-layer head
that judges a step at the ``<extra_0>`` tag behind it, class 1 meaning right.

The trunk knows the right digit, but only in its last layer and one position too early. So three layers are put
on top of it, with heads that begin by looking a little way back, and only they and the head are trained: they
learn to compare what was written with what the trunk expected. In training not only the tags are labelled but
tokens too, right up to the first wrong one, which is the lesson and counts tenfold.
"""

import math
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, Qwen2Model

from deployments.embedded.conversations import Conversation, conversations
from deployments.embedded.language_model import encode_prompt, qwen2_config, write_solutions
from deployments.embedded.problems import LEVELS, Split, check_steps, draw_problems
from deployments.embedded.tokenizer import STEP_DELIMITER, STEP_TAG

TRAINING_SOLUTIONS = 20_000
TRAINING_SEED = 4
SAMPLING_TEMPERATURE = 1.0
SAMPLING_BATCH = 256
BATCH = 32
EPOCHS = 6
PEAK_LEARNING_RATE = 3e-3
ADDED_LAYERS = 3
RARITY = torch.tensor([10.0, 1.0])
"""Weights of wrong and right tokens: there is one wrong token in a solution at most."""
WARM_UP_STEPS = 50
IGNORED = -100
WEIGHTS = "model.safetensors"


class LabelledSolution(NamedTuple):
    asked: Conversation
    steps: tuple[str, ...]
    right: tuple[bool, ...]


class StepAuc(NamedTuple):
    """How well rewards tell right steps from wrong ones: areas under the ROC curve."""

    every_step: float
    """Over all steps, those after a mistake included."""
    up_to_first_mistake: float
    """Over right steps and first mistakes only: the harder question."""


class ProcessRewardModel(nn.Module):
    """Named as `Qwen2ForProcessRewardModel` names its weights: ``model.*``, ``score.0``, ``score.2``."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        self.model = Qwen2Model(config)
        self.score = nn.Sequential(
            nn.Linear(config.hidden_size, config.hidden_size), nn.ReLU(), nn.Linear(config.hidden_size, 2)
        )

    @property
    def added(self) -> nn.ModuleList:
        """The layers on top of the trunk."""
        layers: nn.ModuleList = self.model.layers[-ADDED_LAYERS:]
        return layers

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) token ids to (batch, length, 2) logits."""
        return self.classify(self.read(tokens))

    def read(self, tokens: Tensor) -> Tensor:
        """The trunk's part: (batch, length) token ids to (batch, length, width) hidden states."""
        return self._through(self.model.layers[:-ADDED_LAYERS], self.model.embed_tokens(tokens))

    def classify(self, hidden: Tensor) -> Tensor:
        """The part that is trained: the trunk's hidden states to (batch, length, 2) logits."""
        logits: Tensor = self.score(self.model.norm(self._through(self.added, hidden)))
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
    """``count`` solutions sampled from the generator, evenly over the levels, each step checked."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    streams = [draw_problems(split, seed, level) for level in LEVELS]
    labelled: list[LabelledSolution] = []
    while len(labelled) < count:
        for stream in streams:
            asked = conversations(list(islice(stream, SAMPLING_BATCH)), rng, STEP_DELIMITER)
            for one, steps in zip(
                asked, write_solutions(generator, tokenizer, asked, SAMPLING_TEMPERATURE), strict=True
            ):
                labelled.append(LabelledSolution(one, tuple(steps), tuple(check_steps(one.problem, steps))))
    return labelled[:count]


def train_process_reward_model(
    trunk: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, labelled: Sequence[LabelledSolution]
) -> ProcessRewardModel:
    """Puts layers and a head on the language model's trunk and trains them on labelled solutions."""
    torch.manual_seed(TRAINING_SEED)
    model = ProcessRewardModel(prm_config(tokenizer))
    model.model.load_state_dict(trunk.model.state_dict(), strict=False)
    _read_tag_as_delimiter(model, tokenizer)
    for layer in model.added:
        _look_back(layer.self_attn, trunk.config)
    batches = _read_by_trunk(model, tokenizer, labelled)
    trained = [part for module in (*model.added, model.model.norm, model.score) for part in module.parameters()]
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
            loss = loss + nn.functional.cross_entropy(logits[local].float(), labels[local], RARITY)
            loss.backward()
            nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return model.eval()


@torch.no_grad()
def _read_by_trunk(
    model: ProcessRewardModel, tokenizer: PreTrainedTokenizerFast, labelled: Sequence[LabelledSolution]
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """What the trunk, which is not trained, makes of every batch: hidden states, where the tags are, labels."""
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
        every_step=float(roc_auc_score(right, rewards)),
        up_to_first_mistake=float(roc_auc_score([right[i] for i in early], [rewards[i] for i in early])),
    )


def _batches(
    tokenizer: PreTrainedTokenizerFast, labelled: Sequence[LabelledSolution], shuffle_seed: int | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Token ids and labels (0 wrong, 1 right, IGNORED elsewhere), rows of a batch about equally long."""
    by_length = sorted(labelled, key=_letters)
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


def _letters(solution: LabelledSolution) -> int:
    return sum(map(len, solution.steps)) + sum(len(turn["content"]) for turn in solution.asked.turns)


def _encode(tokenizer: PreTrainedTokenizerFast, solution: LabelledSolution) -> tuple[Tensor, Tensor]:
    """Token ids, and a label for every token of the solution: wrong from the first wrong token on."""
    tag = tokenizer.convert_tokens_to_ids(STEP_TAG)
    tokens = encode_prompt(tokenizer, solution.asked)
    labels = [IGNORED] * len(tokens)
    expected = solution.asked.problem.solution
    intact = True
    for index, (step, right) in enumerate(zip(solution.steps, solution.right, strict=True)):
        ids = tokenizer.encode(step.strip(), add_special_tokens=False)
        wanted = tokenizer.encode(expected[index], add_special_tokens=False) if index < len(expected) else []
        sound = len(ids) if right else _common_prefix(ids, wanted) if intact else 0
        intact = right
        tokens += [*ids, tag]
        labels += [1] * sound + [0] * (len(ids) - sound) + [int(right)]
    return torch.tensor(tokens), torch.tensor(labels)


def _read_tag_as_delimiter(model: ProcessRewardModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """The tag stands where the trunk has always seen the step delimiter: it begins as the same vector."""
    embeddings = model.model.embed_tokens.weight
    [delimiter] = tokenizer.encode(STEP_DELIMITER, add_special_tokens=False)
    with torch.no_grad():
        embeddings[tokenizer.convert_tokens_to_ids(STEP_TAG)] = embeddings[delimiter]


def _look_back(attention: Any, config: Qwen2Config) -> None:
    """Biases the heads to begin by attending a little way back: those of the first KV group to the token
    before their own, those of the second to about the last dozen, which is a step.

    Under rotary embeddings a key k and the query R(-d)k, with R the rotation by so many positions, score
    highest at a distance of d: the sharper, the faster the rotations and the larger k.
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
