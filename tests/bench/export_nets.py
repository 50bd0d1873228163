"""Exports nets of torchvision, timm and transformers, with random weights, to a folder: models of two tables of tests.bench.measure.

    PYTHON tests/bench/export_nets.py orders|quantised FOLDER

PYTHON is one with `pip install torch torchvision timm transformers onnx`; it needs no onnxtile. Images are 1x3x224x224, or as the net wants
them. Files that are there are kept.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

NETS = {
    "orders": {
        "tv": (
            "alexnet densenet121 efficientnet_b0 googlenet inception_v3 mnasnet1_0 mobilenet_v2 mobilenet_v3_small regnet_y_400mf"
            " resnet18 resnet50 shufflenet_v2_x1_0 squeezenet1_1 vgg11 convnext_tiny"
        ),
        "timm": (
            "ghostnet_100 ghostnetv2_100 repghostnet_100 hgnetv2_b0 nasnetalarge pnasnet5large xception41 resnest14d res2net50_26w_4s"
            " hrnet_w18_small dla34 selecsls42b vovnet39a cspdarknet53 cspresnet50 darknet53 dpn68 inception_v4 inception_resnet_v2"
            " inception_next_tiny mixnet_s tf_mixnet_m lcnet_050 mobilenetv4_conv_small mobileone_s0 fastvit_t8 efficientformer_l1"
            " efficientvit_b0 edgenext_xx_small mobilevit_xxs mobilevitv2_050 poolformer_s12 coat_tiny crossvit_tiny_240"
            " deit_tiny_patch16_224 gernet_s repvgg_a0 rexnet_100 semnasnet_075 skresnet18 spnasnet_100 tinynet_a tresnet_m"
            " fbnetc_100 hardcorenas_a legacy_xception convnextv2_atto"
        ),
    },
    "quantised": {
        "tv": (
            "resnet18 mobilenet_v2 mobilenet_v3_small efficientnet_b0 googlenet densenet121 shufflenet_v2_x1_0 regnet_y_400mf"
            " squeezenet1_1"
        ),
        "timm": "ghostnet_100 repvgg_a0 deit_tiny_patch16_224",
        "transformers": "bert dinov2 llama qwen2",
    },
}
"""The nets of each table by package; in that of orders, the files have the package in their names."""
_FIXED = {"nasnetalarge", "pnasnet5large", "crossvit_tiny_240", "inception_v4", "inception_resnet_v2"}


def main() -> None:
    """Export every net of a table."""
    table, folder = sys.argv[1], Path(sys.argv[2])
    with_torchvision(folder)
    for package, names in NETS[table].items():
        for name in names.split():
            path = folder / (f"{package}_{name}.onnx" if table == "orders" else f"{name}.onnx")
            if not path.exists():
                import_module("torch").manual_seed(0)
                decodes = name in {"llama", "qwen2"}  # TorchScript has no export of their masks
                export(*_MAKERS[package](name), path, dynamo=decodes)


def with_torchvision(folder: Path) -> None:
    """Make the folder, and declare to torch what a torchvision without its compiled operators, as beside a torch for the CPU, wants."""
    torch = import_module("torch")
    warnings.filterwarnings("ignore")
    folder.mkdir(parents=True, exist_ok=True)
    _DECLARED.append(torch.library.Library("torchvision", "DEF"))
    if not hasattr(torch.ops.torchvision, "nms"):
        for name in ("nms", "qnms"):
            _DECLARED[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


_DECLARED: list[Any] = []
"""Torch forgets a declaration that nothing holds."""


def export(net: Any, inputs: tuple[Any, ...], path: Path, dynamo: bool = False) -> None:
    """Write `net`, which takes such inputs, to `path`."""
    torch, half = import_module("torch"), path.with_suffix(".part")
    options = {"opset_version": 18 if dynamo else 17, "dynamo": dynamo, "external_data": False}
    with torch.no_grad():
        torch.onnx.export(net.eval(), inputs, str(half), output_names=["y"], **options)
    half.replace(path)
    print(path.name, flush=True)


def of_torchvision(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return a net of torchvision, and its inputs."""
    more = {"init_weights": False, "aux_logits": False} if name in {"googlenet", "inception_v3"} else {}
    return import_module("torchvision").models.get_model(name, weights=None, **more), _image(224)


def of_timm(name: str, size: int = 224) -> tuple[Any, tuple[Any, ...]]:
    """Return a net of timm, and its inputs."""
    net = import_module("timm").create_model(name, pretrained=False, exportable=True)
    return net, _image(net.default_cfg["input_size"][-1] if name in _FIXED else size)


def _image(size: int) -> tuple[Any, ...]:
    return (import_module("torch").rand(1, 3, size, size),)


def _of_transformers(name: str) -> tuple[Any, tuple[Any, ...]]:
    torch, transformers = import_module("torch"), import_module("transformers")
    tokens = torch.arange(32).reshape(1, 32)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    if name == "bert":
        return _first_of(transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=1000))), (tokens,)
    if name == "dinov2":
        config = transformers.Dinov2Config(hidden_size=128, num_hidden_layers=4, num_attention_heads=4, image_size=112)
        return _first_of(transformers.Dinov2Model(config)), _image(112)
    kind = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[name]
    config = kind(**sizes, vocab_size=1000, num_key_value_heads=2, use_cache=False)
    return _first_of(transformers.AutoModelForCausalLM.from_config(config)), (tokens,)


def _first_of(model: Any) -> Any:
    """Return a module that gives the first result of `model` alone."""
    torch = import_module("torch")

    class First(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, given: Any) -> Any:
            return self.model(given, return_dict=False)[0]

    return First()


_MAKERS = {"tv": of_torchvision, "timm": of_timm, "transformers": _of_transformers}

if __name__ == "__main__":
    main()
