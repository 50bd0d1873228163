"""What all tests share: where the models are, and the switch for slow checks."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODELS = ROOT / "models"
ZOO = ROOT.parent / "shared" / "zoo"
MINIMALLOC = ROOT.parent / "shared" / "minimalloc"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the slow checks too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="slow; run with --slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


def _packaged(package: str, *parts: str) -> Path:
    """Return a model file that the wheel of `package` carries, found without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    path = Path(spec.origin).parent.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path.name} is not in the wheel of {package}")
    return path


@pytest.fixture(scope="session")
def transformer() -> Path:
    return MODELS / "transformer.onnx"


@pytest.fixture(scope="session")
def dinov2() -> Path:
    """DINOv2, 12 blocks, 614 nodes, attention scaled by a Div, simplified."""
    path = ZOO / "dinov2div_ts14_sim0436.onnx"
    if not path.exists():
        pytest.skip("the zoo is not beside this checkout")
    return path


def light(name: str) -> Path:
    """Return a light model of the onnx wheel, such as "resnet50"."""
    return _packaged("onnx", "backend", "test", "data", "light", f"light_{name}.onnx")


def rapidocr(name: str) -> Path:
    """Return a model of the rapidocr-onnxruntime wheel, such as "ch_PP-OCRv4_det_infer"."""
    return _packaged("rapidocr_onnxruntime", "models", f"{name}.onnx")
