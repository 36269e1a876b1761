"""Makes an embedded model heavy: adds layers and neurons that take memory and time but do not change its output."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from deployments.engines.settings import EMBEDDED_GENERATOR, EMBEDDED_MODELS

_OUT = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
"""The projections through which a layer adds to its input; with zeros they add nothing."""


def with_idle_layers(
    directory: Path, layers: int | None = None, neurons: int | None = None, of: str = EMBEDDED_GENERATOR
) -> Path:
    """Writes a copy of the embedded model ``of`` to ``directory``, with ``layers`` layers and ``neurons`` neurons in
    each layer's MLP; None keeps the model's own number. Its texts or rewards stay the same. Each layer has as many
    bytes of KV per token as before (512 in float32).

    With the original number of neurons the output is the same to the last bit. With more, each layer computes more,
    and a sum with more zeros in it may be rounded in another order.

    Raises:
        ValueError: fewer layers than the model has, or neurons that are no multiple of its number.
    """
    source = EMBEDDED_MODELS / of.removeprefix("embedded:")
    config = json.loads((source / "config.json").read_text())
    has_layers, has_neurons = config["num_hidden_layers"], config["intermediate_size"]
    layers, neurons = layers or has_layers, neurons or has_neurons
    if neurons % has_neurons:
        raise ValueError(f"{of} has {has_neurons} neurons a layer, {neurons} are no multiple")
    if layers < has_layers:
        raise ValueError(f"{of} has {has_layers} layers, {layers} are fewer")
    shutil.copytree(source, directory, dirs_exist_ok=True)
    config |= {
        "intermediate_size": neurons,
        "num_hidden_layers": layers,
        "layer_types": [config["layer_types"][0]] * layers,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    weights = load_file(directory / "model.safetensors")
    last = f"model.layers.{has_layers - 1}."
    of_last = {name.removeprefix(last): tensor for name, tensor in weights.items() if name.startswith(last)}
    for layer in range(has_layers, layers):
        for name, tensor in of_last.items():
            copied = torch.zeros_like(tensor) if name in _OUT else tensor.clone()
            weights[f"model.layers.{layer}.{name}"] = copied
    for name, tensor in weights.items():
        if name.endswith(("gate_proj.weight", "up_proj.weight")):
            weights[name] = tensor.repeat(neurons // has_neurons, 1)
        elif name.endswith("down_proj.weight"):
            # The copies are computed, but their outputs have weight zero.
            weights[name] = torch.nn.functional.pad(tensor, (0, neurons - has_neurons))
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
