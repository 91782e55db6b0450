"""A model in training as whole weights, which a sampler in another process can load."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch


def whole_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Each weight of a transformers causal language model with its name, LoRA layers merged.

    `model` may carry adapters of peft; it is not changed. The output layer comes with a weight of
    its own, even where the model ties it to the embeddings.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = {
        name: module for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)
    }
    for name, weight in model.state_dict().items():
        layer, _, rest = name.partition(".base_layer.")
        if layer in layers and rest == "weight":
            yield f"{layer}.{rest}", _merged(layers[layer], weight)
        elif layer in layers:
            yield f"{layer}.{rest}", weight
        else:
            parts = name.split(".")
            above = [".".join(parts[:k]) for k in range(len(parts))]
            if not any(each in layers and name.startswith(f"{each}.lora_") for each in above):
                yield name, weight


def write_whole(model: Any, tokenizer: Any, folder: Path) -> None:
    """Writes a model folder with the model of `whole_weights` and its tokenizer.

    Its embeddings are untied: vLLM would leave a tied output layer as it was when it loads new
    weights.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    state = {name: weight.detach().cpu().clone() for name, weight in whole_weights(model)}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    config = copy.deepcopy(model.config)
    config.tie_word_embeddings = False
    config.get_text_config().tie_word_embeddings = False
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@torch.no_grad()
def _merged(layer: Any, weight: torch.Tensor) -> torch.Tensor:
    """The weight of a layer with its active adapters added."""
    if layer.disable_adapters or layer.merged:
        return weight
    for adapter in layer.active_adapters:
        if adapter in layer.lora_A:
            weight = weight + layer.get_delta_weight(adapter).to(weight.dtype)
    return weight
