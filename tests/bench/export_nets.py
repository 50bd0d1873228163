"""Exports nets of torchvision and timm, with random weights, to a folder: the models of the table "orders" of tests.bench.measure.

    PYTHON tests/bench/export_nets.py FOLDER

PYTHON is one with `pip install torch torchvision timm onnx`; it needs no onnxtile. Images are 1x3x224x224, or as the net wants them. Files
that are there are kept.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

TORCHVISION = (
    "alexnet densenet121 efficientnet_b0 googlenet inception_v3 mnasnet1_0 mobilenet_v2 mobilenet_v3_small regnet_y_400mf resnet18 "
    "resnet50 shufflenet_v2_x1_0 squeezenet1_1 vgg11 convnext_tiny"
)
TIMM = (
    "ghostnet_100 ghostnetv2_100 repghostnet_100 hgnetv2_b0 nasnetalarge pnasnet5large xception41 resnest14d res2net50_26w_4s "
    "hrnet_w18_small dla34 selecsls42b vovnet39a cspdarknet53 cspresnet50 darknet53 dpn68 inception_v4 inception_resnet_v2 "
    "inception_next_tiny mixnet_s tf_mixnet_m lcnet_050 mobilenetv4_conv_small mobileone_s0 fastvit_t8 efficientformer_l1 "
    "efficientvit_b0 edgenext_xx_small mobilevit_xxs mobilevitv2_050 poolformer_s12 coat_tiny crossvit_tiny_240 deit_tiny_patch16_224 "
    "gernet_s repvgg_a0 rexnet_100 semnasnet_075 skresnet18 spnasnet_100 tinynet_a tresnet_m fbnetc_100 hardcorenas_a legacy_xception "
    "convnextv2_atto"
)


def main() -> None:
    """Export every net."""
    warnings.filterwarnings("ignore")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    held = declare_detection()
    timm, torchvision = import_module("timm"), import_module("torchvision")

    for name in TORCHVISION.split():
        whole = {"init_weights": False, "aux_logits": False} if name in {"googlenet", "inception_v3"} else {}
        export(getattr(torchvision.models, name)(weights=None, **whole), folder / f"tv_{name}.onnx", 224)
    for name in TIMM.split():
        net = timm.create_model(name, pretrained=False, exportable=True)
        fixed = name in {"nasnetalarge", "pnasnet5large", "crossvit_tiny_240", "inception_v4", "inception_resnet_v2"}
        export(net, folder / f"timm_{name}.onnx", net.default_cfg["input_size"][-1] if fixed else 224)
    del held


def declare_detection() -> Any:
    """Declare operators to torch that a torchvision without its compiled ones, as beside a torch for the CPU, wants; keep the result."""
    torch = import_module("torch")

    declared = torch.library.Library("torchvision", "DEF")
    if not hasattr(torch.ops.torchvision, "nms"):
        for name in ("nms", "qnms"):
            declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return declared


def export(net: Any, path: Path, size: int) -> None:
    """Write `net` for images of `size` x `size` to `path`."""
    torch = import_module("torch")

    if path.exists():
        return
    half = path.with_suffix(".part")
    torch.onnx.export(net.eval(), (torch.zeros(1, 3, size, size),), str(half), opset_version=17, dynamo=False)
    half.replace(path)
    print(path.name, flush=True)


if __name__ == "__main__":
    main()
