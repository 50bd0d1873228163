"""onnxtile beside its peers, in one run: writes docs/benchmarks.md from rows in JSON.

    python -m tests.bench.compare [--peers FOLDER] [--rows FILE.json] [--only PART,...] [--models N] [--page FILE.md]

PARTS: fuse, plan, problems, ranges, quantised, queries, fit. Each peer is installed in an environment of its own in FOLDER (by default
onnxtile-peers in the folder of temporary files), once. Rows that FILE has already are not measured again; so a run that was ended goes on.
With --models N, only the first N models of each part are measured. Where a peer needs less, its cell is bold.
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
    names = dict.fromkeys(name for part in parts for name in of.get(part, ()) if name in PACKAGES)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    machine = (
        f"{platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB, load {os.getloadavg()[0]:.1f} at the start"
    )
    today = datetime.date.today().isoformat()
    return {
        "date": today,
        "machine": machine,
        "onnxtile": own_version(),
        "versions": {name: run.peers.version(name) for name in names},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is not in the rows yet, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", type=Path, default=Path(tempfile.gettempdir()) / "onnxtile-peers")
    parser.add_argument("--rows", type=Path, default=Path(tempfile.gettempdir()) / "onnxtile-rows.json")
    parser.add_argument("--only", default=",".join(PARTS), metavar="PART,...")
    parser.add_argument("--models", type=int, metavar="N")
    parser.add_argument("--zoo", type=Path, default=SHARED / "zoo")
    parser.add_argument("--minimalloc", type=Path, metavar="PROGRAM")
    parser.add_argument("--quantised", type=Path, metavar="FOLDER", help="what tests.bench.quantised_models exported")
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
        for name, measure in list(PARTS[part](run))[: given.models]:
            if name not in known:
                sys.stderr.write(f"{part}: {name}\n")
                known[name] = measured_row(measure)
                given.rows.write_text(json.dumps(rows, indent=1))
    if "MiniMalloc" in run.peers.missing:
        rows["about"]["versions"]["MiniMalloc"] = f"not built: {run.peers.missing['MiniMalloc']}"
    given.rows.write_text(json.dumps(rows, indent=1))
    given.page.write_text(written(given.page.read_text("utf-8"), page(rows)), "utf-8")


def measured_row(measure: Measure) -> Row:
    """Return a row; a command of a tool that fails is a row that says so."""
    try:
        return measure()
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return {"failed": str(error)[:100]}


if __name__ == "__main__":
    main()
