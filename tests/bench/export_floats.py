"""Exports nets of torchvision, timm and transformers with random weights to a folder, for the table "quantised" of tests.bench.measure.

    PYTHON tests/bench/export_floats.py FOLDER [MODEL ...]

PYTHON is one with `pip install torch torchvision timm transformers onnx`; it needs no onnxtile. Files that are there are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TORCHVISION = (
    "resnet18", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "googlenet", "densenet121", "shufflenet_v2_x1_0",
    "regnet_y_400mf", "squeezenet1_1",
)  # fmt: skip
TIMM = ("ghostnet_100", "repvgg_a0", "deit_tiny_patch16_224")
TRANSFORMERS = ("bert", "dinov2", "llama", "qwen2")


def export(folder: Path, names: Sequence[str]) -> None:
    """Write each of the models `names`, all by default, with random weights to `folder`."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    for name in names or (*TORCHVISION, *TIMM, *TRANSFORMERS):
        file = folder / f"{name}.onnx"
        if file.exists():
            continue
        torch.manual_seed(0)
        module, inputs = _language_model(name) if name in TRANSFORMERS else _classifier(name)
        decodes = name in ("llama", "qwen2")  # TorchScript has no export of their masks
        with torch.no_grad():
            torch.onnx.export(
                module.eval(), inputs, str(file), opset_version=18 if decodes else 17, dynamo=decodes,
                external_data=False, output_names=["y"],
            )  # fmt: skip


def _classifier(name: str) -> tuple[Any, tuple[Any, ...]]:
    import torch

    picture = torch.rand(1, 3, 224, 224)
    if name in TIMM:
        import timm

        return timm.create_model(name, pretrained=False), (picture,)
    import torchvision

    more = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
    return torchvision.models.get_model(name, weights=None, **more), (picture,)


def _language_model(name: str) -> tuple[Any, tuple[Any, ...]]:
    import torch
    import transformers

    tokens = torch.arange(32).reshape(1, 32)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    if name == "bert":
        return _FirstOf(transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=1000))), (tokens,)
    if name == "dinov2":
        config = transformers.Dinov2Config(hidden_size=128, num_hidden_layers=4, num_attention_heads=4, image_size=112)
        return _FirstOf(transformers.Dinov2Model(config)), (torch.rand(1, 3, 112, 112),)
    kind = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[name]
    config = kind(**sizes, vocab_size=1000, num_key_value_heads=2, use_cache=False)
    return _FirstOf(transformers.AutoModelForCausalLM.from_config(config)), (tokens,)


def _FirstOf(model: Any) -> Any:  # noqa: N802 - a class that is made where torch is there
    """Return a module that gives the first result of `model` alone."""
    import torch

    class First(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, given: Any) -> Any:
            return self.model(given, return_dict=False)[0]

    return First()


if __name__ == "__main__":
    export(Path(sys.argv[1]), sys.argv[2:])
