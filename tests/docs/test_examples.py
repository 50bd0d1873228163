"""The examples in README.md and docs/ do what they say; the site builds."""

from __future__ import annotations

import importlib.util
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import onnxtile
from onnxtile import cli
from onnxtile.cli.command import verbs
from tests.conftest import ROOT, docs_script
from tests.fitting.networks import inverted_residuals

PAGES = sorted((ROOT / "docs").rglob("*.md"))
_BLOCK = re.compile(r"^```(\w+)?(?: title=\"([^\"]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _blocks(page: Path, language: str) -> list[tuple[str, str]]:
    """Return the blocks of a page in `language`, each with its title."""
    return [(title, text) for kind, title, text in _BLOCK.findall(page.read_text()) if kind == language]


_ELSEWHERE = {"onnxtile demo"}
"""A command that tests/test_package.py runs."""


def _commands(page: Path) -> list[tuple[str, int]]:
    """Return the commands of a page, each with the exit code that a comment after it names."""
    lines = "".join(text for _, text in _blocks(page, "sh")).replace("\\\n", " ").splitlines()
    commands = []
    for line in (line.strip() for line in lines):
        if line.startswith("onnxtile ") and line not in _ELSEWHERE:
            text, _, comment = line.partition("  #")
            commands.append((text, int(comment.split()[-1]) if comment.strip().startswith("exit ") else 0))
    return commands


_OF_PACKAGES = {
    "npu": ("cls.onnx", "rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx"),
    "memory": ("cls.onnx", "rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx"),
    "microcontroller": ("vad.onnx", "silero_vad", "data/silero_vad_16k_op15.onnx"),
    "firmware": ("vad.onnx", "silero_vad", "data/silero_vad_16k_op15.onnx"),
}
"""The models of the tutorials: their names there, and where they come from."""


NUMBERS = {
    "npu": ("566 nodes became 379", "331,776 bytes", "3,295,744 bytes", "221,184", "153,600"),
    "memory": ("254,976", "331,776", "channels by 2", "278"),
    "microcontroller": ("6,688 bytes", "47,136", "548,480", "2,295,300"),
    "plan": ("state 41,856 + arena 23,552 = 65,408 of 65,536", "at least 65,600 bytes"),
    "firmware": ("116 of 34 different kernels", "1,238,592 bytes", "940 bytes"),
}
"""Numbers that a page says: its commands print them."""


@pytest.fixture(name="models", scope="module")
def _models(shallow: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models that the pages speak of."""
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(ROOT / "models", folder / "models")
    for name in ("model", "a", "b"):
        shutil.copyfile(shallow, folder / f"{name}.onnx")
    subprocess.run([sys.executable, ROOT / "models" / "make_dynamic.py", folder], check=True)
    return folder


@pytest.fixture
def folder(models: Path, tmp_path: Path) -> Path:
    """A copy of the folder with the models."""
    return shutil.copytree(models, tmp_path, dirs_exist_ok=True)


def _model_of(page: Path, folder: Path) -> None:
    """Put the model of a tutorial into `folder`; skip where its package is not installed. fit searches a small network."""
    if page.stem == "fit":
        onnx.save(inverted_residuals(9, 8), folder / "model.onnx")
    if page.stem == "inspect":
        shutil.copyfile(ROOT / "models" / "transformer.onnx", folder / "model.onnx")  # for its images of 64 × 64
    if page.stem not in _OF_PACKAGES:
        return
    name, package, place = _OF_PACKAGES[page.stem]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    shutil.copyfile(Path(spec.origin).parent / place, folder / name)


_MAKERS = {
    **dict.fromkeys(("model", "a", "b"), ("transformer.onnx", "make_mobilenet_v2.py")),
    **dict.fromkeys(("dynamic", "decoder"), ("make_dynamic.py",)),
}
"""The files of models/ of which a page names one for each model that its examples read."""
_ANY_MODEL = {"gallery", "install"}
"""Pages whose examples are for a model of the reader."""


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in _ANY_MODEL], ids=lambda page: page.stem)
def test_a_page_says_where_the_models_of_its_examples_are(page: Path) -> None:
    read = {word for command, _ in _commands(page) for word in shlex.split(command) if word.endswith(".onnx")}
    for name in sorted({Path(word).stem for word in read} & _MAKERS.keys()):
        said = [
            text for text in page.read_text().split("\n\n") if text.startswith("In the examples, ") and name in text
        ]
        assert any(f"models/{file}" in text for text in said for file in _MAKERS[name]), f"which model is {name}.onnx?"


_SLOW = {"firmware", "memory", "npu"}
"""Tutorials of real models whose commands take long; those of other pages are the same commands on small models."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=pytest.mark.slow if page.stem in _SLOW else ())
        for page in PAGES
        if _commands(page)
    ],
)
def test_the_commands_of_a_page_run(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    _model_of(page, folder)
    for title, text in _blocks(page, "toml"):
        if title:
            (folder / title).write_text(text)
    everything = ""
    for command, code in _commands(page):
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as end:
            cli.main()
        printed = capsys.readouterr()
        assert end.value.code == code, f"{command}\n{printed.out}{printed.err}"
        everything += printed.out
    for number in NUMBERS.get(page.stem, ()):
        assert number in page.read_text() and number in everything, number
    if page.stem == "firmware" and all(shutil.which(tool) for tool in ("arm-none-eabi-gcc", "qemu-system-arm")):
        _main_links_and_runs(page)


def _main_links_and_runs(page: Path) -> None:
    """Assert that the `main` of the tutorial links with the program that its commands wrote here, and prints what the page says."""
    Path("docs").symlink_to(ROOT / "docs")
    (main,) = [text for _, text in _blocks(page, "c") if "main(" in text]
    Path("main.c").write_text(main)
    (commands,) = [text for _, text in _blocks(page, "") if "main.c" in text]
    done = subprocess.run(["sh", "-e", "-c", commands], check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout in [text for _, text in _blocks(page, "text")]


@pytest.mark.parametrize(
    "page", [page for page in (*PAGES, ROOT / "README.md") if _blocks(page, "python")], ids=lambda page: page.stem
)
def test_the_python_of_a_page_runs(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    _model_of(page, folder)
    for _, text in _blocks(page, "python"):
        (folder / "example.py").write_text(text)
        runpy.run_path(str(folder / "example.py"), run_name="__main__")


def test_every_command_has_a_page_or_a_place_on_one() -> None:
    written = " ".join(page.read_text() for page in PAGES)
    for name in verbs():
        assert f"onnxtile {name}" in written, name


def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    build = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-q",
        "-f",
        str(ROOT / "mkdocs.yml"),
        "-d",
        str(tmp_path),
    ]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").exists()


def test_the_reference_has_every_name_of_the_library() -> None:
    hook = docs_script("hooks.reference")
    page = hook.on_page_markdown((ROOT / "docs" / "reference.md").read_text())
    for name in set(onnxtile.__all__) - {"Source", "__version__"}:
        assert f"### {name}\n" in page, name
    assert "fuse(\n    model: Source,\n" in page
    assert "Annotated[" not in page
    assert " at 0x" not in page and hook.MARK not in page
    assert page == hook.on_page_markdown((ROOT / "docs" / "reference.md").read_text())
