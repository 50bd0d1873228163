"""The pages show what the product takes: keys of pipelines, extras of the package; and each row of a table is in a table."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import markdown  # type: ignore[import-untyped]
import pytest

from onnxtile.pipeline.file import PipelineBudgets, PipelineFile, from_file, verbs

ROOT = Path(__file__).parent.parent.parent
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
RUN = (ROOT / "docs" / "run.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

_FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", [text for kind, text in _FENCED.findall(RUN) if kind == "toml"])
def test_the_pipelines_of_the_page_are_taken(text: str, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(text)
    assert from_file(tmp_path / "p.toml").steps


@pytest.mark.parametrize("text", sorted(set(re.findall(r"`(\w+ = [^`]+)`", _FENCED.sub("", RUN)))))
def test_a_key_that_the_page_names_is_taken(text: str, tmp_path: Path) -> None:
    (key,) = tomllib.loads(text)
    if key in PipelineFile.model_fields:
        PipelineFile.model_validate({"steps": [{}], **tomllib.loads(text)})
    elif key in PipelineBudgets.model_fields:
        PipelineBudgets.model_validate(tomllib.loads(text))
    else:
        takes = [name for name in verbs() if re.search(rf"(?m)^\| `{name}` \|.*`{key}`", RUN)]
        verb = "plan" if "plan" in takes else takes[0]
        (tmp_path / "p.toml").write_text(f'[[steps]]\ndo = "{verb}"\n{text}\n')
        assert from_file(tmp_path / "p.toml").steps


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_row_of_a_table_is_in_a_table(page: Path) -> None:
    html = markdown.markdown(page.read_text(), extensions=["tables", "fenced_code"])
    outside = re.sub(r"<(table|pre|code)\b.*?</\1>", "", html, flags=re.DOTALL)
    assert not re.findall(r"(?m)^(?:<p>)?\|.*", outside)


def test_a_row_outside_of_a_table_is_found() -> None:
    html = markdown.markdown("| a |\n|---|\n| 1 |\n\n| 2 | 3 |\n", extensions=["tables"])
    assert re.findall(r"(?m)^(?:<p>)?\|.*", re.sub(r"<table.*?</table>", "", html, flags=re.DOTALL))


def test_the_page_of_installation_lists_the_extras() -> None:
    listed = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    assert listed == sorted(PROJECT["optional-dependencies"])


def test_extras_are_installed_from_the_clone() -> None:
    """No package index has onnxtile: pip finds `.[c]` in the clone, and no `onnxtile[c]`."""
    texts = {path: path.read_text() for path in (*PAGES, *(ROOT / "onnxtile").rglob("*.py"))}
    assert not [path for path, text in texts.items() if "onnxtile[" in text]
    named = {
        name
        for text in texts.values()
        for name in re.findall(r"of_extra\(['\"]([\w-]+)['\"]\)|'\.\[([\w,-]+)\]'", text)
    }
    extras = {extra for pair in named for word in pair if word for extra in word.split(",")}
    assert {"c", "pictures", "dask"} <= extras <= PROJECT["optional-dependencies"].keys()
