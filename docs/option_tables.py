"""The tables of options in docs/, made from the declarations: `python docs/option_tables.py` writes them again.

A page has a table between `<!-- options of plan -->` and `<!-- end of options -->`; `<!-- options of steps -->` lists those of all steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from onnxtile.cli.command import verbs
from onnxtile.common_options import ReportOptions
from onnxtile.declare.verb import Verb, VerbParameter, options

_TABLE = re.compile(r"(<!-- options of ([a-z ]+) -->\n).*?(<!-- end of options -->\n)", re.DOTALL)
_STEPS = "steps"


def filled(page: str) -> str:
    """Return the text of a page with new tables."""
    return _TABLE.sub(lambda match: f"{match[1]}\n{_table(match[2])}\n{match[3]}", page)


def _table(name: str) -> str:
    known = verbs()
    rows = _steps(known.values()) if name == _STEPS else _options(known[name])
    return "\n".join(rows) + "\n"


def _options(verb: Verb) -> Iterable[str]:
    """Return the rows of a verb's own options; those that every command has stand on one page, in the table of `run`."""
    common = set() if verb.name == "run" else set(options(ReportOptions))
    in_step = set() if verb.step is None else set(options(verb.step))
    yield "| option | key in a pipeline | default | meaning |"
    yield "|---|---|---|---|"
    for name, option in options(verb.command).items():
        if name not in common:
            key = f"`{name}`" if name in in_step else ""
            yield f"| {_flags(option)} | {key} | {_cell(option.shown_default)} | {_cell(option.about.help)} |"


def _flags(option: VerbParameter) -> str:
    flags = ", ".join(f"`{flag}`" for flag in option.flags)
    return flags if option.kind.flag or not option.metavar else f"{flags} `{_cell(option.metavar)}`"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _steps(known: Iterable[Verb]) -> Iterable[str]:
    yield "| `do` | keys |"
    yield "|---|---|"
    for verb in known:
        if verb.step is not None:
            yield f"| `{verb.name}` | {', '.join(f'`{name}`' for name in options(verb.step))} |"


def main() -> None:
    """Write the tables of every page in this folder again."""
    for path in sorted(Path(__file__).parent.glob("*.md")):
        text = path.read_text("utf-8")
        if filled(text) != text:
            path.write_text(filled(text), "utf-8")


if __name__ == "__main__":
    main()
