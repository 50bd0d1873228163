"""Exports models of timm with both exporters of PyTorch, and counts what fuse finds beside what PyTorch runs: a table in Markdown.

    python -m tests.bench.module_counts [--exporter torchscript|dynamo] [MODEL ...]

Needs torch and timm beside onnxtile. PyTorch's calls are counted by a TorchFunctionMode in one forward pass: layer_norm, gelu, silu and
scaled_dot_product_attention; softmax counts as attention where the attention is not one call. Some softmax is none: over the positions of
linear attention (CoaT, MobileViT-v2), or over classes.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxtile import api
from onnxtile.system.errors import OnnxtileError

MODELS = {
    **{
        "cait_xxs24_224": 224,
        "levit_128s": 224,
        "mobilevit_xxs": 128,
        "swinv2_tiny_window8_256": 256,
        "maxvit_tiny_tf_224": 224,
    },
    **{"convnext_atto": 64, "convnextv2_atto": 64, "eva02_tiny_patch14_224": 224, "deit3_small_patch16_224": 224},
    **{"xcit_nano_12_p16_224": 224, "efficientvit_m0": 224, "efficientformer_l1": 224, "efficientformerv2_s0": 224},
    **{"edgenext_xx_small": 64, "crossvit_tiny_240": 240, "davit_tiny": 64, "fastvit_sa12": 64, "gcvit_xxtiny": 224},
    **{
        "hiera_tiny_224": 224,
        "mvitv2_tiny": 224,
        "nest_tiny": 224,
        "pit_ti_224": 224,
        "pvt_v2_b0": 64,
        "twins_svt_small": 64,
    },
    **{"visformer_tiny": 224, "beit_base_patch16_224": 224, "tiny_vit_5m_224": 224, "coatnet_0_rw_224": 224},
}
"""The models, and the height and width of their input."""
COUNTED = {
    "layer_norm": "layer norms",
    "gelu": "GELUs",
    "silu": "SiLUs",
    "silu_": "SiLUs",
    "softmax": "attentions",
    "scaled_dot_product_attention": "attentions",
}
FOUND = {
    "layer norms": {"LayerNorm", "LayerNormalization"},
    "GELUs": {"GeLU", "GeLUTanh", "Gelu"},
    "SiLUs": {"SiLU", "Swish"},
    "attentions": {"ScaledDotProductAttention", "Attention"},
}


def there(model: Any, given: Any) -> Counter[str]:
    """Return how many of each computation one forward pass of `model` runs."""
    counts: Counter[str] = Counter()
    overrides: Any = importlib.import_module("torch.overrides")

    class Counting(overrides.TorchFunctionMode):  # type: ignore[misc]  # torch is not installed where types are checked
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            counts[COUNTED.get(getattr(function, "__name__", ""), "others")] += 1
            return function(*args, **(kwargs or {}))

    with Counting():
        model(given)
    return counts


def found(model: ir.Model) -> Counter[str]:
    """Return how many of each computation the fused `model` has, those inside of meta-ops included."""
    total: Counter[str] = Counter()
    for node in _nodes(model, model.graph.all_nodes()):
        for kind, names in FOUND.items():
            total[kind] += node.op_type.partition(".")[0] in names
    return total


def _nodes(model: ir.Model, nodes: Iterator[ir.Node]) -> Iterator[ir.Node]:
    for node in nodes:
        yield node
        function = model.functions.get(node.op_identifier())
        if function is not None:
            yield from _nodes(model, function.all_nodes())


def export(model: Any, given: Any, file: Path, exporter: str) -> None:
    """Write `model` to `file`."""
    torch: Any = importlib.import_module("torch")
    if exporter == "dynamo":
        torch.onnx.export(model, (given,), str(file), dynamo=True, opset_version=20, external_data=False, verbose=False)
    else:
        torch.onnx.export(model, (given,), str(file), dynamo=False, opset_version=17)


def row(name: str, exporter: str, folder: Path) -> str:
    """Return the row of one model."""
    torch: Any = importlib.import_module("torch")
    timm: Any = importlib.import_module("timm")
    model = timm.create_model(name, pretrained=False).eval()
    given = torch.zeros(1, 3, MODELS.get(name, 224), MODELS.get(name, 224))
    file = folder / f"{name}.onnx"
    with torch.no_grad():
        wanted = there(model, given)
        export(model, given, file, exporter)
    got = found(api.fuse(file, verify=False).model)
    file.unlink()
    return f"| {name} | {' | '.join(f'{got[kind]} of {wanted[kind]}' for kind in FOUND)} |"


def main() -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names of timm; by default those listed here")
    parser.add_argument("--exporter", choices=("torchscript", "dynamo"), default="torchscript")
    options = parser.parse_args()
    print(f"| model | {' | '.join(FOUND)} |\n|{'---|' * (len(FOUND) + 1)}")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models or MODELS:
            try:
                print(row(name, options.exporter, Path(folder)), flush=True)
            except (OnnxtileError, RuntimeError, TypeError) as error:  # an exporter that does not know an operator
                print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)


if __name__ == "__main__":
    main()
