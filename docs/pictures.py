"""Pictures of docs/gallery.md: memory maps of real models, the same bytes every time.

    python docs/pictures.py [FOLDER]

The models ship with onnxtile or with the wheel of onnx. It takes about half a minute, and needs pillow and the extra "pictures".
"""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from pathlib import Path

import onnx
from PIL import Image

import onnxtile
from onnxtile.report.format import RenderOptions, format_of

WIDTH = 1300
"""Pixels of a .png across. Pictures of many tensors are smaller so than as .svg."""

FOLDER = Path(__file__).parent / "images"
TRANSFORMER = Path(__file__).parent.parent / "models" / "transformer.onnx"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@dataclass(frozen=True)
class Picture:
    """A picture to draw: its file, the model, what tensors are coloured by, and whether the model is fused before it is planned.

    With `compared`, the picture shows the plan of the original model beside the plan of the fused model.
    """

    file: str
    model: Path
    color_by: str
    fused: bool = False
    compared: bool = False


PICTURES = (
    Picture("transformer.svg", TRANSFORMER, "operator", fused=True),
    Picture("transformer-before-after.png", TRANSFORMER, "operator", fused=True, compared=True),
    Picture("squeezenet.svg", LIGHT / "light_squeezenet.onnx", "operator"),
    Picture("densenet121.png", LIGHT / "light_densenet121.onnx", "kind"),
    Picture("resnet50.svg", LIGHT / "light_resnet50.onnx", "operator"),
    Picture("shufflenet.svg", LIGHT / "light_shufflenet.onnx", "operator"),
)


def draw(picture: Picture) -> bytes:
    """Return the file of `picture`."""
    before = None
    model = onnxtile.fuse(picture.model, verify=False).model if picture.fused else picture.model
    plan = onnxtile.plan(model, verify=False).plan.to_dict()
    if picture.compared:
        before = onnxtile.plan(picture.model, verify=False).plan.to_dict()
    title = picture.model.stem.removeprefix("light_")
    options = RenderOptions(title, before=before, color_by=picture.color_by)
    # A light model of the wheel is the model of that name with random weights.
    content = format_of(Path(picture.file)).render({**plan, "model": title}, options)
    return small(content) if picture.file.endswith(".png") else content


def small(png: bytes) -> bytes:
    """Return a PNG in WIDTH pixels and 256 colours, as small as a repository wants it."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image = image.resize((WIDTH, image.height * WIDTH // image.width), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    # The method that keeps colours apart: others give two groups of a legend one.
    image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(file, "png", optimize=True)
    return file.getvalue()


def main(folder: Path = FOLDER) -> None:
    """Draw all pictures into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for picture in PICTURES:
        (folder / picture.file).write_bytes(draw(picture))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
