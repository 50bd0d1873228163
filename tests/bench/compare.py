"""onnxtile beside its peers, in one run: writes docs/benchmarks.md from rows in JSON.

    python -m tests.bench.compare [--peers FOLDER] [--rows FILE.json] [--only PART,...] [--models N|PART=N,...] [--page FILE.md]
        [--minimalloc PROGRAM] [--quantised FOLDER] [--tflite FOLDER]

PARTS: fuse, plan, problems, ranges, quantised, queries, micro, fit. Each peer is installed once, in an environment of its own in FOLDER
(by default onnxtile-peers in the folder of temporary files). Rows that FILE has are not measured again, so a run that was ended goes on.
With --models N, only the first N models of each part are measured, with PART=N of that part. Where a peer needs less, its cell is bold.
"""

from __future__ import annotations

import argparse
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

from tests.bench.compare_page import page, written
from tests.bench.compare_parts import PARTS, ROOT, SHARED, Measure, Row, Run
from tests.bench.peers import PACKAGES, own_version

PAGE = ROOT / "docs" / "benchmarks.md"


def about(run: Run, parts: Sequence[str]) -> Row:
    """Return the date, the machine and the versions of the peers of some parts."""
    of = {
        "fuse": ("onnxsim", "onnxslim", "onnxscript", "onnxruntime"),
        "plan": ("onnxsim", "ethos-u-vela"),
        "queries": ("aidge",),
    }
    of |= {"problems": ("ethos-u-vela",), "ranges": ("onnxsim",), "quantised": ("onnxsim",)}
    own = {"tflite-micro": version("tflite_micro")} if "micro" in parts and find_spec("tflite_micro") else {}
    names = dict.fromkeys(name for part in parts for name in of.get(part, ()) if name in PACKAGES)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB",
        "versions": {name: run.peers.version(name) for name in names} | own,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is not in the rows yet, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", type=Path, default=Path(tempfile.gettempdir()) / "onnxtile-peers")
    parser.add_argument("--rows", type=Path, default=Path(tempfile.gettempdir()) / "onnxtile-rows.json")
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
    rows: Row = json.loads(given.rows.read_text()) if given.rows.exists() else {}
    versions = rows.get("about", {}).get("versions", {})
    rows["about"] = about(run, parts)
    rows["about"]["versions"] = versions | rows["about"]["versions"]
    for part in parts:
        known = rows.setdefault(part, {})
        for name, measure in list(PARTS[part](run))[: most(given.models, part)]:
            if name not in known:
                sys.stderr.write(f"{part}: {name}\n")
                taken = {
                    "date": datetime.date.today().isoformat(),
                    "load": os.getloadavg()[0],
                    "onnxtile": own_version(),
                }
                known[name] = measured_row(measure) | {"taken": taken}
                given.rows.write_text(json.dumps(rows, indent=1))
    if given.minimalloc:
        rows["about"]["versions"]["MiniMalloc"] = f"{given.minimalloc_version} (a program that was given)"
    elif "MiniMalloc" in run.peers.missing:
        rows["about"]["versions"]["MiniMalloc"] = f"not built: {run.peers.missing['MiniMalloc']}"
    given.rows.write_text(json.dumps(rows, indent=1))
    given.page.write_text(written(given.page.read_text("utf-8"), page(rows)), "utf-8")


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
