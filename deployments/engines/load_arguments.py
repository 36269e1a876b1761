"""vLLM's arguments for `deployments.engines.loader`. They are made where the engine is started; the loader is imported
only in the engine's processes."""

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from deployments.engines.rewards.family import LOADING, LinearHead
from deployments.engines.settings import EngineSettings

if TYPE_CHECKING:
    from transformers import PretrainedConfig

LOAD_FORMAT = "banyan"


def loader_args(
    settings: EngineSettings, unused: Collection[str], lora: str | None = None, head: LinearHead | None = None
) -> dict[str, Any]:
    """vLLM's arguments for a model; none where the settings choose another loader, or where vLLM does.

    Args:
        unused: names of weights that are left out.
        lora: directory or hub id of the model's adapter.
        head: the head to add to the model.
    """
    streamed = "://" in settings.model_path and lora is None and head is None  # by vLLM, from an object store
    if streamed or LOADING & settings.engine_args.keys():
        return {}
    if "speculative_config" in settings.engine_args:  # a draft model may have use for them
        unused = ()
    args: dict[str, Any] = {
        "load_format": LOAD_FORMAT,
        "model_loader_extra_config": {"lora": lora, "head": head, "unused": sorted(unused)},
    }
    if head is not None:
        args |= {"convert": "classify", "hf_overrides": partial(_as_language_model, classes=head.classes)}
    return args


def _as_language_model(config: "PretrainedConfig", classes: int) -> "PretrainedConfig":
    """The configuration with the architecture of a language model of its type, which vLLM makes a classifier."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    config.update({"architectures": [architecture] if architecture else config.architectures, "num_labels": classes})
    return config
