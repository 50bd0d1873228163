"""The picture of the curve on the page of fit."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.conftest import ROOT, docs_script

POINTS = [
    {"arena": 1_244_160, "macs": 1000, "estimated": False},
    {"arena": 97_920, "macs": 1019, "estimated": False},
    {"arena": 64_896, "macs": 1100, "estimated": True},
]


@pytest.fixture(scope="module", name="script")
def fixture_script() -> ModuleType:
    """The script that draws it."""
    return docs_script("fit_curve")


def test_the_page_shows_the_picture(script: ModuleType) -> None:
    assert (script.FOLDER / script.FILE).is_file()
    assert f"images/{script.FILE}" in (ROOT / "docs" / "fit.md").read_text()


def test_the_picture_has_the_curves_and_the_published_points(script: ModuleType) -> None:
    picture = script.draw(dict.fromkeys(script.NETWORKS, POINTS))
    assert picture == script.draw(dict.fromkeys(script.NETWORKS, POINTS))
    text = picture.decode()
    assert text.count("msf-CNN, int8") == 3 and text.count("MCUNetV2, int8") == 1
    assert all(network.label in text for network in script.NETWORKS)
