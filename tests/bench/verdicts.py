"""Compares models with one model by running them, and prints JSON: `python -m tests.bench.verdicts BEFORE.onnx AFTER.onnx ...`."""

from __future__ import annotations

import json
import sys

import onnxtile
from onnxtile.system.errors import OnnxtileError


def verdict(before: str, after: str) -> str:
    """Return "equal", "WRONG", or why the models could not be compared."""
    try:
        return "equal" if onnxtile.verify(before, after).equal else "WRONG"
    except OnnxtileError as error:
        return f"does not run: {str(error).splitlines()[0][:60]}"


if __name__ == "__main__":
    sys.stdout.write(json.dumps({after: verdict(sys.argv[1], after) for after in sys.argv[2:]}) + "\n")
