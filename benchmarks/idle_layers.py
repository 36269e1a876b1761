"""The embedded generator made heavy in KV: layers that change nothing, and hold keys and values like any other."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from deployments.engines.settings import GeneratorSettings

LAYERS = 4
"""That it has."""
NEURONS = 512
"""Of each of them, between the two halves of its second part."""
_OUT = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
"""What a layer adds to what it was given goes through these two: zeros add nothing."""


def with_idle_layers(directory: Path, layers: int, neurons: int = NEURONS) -> Path:
    """A model in ``directory`` that says what the embedded generator says, with so many layers in all, each of so many
    neurons; each has as many bytes of KV for a token (512 in float32).

    With as many neurons it computes as much in each, and says the same to the last bit; more of them make it heavy in
    compute, and a sum with more zeros in it may be taken in another order.

    Raises:
        ValueError: it has more layers or neurons than that.
    """
    if neurons % NEURONS or neurons < NEURONS:
        raise ValueError(f"the embedded generator has {NEURONS} neurons a layer, {neurons} are no multiple")
    if layers < LAYERS:
        raise ValueError(f"the embedded generator has {LAYERS} layers, {layers} are fewer")
    shutil.copytree(GeneratorSettings().model_path, directory, dirs_exist_ok=True)
    config = json.loads((directory / "config.json").read_text())
    config |= {
        "intermediate_size": neurons,
        "num_hidden_layers": layers,
        "layer_types": [config["layer_types"][0]] * layers,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    weights = load_file(directory / "model.safetensors")
    last = f"model.layers.{LAYERS - 1}."
    of_last = {name.removeprefix(last): tensor for name, tensor in weights.items() if name.startswith(last)}
    for layer in range(LAYERS, layers):
        for name, tensor in of_last.items():
            copied = torch.zeros_like(tensor) if name in _OUT else tensor.clone()
            weights[f"model.layers.{layer}.{name}"] = copied
    for name, tensor in weights.items():
        if name.endswith(("gate_proj.weight", "up_proj.weight")):
            weights[name] = tensor.repeat(neurons // NEURONS, 1)
        elif name.endswith("down_proj.weight"):
            # The copies are computed, and nothing is made of them.
            weights[name] = torch.nn.functional.pad(tensor, (0, neurons - NEURONS))
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
