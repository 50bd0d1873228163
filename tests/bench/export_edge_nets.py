"""Writes the nets of the table of fit to a folder, with random weights, as float and quantised to int8 (QDQ, by channel).

    PYTHON -m tests.bench.export_edge_nets FOLDER

PYTHON is one with `pip install torch torchvision timm onnx onnxruntime`; it needs no onnxtile. There are those of `firmware_models.py`,
small ones of torch made here, and those of timm. Files that are there are kept.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

from models.make_quantised import quantise
from tests.bench.export_nets import export, of_timm, with_torchvision
from tests.bench.firmware_models import MODELS

FORM = "qdq-per-channel"
TIMM = {
    **dict.fromkeys(("mobilenetv3_small_100", "mobilenetv3_large_100", "mobilenetv4_conv_small", "mnasnet_100"), 224),
    **dict.fromkeys(("efficientnet_b0", "efficientnet_lite0", "fbnetc_100", "ghostnet_100", "repvit_m0_9"), 224),
    **dict.fromkeys(("starnet_s1", "deit_tiny_patch16_224", "resnet18"), 224),
    "mobilevit_xxs": 256,
}
"""Nets of timm, and the rows of pixels of their images."""
_UNQUANTISED = {"mobilevit_xxs", "lstm", "gru", "silero_vad", "decoder"}
"""Nets whose int8 form the quantiser does not make, or makes of the smaller part of their operators."""


def main() -> None:
    """Write every net."""
    logging.disable(logging.WARNING)
    folder = Path(sys.argv[1])
    with_torchvision(folder)
    for maker in MODELS.values():
        path = folder / f"{maker.__name__}.onnx"
        model = None if path.exists() else maker()
        if model is not None:
            onnx.save(model, path)
        _quantised(path)
    nets = {name: partial(_small, net, sizes) for name, net, sizes in small_nets()}
    nets |= {name: partial(of_timm, name, size) for name, size in TIMM.items()}
    for name, make in nets.items():
        path = folder / f"{name}.onnx"
        if not path.exists():
            export(*make(), path)
        _quantised(path)


def _small(net: Callable[[], Any], sizes: tuple[int, ...]) -> tuple[Any, tuple[Any, ...]]:
    return net(), (torch.zeros(sizes),)


def _quantised(path: Path) -> None:
    target = path.with_name(f"{path.stem}_int8.onnx")
    if path.exists() and path.stem not in _UNQUANTISED and not target.exists():
        quantise(path, FORM, target)
        print(target.name, flush=True)


def small_nets() -> Iterator[tuple[str, Callable[[], Any], tuple[int, ...]]]:
    """Yield names, makers and the sizes of the input: convolutions in 1-D and the same in 2-D, over time, a gate, a U-Net, a detector."""
    blocks = ((8, 50, 1), (50, 50, 2), (50, 50, 4), (50, 50, 8))
    yield "c1d", lambda: _six(nn.Conv1d, 9, 4), (1, 1, 512)
    yield "c1d_as2d", lambda: _six(nn.Conv2d, (9, 1), (4, 0)), (1, 1, 512, 1)
    yield "tcn", lambda: nn.Sequential(*[Temporal(*block) for block in blocks]), (1, 8, 512)
    yield "gate", Gate, (1, 3, 64, 64)
    yield "unet", UNet, (1, 3, 128, 128)
    yield "detector", Detector, (1, 3, 256, 256)
    yield "lstm", Recurrent, (1, 98, 40)
    yield "wide", lambda: nn.Sequential(_layer(3, 16), _layer(16, 16), _layer(16, 16), _layer(16, 8)), (1, 3, 4, 1024)


def _layer(into: int, out: int, size: int = 3, stride: int = 1) -> Any:
    conv = nn.Conv2d(into, out, size, stride, size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU())


def _six(kind: Any, size: Any, padding: Any) -> Any:
    channels = (1, 16, 32, 32, 32, 16, 8)
    layers = [(kind(a, b, size, padding=padding), nn.ReLU()) for a, b in pairwise(channels)]
    return nn.Sequential(*[part for pair in layers for part in pair])


class Temporal(nn.Module):  # type: ignore[misc]  # torch is not installed where this is checked
    """A block of a temporal convolutional net (Bai et al., 2018): two dilated convolutions that look back, and a skip."""

    def __init__(self, into: int, out: int, dilation: int) -> None:
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0)
        self.first, self.second = (nn.Conv1d(n, out, 3, dilation=dilation) for n in (into, out))
        self.skip = nn.Conv1d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.second(self.pad(torch.relu(self.first(self.pad(x))))))
        return torch.relu(y + self.skip(x))


class Gate(nn.Module):  # type: ignore[misc]  # torch is not installed where this is checked
    """A convolution whose channels are scaled by what their means say (squeeze and excite, Hu et al., 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.squeeze, self.excite = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.conv(x))
        return x * torch.sigmoid(self.excite(torch.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))


class UNet(nn.Module):  # type: ignore[misc]  # torch is not installed where this is checked
    """A U-Net (Ronneberger et al., 2015) of four levels, of 8 to 64 channels."""

    def __init__(self) -> None:
        super().__init__()
        widths = (8, 16, 32, 64)
        self.down = nn.ModuleList(nn.Sequential(_layer(a, b), _layer(b, b)) for a, b in pairwise((3, *widths)))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, 2) for width in widths[:-1])
        self.after = nn.ModuleList(
            nn.Sequential(_layer(2 * width, width), _layer(width, width)) for width in widths[:-1]
        )
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: Any) -> Any:
        skips = []
        for down in self.down[:-1]:
            skips.append(down(x))
            x = nn.functional.max_pool2d(skips[-1], 2)
        x = self.down[-1](x)
        for up, after, skip in zip(reversed(self.up), reversed(self.after), reversed(skips), strict=True):
            x = after(torch.cat([up(x), skip], 1))
        return self.head(x)


class Detector(nn.Module):  # type: ignore[misc]  # torch is not installed where this is checked
    """A detector as YOLOv3 is (Redmon and Farhadi, 2018): five levels down, two up with skips, three heads."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 64, 128, 256)
        self.levels = nn.ModuleList(nn.Sequential(_layer(a, b, 3, 2), _layer(b, b)) for a, b in pairwise(widths))
        self.joined = nn.ModuleList((_layer(384, 128), _layer(192, 64)))
        self.heads = nn.ModuleList(nn.Conv2d(width, 30, 1) for width in (256, 128, 64))

    def forward(self, x: Any) -> Any:
        maps = []
        for level in self.levels:
            x = level(x)
            maps.append(x)
        found = [x]
        for join, skip in zip(self.joined, (maps[3], maps[2]), strict=True):
            found.append(join(torch.cat([nn.functional.interpolate(found[-1], scale_factor=2), skip], 1)))
        return torch.cat([head(m).flatten(2) for head, m in zip(self.heads, found, strict=True)], 2)


class Recurrent(nn.Module):  # type: ignore[misc]  # torch is not installed where this is checked
    """An LSTM over 98 frames of 40 coefficients, and a linear layer on each of its states."""

    def __init__(self) -> None:
        super().__init__()
        self.states, self.head = nn.LSTM(40, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.states(x)[0])


if __name__ == "__main__":
    main()
