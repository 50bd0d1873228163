"""The gallery: its script draws each picture of the page, as it is in the repository."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import onnx.parser
import pytest

import onnxtile
from tests.conftest import ROOT, docs_script

DOCS = ROOT / "docs"
LARGEST = 100_000


@pytest.fixture(name="script", scope="module")
def _script() -> ModuleType:
    pytest.importorskip("PIL.Image", reason="pillow is not installed")
    pytest.importorskip("resvg_py", reason="the extra 'pictures' is not installed")
    return docs_script("pictures")


def test_the_page_shows_the_pictures_of_the_script(script: ModuleType) -> None:
    shown = re.findall(r"\(images/(.*?)\)", (DOCS / "gallery.md").read_text())
    assert sorted(shown) == sorted(picture.file for picture in script.PICTURES)
    for name in shown:
        assert 0 < (DOCS / "images" / name).stat().st_size < LARGEST, name


@pytest.mark.parametrize(
    "name", ["squeezenet.svg", pytest.param("transformer-before-after.png", marks=pytest.mark.slow)]
)
def test_the_script_draws_a_picture(script: ModuleType, name: str) -> None:
    picture = next(one for one in script.PICTURES if one.file == name)
    content = script.draw(picture)
    assert 0 < len(content) < LARGEST
    if name.endswith(".svg"):
        kept = (DOCS / "images" / name).read_text()
        figures = re.compile(r">([^<]*arena [^<]*)</text>")
        assert figures.findall(content.decode()) == figures.findall(kept), (
            "the picture is out of date: python docs/pictures.py"
        )


def test_the_script_writes_into_the_folder_that_it_is_given(script: ModuleType, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "PICTURES", [one for one in script.PICTURES if one.file == "squeezenet.svg"])
        script.main(tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["squeezenet.svg"]


DIAGRAMS = {"tile.svg": "tile.md", "pattern.svg": "patterns.md"}


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_page_shows_the_diagram_that_the_script_draws(name: str) -> None:
    drawn = docs_script("diagrams").DIAGRAMS[name]()
    assert drawn == (DOCS / "images" / name).read_bytes(), "the diagram is out of date: python docs/diagrams.py"
    assert f"(images/{name})" in (DOCS / DIAGRAMS[name]).read_text()


def test_the_diagram_of_tiles_counts_the_nodes_that_tile_writes() -> None:
    script = docs_script("diagrams")
    m, k, n = script.SIZES
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17]>
        g (float[{m}, {k}] a, float[{k}, {n}] b) => (float[{m}, {n}] y) {{ y = MatMul(a, b) }}""")
    written = Counter(node.op_type for node in onnxtile.tile(model, max=script.LARGEST).model.graph)
    assert f"{written['MatMul']} MatMul, {written['Add']} Add, and Concat" in script.tiles().decode()
    assert written["Concat"] > 0
