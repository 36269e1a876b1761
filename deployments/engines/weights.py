"""Whether a checkpoint has the weights that its model needs: by the headers of its files, before an engine starts.

What a model needs is known to transformers: its class of the model is built without memory, and its own loader tells
what is missing, of another shape, or not used. The head of a reward model is declared by its family. What cannot be
told from here is left to `deployments.engines.loader`, which looks when the engine has loaded the weights: those of
models that transformers does not know, and of files that are not on this machine yet.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from deployments.engines.checkpoint import Source, Stored, stored_weights
from deployments.engines.errors import EngineStartError
from deployments.engines.rewards.family import WRAPPER, LinearHead, RewardFamily, RewardModelSettings, Shapes
from deployments.engines.rewards.implicit import REFERENCE_PREFIX
from deployments.engines.settings import EngineSettings
from search.tools.listing import listed

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel

logger = logging.getLogger("banyan.engines")

LOADED_AS_FILES = ("auto", "hf", "safetensors")
"""Values of vLLM's ``load_format`` with which it reads the files that are looked at here."""


class Fit(NamedTuple):
    """How the weights of a checkpoint fit a model."""

    missing: list[str]
    misshapen: list[str]
    """Each weight with its shape, and the one that the model needs."""
    unused: list[str]


def check_weights(settings: EngineSettings) -> list[str]:
    """Checks the checkpoints of an engine. Returns the names that weights without use have in the engine.

    Raises:
        EngineStartError: a weight is missing or of another shape than the model's, a file is missing or damaged, or an
            adapter does not fit. The message names them.
    """
    if settings.engine_args.get("load_format", "auto") not in LOADED_AS_FILES:
        return []
    unused: list[str] = []
    for source in _sources(settings):
        directory = source.directory(settings.engine_args.get("download_dir"))
        stored = directory and stored_weights(directory)
        if not directory or not stored:
            continue
        if not source.prefix:
            stored = _with_adapter(settings, stored)
        fit = _fit(settings, directory, stored)
        if fit.missing or fit.misshapen:
            raise EngineStartError(_refusal(source.path, fit))
        unused += [source.prefix + name for name in fit.unused]
    return unused


def _sources(settings: EngineSettings) -> Iterator[Source]:
    for name, path in settings.model_paths.items():
        if name != "lora":
            yield Source(path, settings.revisions.get(name), REFERENCE_PREFIX if name == "reference" else "")


def _fit(settings: EngineSettings, directory: Path, stored: Stored) -> Fit:
    """How a checkpoint fits the model that the engine makes of it; all is well as far as that cannot be told.

    Raises:
        EngineStartError: the file of a head is missing.
    """
    from transformers import AutoConfig

    family = settings.reader if isinstance(settings, RewardModelSettings) else None
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=settings.tokenizer.trust_remote_code)
        config.update(settings.engine_args.get("hf_overrides") or {})
        needed = _needed(family, config) if config.get_text_config() is config else None  # else several models in one
    except Exception as error:  # an unknown or malformed configuration: the engine says what is wrong with it
        logger.info(
            "the weights of %s are checked by the engine alone; its configuration cannot be read: %s", directory, error
        )
        needed = None
    if needed is None:
        return Fit([], [], [])
    names = {name: name for name in stored}
    fit = Fit([], [], [])
    if family is not None and needed.head:
        stored = _with_head_file(settings, family.head, stored)
        fit = _fit_of_head(needed.head, stored)
        stored = {name: part for name, part in stored.items() if name not in needed.head}
        if family.head is not None:
            names = {name.removeprefix(WRAPPER): name for name in stored}
            stored = {name: stored[own] for name, own in names.items()}
    if needed.model is None:
        return fit
    body = _fit_of_model(needed, config, stored, quantized=_is_quantized(config, directory))
    unused = sorted(names[name] for name in body.unused if name in names)
    return Fit(fit.missing + body.missing, fit.misshapen + body.misshapen, unused)


class _Needed(NamedTuple):
    """What an engine makes of a checkpoint."""

    model: "type[PreTrainedModel] | None"
    """Transformers' class; None if it has none that is known to have the same weights."""
    head: Shapes
    """The head's weights, where the class has no such head."""
    output: bool
    """Whether the output layer of the class is needed."""


def _needed(family: type[RewardFamily] | None, config: "PreTrainedConfig") -> _Needed:
    import transformers
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    architecture = (config.architectures or [""])[0]
    if family is not None and family.head is None and family.classifier and architecture.endswith(family.classifier):
        config.num_labels = family.classes
        return _Needed(getattr(transformers, architecture, None), {}, True)
    language_model = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if family is not None and (head := family.head_shapes(config)) is not None:
        return _Needed(language_model, head, False)
    # Where the family names the model for vLLM, it is made of language models, whatever the checkpoint says.
    same = language_model is not None and language_model.__name__ == architecture
    return _Needed(language_model if same or (family and family.vllm_model) else None, {}, True)


def _fit_of_head(shapes: Shapes, stored: Mapping[str, "Tensor"]) -> Fit:
    fit = Fit([name for name in shapes if name not in stored], [], [])
    for name, needed in shapes.items():
        found = tuple(stored[name].shape) if name in stored else needed
        if len(found) != len(needed) or any(size not in (None, own) for size, own in zip(needed, found, strict=True)):
            fit.misshapen.append(_misshapen(name, found, needed))
    return fit


def _fit_of_model(needed: _Needed, config: "PreTrainedConfig", stored: Stored, quantized: bool) -> Fit:
    """How weights fit a class of transformers, as its own loader finds.

    Quantized ones have other names and shapes, in the same modules: only modules without any are found.
    """
    import torch
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, convert_and_load_state_dict_in_model
    from transformers.modeling_utils import LoadStateDictConfig

    assert needed.model is not None
    try:
        with torch.device("meta"), _without_progress_bars():
            model = needed.model(config)
            mapping = get_model_conversion_mapping(model)
            if quantized:
                if any(isinstance(each, WeightConverter) for each in mapping):  # it makes one weight of several
                    return Fit([], [], [])
                stored = _in_modules(model, stored)
            loading = LoadStateDictConfig(device_map={"": "meta"}, weight_mapping=mapping, ignore_mismatched_sizes=True)
            found, _ = convert_and_load_state_dict_in_model(model, stored, loading)
            model._adjust_missing_and_unexpected_keys(found)
    except Exception as error:  # a model that transformers cannot build from this configuration: vLLM may
        logger.info("the weights of a %s are loaded by vLLM instead of by Banyan: %r", config.model_type, error)
        return Fit([], [], [])
    tied: dict[str, str] = getattr(model, "all_tied_weights_keys", {})
    missing = {name for name, _ in model.named_parameters(remove_duplicate=False)} & found.missing_keys
    missing -= tied.keys()  # what they are tied to is among the others
    misshapen = {name: (stored_shape, own) for name, stored_shape, own in found.mismatched_keys}
    if not needed.output:
        ignored = _output_layer(model)
        missing = {name for name in missing if not name.startswith(ignored)}
        misshapen = {name: shapes for name, shapes in misshapen.items() if not name.startswith(ignored)}
    return Fit(
        sorted(missing),
        [_misshapen(name, *shapes) for name, shapes in sorted(misshapen.items())],
        sorted(found.unexpected_keys),
    )


def _in_modules(model: "PreTrainedModel", stored: Stored) -> Stored:
    """The weights of those of the model's modules that have any in ``stored``, as if they were not quantized."""
    modules = {name.rpartition(".")[0] for name in stored}
    weights = model.named_parameters(remove_duplicate=False)
    return {name: weight for name, weight in weights if name.rpartition(".")[0] in modules}


def _output_layer(model: "PreTrainedModel") -> tuple[str, ...]:
    """Beginnings of the names of the output layer's weights."""
    output = model.get_output_embeddings()
    return tuple(f"{name}." for name, module in model.named_modules() if module is output)


def _with_adapter(settings: EngineSettings, stored: Stored) -> Stored:
    """The weights of a model, with the whole weights of its adapter. Raises EngineStartError if the adapter does not
    fit the model."""
    if not isinstance(settings, RewardModelSettings) or settings.lora is None:
        return stored
    from deployments.engines.rewards.lora import Adapter

    try:
        adapter = Adapter(settings.lora)
        adapter.check({name: tuple(part.shape) for name, part in stored.items()})
    except Exception as error:  # whatever a reader raises for a damaged file
        raise EngineStartError(f"prm.lora: {error}") from error
    return stored | {name: part.to("meta") for name, part in adapter.whole.items()}


def _with_head_file(settings: EngineSettings, head: LinearHead | None, stored: Stored) -> Stored:
    """The weights with those in the head's own file. Raises EngineStartError when there is none."""
    if head is None or head.file is None:
        return stored
    import torch
    from transformers.utils import cached_file

    try:
        file = cached_file(settings.model_path, head.file, revision=settings.engine_args.get("revision"))
        parts = torch.load(file, map_location="meta", weights_only=True)
    except Exception as error:  # whatever a reader raises for a damaged file
        raise EngineStartError(f"{head.file} of {settings.model_path!r} cannot be read: {error}") from error
    return stored | {head.prefix + name: part for name, part in parts.items()}


def _is_quantized(config: "PreTrainedConfig", directory: Path) -> bool:
    """Whether weights are stored in another form."""
    return getattr(config, "quantization_config", None) is not None or (directory / "hf_quant_config.json").is_file()


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    from transformers.utils import logging as of_transformers

    shown = of_transformers.is_progress_bar_enabled()
    of_transformers.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            of_transformers.enable_progress_bar()


def _refusal(path: str, fit: Fit) -> str:
    parts = {"missing": fit.missing, "of another shape": fit.misshapen, "without use": fit.unused}
    told = "; ".join(f"{kind}: {listed(names)}" for kind, names in parts.items() if names)
    return f"the weights in {path!r} do not fit the model: {told}"


def _misshapen(name: str, found: Any, needed: Any) -> str:
    return f"{name} is {_size(found)}, not {_size(needed)}"


def _size(shape: Any) -> str:
    return " x ".join("any" if size is None else str(size) for size in shape) or "one number"
