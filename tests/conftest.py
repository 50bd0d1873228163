"""What all tests share: where the models are, how commands start, and the switch for slow checks."""

import gc
import importlib.util
import os
import random
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.draws import load_profile

ROOT = Path(__file__).parent.parent
MODELS = ROOT / "models"
ZOO = ROOT.parent / "shared" / "zoo"
MINIMALLOC = ROOT.parent / "shared" / "minimalloc"

LIGHT = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)
"""The light models of the onnx wheel: convolutions, and no attention."""


# Threads of NumPy's wait for work in a loop, and each core has a process of tests; NumPy reads this when it is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Commands that tests start keep the bytecode of the package, as an installed one has it: compiling it takes each of them 0.4 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# So does this process: to read the assertions of all tests takes 12 s.
sys.dont_write_bytecode = False

# Python looks for cycles after so many new objects: after 700 that is a sixth of some folders, after 200,000 a seventh of
# tests of whole models; after a million a process takes 55 MB more.
gc.set_threshold(1_000_000)

# A shell that starts the tests in the background, or nohup, leaves signals ignored, and every process that a test starts inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the slow checks too")


def pytest_configure(config: pytest.Config) -> None:
    load_profile(config.getoption("--slow"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let each process take neighbouring tests, so that what a file makes once is made in one process; None: as the command line says."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Let every other process import all tests from the last to the first: in a new clone each finds half of them compiled."""
    process = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    if int(process) % 2 == 0 or [Path(word).name for word in session.config.args] != ["tests"]:
        return
    for file in sorted((ROOT / "tests").rglob("test_*.py"), reverse=True):
        with suppress(Exception, pytest.skip.Exception):  # pytest imports what failed again, and says why
            importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))


def pytest_sessionfinish() -> None:
    """Free what the tests left once: pytest walks all objects ten times after this, half a second each."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the slow tests, or let each test take an hour: with --slow many draw more examples and try more cases."""
    wanted = config.getoption("--slow")
    mark = pytest.mark.timeout(3600) if wanted else pytest.mark.skip(reason="slow; run with --slow")
    for item in items:
        if wanted or item.get_closest_marker("slow") is not None:
            item.add_marker(mark)


@pytest.fixture
def share(request: pytest.FixtureRequest) -> Callable[[Iterable[Any], int], list[Any]]:
    """Return what picks one in so many of all cases of a property: the same ones in every run; --slow tries all."""
    is_whole = request.config.getoption("--slow")

    def pick(cases: Iterable[Any], parts: int) -> list[Any]:
        every = list(cases)
        return every if is_whole else random.Random(0).sample(every, -(-len(every) // parts))

    return pick


def _packaged(package: str, *parts: str) -> Path:
    """Return a model file that the wheel of `package` carries, found without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    path = Path(spec.origin).parent.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path.name} is not in the wheel of {package}")
    return path


def docs_script(name: str) -> ModuleType:
    """Return the module of the script docs/NAME.py, which finds others beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        return importlib.import_module(name)


def _written(folder: Path, blocks: int, image: int) -> Path:
    from models.make_transformer import make_transformer

    path = folder / "transformer.onnx"
    path.write_bytes(make_transformer(blocks=blocks, image=image).SerializeToString(deterministic=True))
    return path


@pytest.fixture(scope="session")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The transformer of the demo with two of its twelve blocks, which are alike."""
    return _written(tmp_path_factory.mktemp("transformer"), 2, 64)


@pytest.fixture(scope="session")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The transformer with one of its blocks, on a quarter of the image, for tests of all that surrounds a model."""
    return _written(tmp_path_factory.mktemp("shallow"), 1, 32)


@pytest.fixture(scope="session")
def zoo() -> Callable[[str], Path]:
    """Return a model of the zoo beside the checkout by its name, such as "bert_ts14"."""

    def find(name: str) -> Path:
        path = ZOO / f"{name}.onnx"
        if not path.exists():
            pytest.skip("the zoo is not beside this checkout")
        return path

    return find


@pytest.fixture(scope="session")
def light() -> Callable[[str], Path]:
    """Return a light model of the onnx wheel by its name, such as "resnet50"."""
    return lambda name: _packaged("onnx", "backend", "test", "data", "light", f"light_{name}.onnx")


@pytest.fixture(scope="session")
def rapidocr() -> Callable[[str], Path]:
    """Return a model of the rapidocr-onnxruntime wheel by its name, such as "ch_PP-OCRv4_det_infer"."""
    return lambda name: _packaged("rapidocr_onnxruntime", "models", f"{name}.onnx")


@pytest.fixture(scope="session")
def magika() -> Path:
    """The model of the magika wheel: a classifier that JAX wrote through TensorFlow."""
    return next(_packaged("magika", "models").glob("*/model.onnx"))


@pytest.fixture(scope="session")
def silero() -> Callable[[str], Path]:
    """Return a model of the silero-vad wheel by its name, such as "silero_vad"."""
    return lambda name: _packaged("silero_vad", "data", f"{name}.onnx")
