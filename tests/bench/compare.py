"""onnxtile beside its peers, in one run: writes docs/benchmarks.md from rows in JSON.

    python -m tests.bench.compare [--peers FOLDER] [--rows FOLDER] [--only PART,...] [--models N|PART=N,...] [--page FILE.md]
        [--minimalloc PROGRAM] [--quantised FOLDER] [--tflite FOLDER]

PARTS: fuse, plan, problems, ranges, quantised, queries, micro. Each peer is installed once, in an environment of its own (by default
in onnxtile-peers in the folder of temporary files). The rows of each part are a file of the folder of --rows; rows that are there are not
measured again. So a run that was ended goes on, and two runs may measure two parts at once. With --models N, only the first N models of
each part are measured, with PART=N of that part. A part without rows keeps its section of the page.
Where a peer needs less, its cell is bold.
"""

from __future__ import annotations

import argparse
import compileall
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from tests.bench.commands import ROOT, SHARED, Measure, Row, Run
from tests.bench.compare_page import page, written
from tests.bench.compare_parts import PARTS
from tests.bench.peers import PACKAGES, own_version

PAGE = ROOT / "docs" / "benchmarks.md"


def about(run: Run, part: str) -> Row:
    """Return the machine, and the versions of the peers of a part."""
    of = {
        "fuse": ("onnxsim", "onnxslim", "onnxscript", "onnxruntime", "aidge"),
        "plan": ("onnxsim", "ethos-u-vela"),
        "queries": ("aidge",),
    }
    of |= {"problems": ("ethos-u-vela",), "ranges": ("onnxsim",), "quantised": ("onnxsim",)}
    versions = {name: run.peers.version(name) for name in of.get(part, ()) if name in PACKAGES}
    if part == "micro" and find_spec("tflite_micro"):
        versions["tflite-micro"] = version("tflite_micro")
    if part == "problems" and run.minimalloc:
        versions["MiniMalloc"] = f"{run.minimalloc_version} (a program that was given)"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB",
        "versions": versions,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is not in the rows yet, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", type=Path, default=Path(tempfile.gettempdir()) / "onnxtile-peers")
    parser.add_argument("--rows", type=Path, default=Path(tempfile.gettempdir()) / "onnxtile-rows")
    parser.add_argument("--only", default=",".join(PARTS), metavar="PART,...")
    parser.add_argument("--models", default="", metavar="N|PART=N,...")
    parser.add_argument("--zoo", type=Path, default=SHARED / "zoo")
    parser.add_argument("--minimalloc", type=Path, metavar="PROGRAM")
    parser.add_argument("--minimalloc-version", default="of unknown version", metavar="TEXT")
    parser.add_argument("--quantised", type=Path, metavar="FOLDER", help="what tests.bench.quantised_models exported")
    parser.add_argument("--tflite", type=Path, metavar="FOLDER", help="models of TensorFlow Lite")
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args(arguments)
    run, parts = Run(given), given.only.split(",")
    unknown = sorted(set(parts) - PARTS.keys())
    if unknown:
        parser.error(f"invalid part {unknown[0]!r} (choose {', '.join(PARTS)})")
    # An installed package has its bytecode, as the peers have: without it, each command would compile the package.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compileall.compile_dir(ROOT / "onnxtile", quiet=1)
    given.rows.mkdir(parents=True, exist_ok=True)
    for part in parts:
        measure_part(run, part, given.rows / f"{part}.json", most(given.models, part))
    before = given.page.read_text("utf-8")
    given.page.write_text(written(before, page(stored(given.rows), before)), "utf-8")


def measure_part(run: Run, part: str, file: Path, count: int | None) -> None:
    """Measure the first `count` rows of a part, those that `file` does not have yet, and write each at once."""
    rows: Row = json.loads(file.read_text()) if file.exists() else {"rows": {}}
    measures = list(PARTS[part](run))
    rows["about"] = about(run, part) | {"rows": len(measures)}
    for name, measure in measures[:count]:
        if name not in rows["rows"]:
            sys.stderr.write(f"{part}: {name}\n")
            taken = {"date": datetime.date.today().isoformat(), "load": os.getloadavg()[0], "onnxtile": own_version()}
            rows["rows"][name] = measured_row(measure) | {"taken": taken}
            file.write_text(json.dumps(rows, indent=1))


def stored(folder: Path) -> dict[str, Row]:
    """Return what is stored of each part."""
    files = {part: folder / f"{part}.json" for part in PARTS}
    return {part: json.loads(file.read_text()) for part, file in files.items() if file.exists()}


def most(models: str, part: str) -> int | None:
    """Return how many models of a part are measured at most: None for all."""
    counts = {name: int(count) for name, _, count in (one.rpartition("=") for one in models.split(",")) if count}
    return counts.get(part, counts.get(""))


def measured_row(measure: Measure) -> Row:
    """Return a row; a command of a tool that fails is a row that says so."""
    try:
        return measure()
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return {"failed": str(error)[:100]}


if __name__ == "__main__":
    main()
