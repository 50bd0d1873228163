"""Plans models, and has the scripts without onnxtile check the certificates: a table in Markdown, and how many are accepted.

    python -m tests.bench.certified [--order model] [--fused] MODEL.onnx ...

Free dimensions get small sizes with which the model runs. A row has the claim of the plan, the scope and the kind of the proof, and the
reason where a certificate has none. A script that refuses a proof ends the run with exit 1, after the table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import onnxtile
from onnxtile.check import check_account, check_bound
from onnxtile.system.errors import OnnxtileError
from tests.bench.subjects import small


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and the counts; return 1 where a proof is refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--order", default="auto")
    parser.add_argument("--fused", action="store_true")
    given = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    print("| model | arena | claim | scope | proof | checked |\n|---|---:|---|---|---|---|")
    for path in given.models:
        with tempfile.TemporaryDirectory() as folder:
            said, checked = outcome(path, order=given.order, fused=given.fused, folder=Path(folder))
        print(f"| {' | '.join((path.stem, *said, checked))} |", flush=True)
        counts[checked] += 1
    print(f"\n{', '.join(f'{word} {count}' for word, count in counts.most_common())} of {len(given.models)}")
    return int("refused" in counts)


def outcome(path: Path, *, order: str, fused: bool, folder: Path) -> tuple[tuple[str, ...], str]:
    """Return the cells of the model `path`, and "accepted", "refused", or why the scripts are not asked."""
    model, file = folder / "planned.onnx", folder / "plan.certificate.json"
    try:
        source = onnxtile.fuse(path, verify=False).model if fused else path
        planned = onnxtile.plan(source, shapes=small(path), order=order, verify=False)
    except OnnxtileError as error:
        return ("", "", "", str(error)), "not planned"
    planned.save(model)
    planned.write(file)
    said = json.loads(file.read_text("utf-8"))
    cells = f"{said['arena']:,}", said["claim"] or "none", said["scope"] or ""
    if said["proof"] is None:
        return (*cells, said["reason"]), "no proof" if said["claim"] else "not said to be the smallest"
    (kind,) = set(said["proof"].get("tree", said["proof"])) & {"node", "backward", "step", "chain", "pair"}
    return (*cells, kind), "accepted" if accepted(model, file) else "refused"


def accepted(model: Path, certificate: Path) -> bool:
    """Return whether both scripts accept a certificate of `model`."""
    commands = ([check_account.__file__, model, certificate], [check_bound.__file__, certificate])
    for command in commands:
        done = subprocess.run([sys.executable, "-Es", *map(str, command)], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{certificate}: {done.stderr.strip()}", file=sys.stderr)
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
