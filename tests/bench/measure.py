"""The benchmarks of onnxtile, each a table in Markdown: a line of TABLES in one of the modules below.

    python -m tests.bench.measure NAME [MODEL.onnx[,INPUT=1x3x224x224][,DIM=8][,INPUT@LOW:HIGH] ...] [--docs] [options of NAME]

Times are processor seconds, user and system, of all threads, children included, so other work on the machine does not lengthen them;
memory is the largest resident set. With --docs the table replaces that of its name in its page of docs.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence

from tests.bench import (
    arena_tables,
    firmware_tables,
    fit_tables,
    growth_tables,
    loop_orders,
    monotone_tables,
    problem_tables,
    quantised_models,
    runtime_tables,
)
from tests.bench.subjects import Subject

MODULES = (
    arena_tables,
    firmware_tables,
    fit_tables,
    monotone_tables,
    problem_tables,
    loop_orders,
    quantised_models,
    growth_tables,
    runtime_tables,
)
TABLES = {name: table for module in MODULES for name, table in module.TABLES.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, table in TABLES.items():
        one = names.add_parser(name, help=table.about, description=table.rows.__doc__)
        if table.models:
            one.add_argument("models", nargs="*", type=Subject.of, metavar="MODEL")
        one.add_argument("--docs", action="store_true", help=f"write the table into docs/{table.page.name}")
        for option, settings in table.options.items():
            one.add_argument(option, **settings)
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    TABLES[given.name].show(given, mark=given.name if given.docs else "")


if __name__ == "__main__":
    main()
