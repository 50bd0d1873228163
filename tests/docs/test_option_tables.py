"""The tables of options in docs/ are those of the declarations, and each verb with options of its own has one."""

from pathlib import Path

import pytest

from onnxtile.cli.command import verbs
from tests.conftest import docs_script

PAGES = sorted((Path(__file__).parent.parent.parent / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_of_a_page_are_current(page: Path) -> None:
    """`python docs/option_tables.py` writes them."""
    assert page.read_text() == docs_script("option_tables").filled(page.read_text())


def test_every_verb_with_a_step_has_a_table() -> None:
    written = "".join(page.read_text() for page in PAGES)
    own = {name for name, verb in verbs().items() if verb.step is not None} - {"unfuse"}
    assert all(f"<!-- options of {name} -->" in written for name in own | {"run", "steps"})
