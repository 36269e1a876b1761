"""An embedded model made heavy: layers and neurons that change nothing, and take memory and time like any other."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from deployments.engines.settings import EMBEDDED_GENERATOR, EMBEDDED_MODELS

_OUT = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
"""What a layer adds to what it was given goes through these two: zeros add nothing."""


def with_idle_layers(
    directory: Path, layers: int | None = None, neurons: int | None = None, of: str = EMBEDDED_GENERATOR
) -> Path:
    """A model in ``directory`` that says what one of the embedded models says (``of``), with so many layers in all,
    each of so many neurons, between the two halves of its second part; or with as many as it has. Each layer has as
    many bytes of KV for a token (512 in float32).

    With as many neurons it computes as much in each, and says the same to the last bit; more of them make it heavy in
    compute, and a sum with more zeros in it may be taken in another order.

    Raises:
        ValueError: it has more layers or neurons than that.
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
            # The copies are computed, and nothing is made of them.
            weights[name] = torch.nn.functional.pad(tensor, (0, neurons - has_neurons))
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
