"""The same input gives the same bytes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from onnxtile import api
from onnxtile.model.load import Source
from onnxtile.model.save import to_bytes

SCRIPT = """
import hashlib, sys
from onnxtile import api
from onnxtile.model.save import to_bytes
result = api.fuse(sys.argv[1], ["aidge", "Add~*>.", ".~>Reshape"], verify=sys.argv[2] == "verify")
fused = to_bytes(result.model)
restored = to_bytes(api.unfuse(result.model, verify=False).model)
print(hashlib.sha256(fused).hexdigest(), hashlib.sha256(restored).hexdigest())
"""


def _digests(model: Path, seed: str, verify: str = "") -> str:
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(model), verify], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_hash_seed_changes_nothing(transformer: Path) -> None:
    assert len({_digests(transformer, seed) for seed in ("0", "1", "77")}) == 1


def test_verification_changes_nothing(transformer: Path) -> None:
    assert _digests(transformer, "0") == _digests(transformer, "0", "verify")


@pytest.mark.parametrize("form", ["path", "proto", "model"])
def test_the_form_of_the_model_changes_nothing(transformer: Path, form: str) -> None:
    forms: dict[str, Callable[[], Source]] = {
        "path": lambda: transformer,
        "proto": lambda: onnx.load(transformer),
        "model": lambda: ir.load(transformer),
    }
    source = forms[form]()
    data = to_bytes(api.fuse(source, ["aidge"], verify=False).model)
    expected = to_bytes(api.fuse(transformer, ["aidge"], verify=False).model)
    assert hashlib.sha256(data).hexdigest() == hashlib.sha256(expected).hexdigest()
