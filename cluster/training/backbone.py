"""The transformer below the head: loaded, cut or deepened, and divided into frozen and trained layers.

Layers are called one by one, so that the frozen ones run once and the trained ones on their output. That is done for
architectures whose layers are alike and look at all earlier tokens (`FORMS`).
"""

import copy
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
import transformers
from pydantic import ValidationError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerBase

from cluster.training.errors import BackboneRefused
from cluster.training.settings import TrainingSettings
from deployments.engines.rewards.heads import Head
from deployments.engines.rewards.step_head import StepHeadSettings
from deployments.engines.rewards.token_class import TokenClassSettings
from deployments.engines.settings import EngineSettings
from search.tools.listing import listed

Form: TypeAlias = Literal["step_head", "token_class"]
"""The family of `prm.family` that reads the result."""

FORMS: dict[str, tuple[Form, str]] = {
    "qwen2": ("step_head", "Qwen2ForProcessRewardModel"),
    "llama": ("token_class", "LlamaForTokenClassification"),
    "mistral": ("token_class", "MistralForTokenClassification"),
    "qwen3": ("token_class", "Qwen3ForTokenClassification"),
}
"""Form and architecture of the result, by the backbone's ``model_type``."""

DELIMITER = "\n\n"


class Layout(NamedTuple):
    """What a serving configuration must say of the result."""

    form: Form
    dtype: str
    context: int


class Backbone(nn.Module):
    """Embedding, frozen layers, trained layers and the norm behind them."""

    def __init__(self, settings: TrainingSettings) -> None:
        """Loads the model.

        Raises:
            BackboneRefused: it cannot be loaded, or is of an architecture that is not in `FORMS`.
        """
        super().__init__()
        self.path = _path(settings.backbone)
        self.form, architecture = FORMS[backbone_config(settings.backbone).model_type]
        transformers.logging.set_verbosity_error()  # it warns of the language model's head, which is not used
        transformers.logging.disable_progress_bar()
        try:
            model, loading = AutoModel.from_pretrained(
                self.path,
                dtype="auto",
                attn_implementation="sdpa",
                ignore_mismatched_sizes=True,  # else an error that does not name them
                output_loading_info=True,
            )
            self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(self.path)
        except (OSError, ValueError, RuntimeError) as error:
            raise BackboneRefused(f"{settings.backbone} cannot be loaded: {error}") from error
        if wrong := sorted({*loading["missing_keys"], *(name for name, *_ in loading["mismatched_keys"])}):
            raise BackboneRefused(f"{settings.backbone} lacks weights, or has them in another shape: {listed(wrong)}")
        self.config = model.config
        self.dtype: torch.dtype = model.dtype
        self.reader = self._reader()
        try:
            self.reader.prompt_ids("?", ("1",))
        except ValueError as error:
            raise BackboneRefused(f"{settings.backbone} cannot read a path: {error}") from error
        if self.form == "step_head":
            self._add_tag(model, trained=architecture in (self.config.architectures or ()))
        depth = settings.depth or len(model.layers)
        if settings.layers > depth:
            raise BackboneRefused(f"layers is {settings.layers}, but the reward model has only {depth}")
        self._describe(depth, architecture)
        layers = [*model.layers[:depth], *self._new_layers(model.layers, depth - len(model.layers))]
        self.embed = model.embed_tokens
        self.rotary = model.rotary_emb
        self.frozen = nn.ModuleList(layers[: depth - settings.layers])
        self.trained = nn.ModuleList(layers[depth - settings.layers :]).float()
        self.norm = model.norm
        self.requires_grad_(False)
        if settings.layers:
            self.norm.float()
            self.trained.requires_grad_(True)
            self.norm.requires_grad_(True)
        self.to(settings.device)

    @property
    def layout(self) -> Layout:
        return Layout(self.form, str(self.dtype).removeprefix("torch."), self.context)

    @property
    def width(self) -> int:
        return int(self.config.hidden_size)

    @property
    def context(self) -> int:
        """Most tokens of a path."""
        return int(self.config.max_position_embeddings)

    @torch.no_grad()
    def below(self, token_ids: Tensor) -> Tensor:
        """The output (rows, length, width) of the frozen part for token ids (rows, length), padded on the right. With
        trained layers it ends below them; without any, after the norm."""
        hidden = self._through(self.frozen, self.embed(token_ids))
        return hidden if self.trained else self.norm(hidden)

    def above(self, hidden: Tensor) -> Tensor:
        """The last hidden states in single precision: the trained part, on the output of `below`."""
        hidden = hidden.float()
        if not self.trained:
            return hidden
        states: Tensor = self.norm(self._through(self.trained, hidden))
        return states

    def weights(self) -> dict[str, Tensor]:
        """All weights under the names of the checkpoint, in the backbone's own type."""
        named = {"embed_tokens.weight": self.embed.weight, "norm.weight": self.norm.weight}
        for index, layer in enumerate([*self.frozen, *self.trained]):
            named |= {f"layers.{index}.{name}": part for name, part in layer.state_dict().items()}
        return {f"model.{name}": part.detach().to("cpu", self.dtype).contiguous() for name, part in named.items()}

    def _through(self, layers: nn.ModuleList, hidden: Tensor) -> Tensor:
        positions = self.rotary(hidden, torch.arange(hidden.shape[1], device=hidden.device)[None])
        # Without a mask attention is causal: padding on the right changes nothing before it.
        for layer in layers:
            hidden = layer(hidden, position_embeddings=positions, attention_mask=None)
        return hidden

    def _reader(self) -> Head:
        """The family's own encoder, so that paths are encoded as they will be when the model is served."""
        if self.form == "token_class":
            settings: Any = TokenClassSettings(model=self.path)
        else:
            settings = StepHeadSettings(model=self.path)
            if settings.step_tag not in self.tokenizer.get_added_vocab():
                self.tokenizer.add_special_tokens({"additional_special_tokens": [settings.step_tag]})
        reader: Head = settings.reader(settings, self.tokenizer)
        return reader

    def _add_tag(self, model: Any, trained: bool) -> None:
        """Gives the step tag a row of the embedding: that of the step delimiter, in whose place it stands, unless the
        model was ``trained`` with the tag."""
        tag = self.tokenizer.convert_tokens_to_ids(StepHeadSettings().step_tag)
        if tag >= self.config.vocab_size:
            model.resize_token_embeddings(tag + 1, mean_resizing=False)
            self.config.vocab_size = tag + 1
        if not trained:
            delimiter = self.tokenizer.encode(DELIMITER, add_special_tokens=False)[-1]
            with torch.no_grad():
                model.embed_tokens.weight[tag] = model.embed_tokens.weight[delimiter]

    def _new_layers(self, present: nn.ModuleList, number: int) -> list[nn.Module]:
        """Layers that at first add nothing to their input: copies of the first ones, whose heads attend to nearby
        tokens, with the last weights of attention and MLP at zero."""
        layers: list[nn.Module] = []
        for index in range(number):
            layer = copy.deepcopy(present[index % len(present)])
            for name, part in layer.named_parameters():
                if name.startswith(("self_attn.o_proj", "mlp.down_proj")):
                    nn.init.zeros_(part)
            layers.append(layer)
        return layers

    def _describe(self, depth: int, architecture: str) -> None:
        """Makes the configuration that of the result."""
        self.config.num_hidden_layers = depth
        if getattr(self.config, "layer_types", None) is not None:
            self.config.layer_types = ["full_attention"] * depth
        self.config.architectures = [architecture]
        self.config.num_labels = 2
        self.config.tie_word_embeddings = False


def backbone_config(backbone: str) -> Any:
    """The backbone's configuration, read without its weights.

    Raises:
        BackboneRefused: it cannot be read, or a head cannot be trained on its architecture.
    """
    path = _path(backbone)
    if Path(path).is_absolute() and not (Path(path) / "config.json").is_file():
        raise BackboneRefused(f"{path} is not a model directory: it has no config.json")
    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise BackboneRefused(f"{path} is not a model that transformers can read: {error}") from error
    if config.model_type not in FORMS:
        raise BackboneRefused(f"{path} is of type {config.model_type!r}; a head can be trained on {', '.join(FORMS)}")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or (config.model_type == "mistral" and config.sliding_window):
        raise BackboneRefused(f"{path} has layers with a sliding window; a head can be trained on full attention only")
    if getattr(config, "quantization_config", None) is not None:
        raise BackboneRefused(f"{path} is quantized; name the model that it was made from")
    return config


def _path(backbone: str) -> str:
    try:
        return EngineSettings(model=backbone).model_path
    except ValidationError as error:
        raise BackboneRefused(str(error.errors()[0]["msg"])) from None
