"""Random models: every command keeps their outputs, whatever is in them. `tests.bench.random_storm` tries as many as wanted."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.random_graphs.asking import faults
from tests.random_graphs.drawing import OPSETS, RANDOM, in_order
from tests.random_graphs.generator import FURTHER_OPSETS, OLDEST_AND_NEWEST, limits_of_empty_loops, random_model
from tests.random_graphs.kernels import run_model
from tests.random_graphs.option_properties import fair_steps
from tests.random_graphs.ranges import range_faults, ranged_model

MODELS, QUICK, BLOCK = 160, 40, 20
"""How many models are tried, how many of them at once, and how many in one test."""
MOST = 7
"""The groups of nodes in a model, at most; the script tries larger ones."""


@pytest.mark.parametrize(
    "first",
    [pytest.param(first, marks=pytest.mark.slow if first >= QUICK else ()) for first in range(0, MODELS, BLOCK)],
)
def test_properties_of_random_models(first: int) -> None:
    found = [fault for seed in range(first, first + BLOCK) for fault in faults(seed, most=MOST)]
    assert not found, "\n".join(f"seed {seed}, {name}: {text}" for seed, name, text in found)


def test_properties_of_models_of_further_opsets() -> None:
    found = [fault for seed in range(2000, 2012) for fault in faults(seed, most=MOST, opsets=FURTHER_OPSETS)]
    assert not found, "\n".join(f"seed {seed}, {name}: {text}" for seed, name, text in found)


def test_properties_of_models_with_further_kinds_of_values() -> None:
    found = [
        fault
        for seed in range(700000, 700003)
        for fault in faults(seed, most=5, opsets=OLDEST_AND_NEWEST, further=True)
    ]
    assert not found, "\n".join(f"seed {seed}, {name}: {text}" for seed, name, text in found)


@pytest.mark.parametrize("seed", [3162, 3602, 4960])
def test_tensors_that_are_empty_or_larger_than_their_owner_at_some_sizes(seed: int) -> None:
    assert range_faults(seed) == []


@pytest.mark.parametrize("first", [0, pytest.param(6, marks=pytest.mark.slow)])
def test_plans_of_random_models_over_ranges_of_sizes(first: int) -> None:
    found = [fault for seed in range(first, first + 6) for fault in range_faults(seed)]
    assert not found, "\n".join(f"seed {seed}, {name}: {text}" for seed, name, text in found)


def test_the_models_over_ranges_are_of_every_kind() -> None:
    made = [ranged_model(seed) for seed in range(110)]
    assert {one.options["alignment"] for one in made} == {1, 2, 4, 8, 64}
    assert {len(one.ranges) for one in made} == {1, 2, 3, 4}
    assert any("state" in one.options for one in made)
    operators = {node.op_type for one in made for node in one.model.graph.node}
    assert operators >= {"Slice", "Reshape", "Concat", "Split", "Expand", "CumSum", "MatMul", "Cast"}
    assert made[0].model == ranged_model(0).model


def test_properties_of_models_with_random_operators() -> None:
    found = [fault for seed in range(10) for fault in faults(seed, most=5, opsets=OPSETS, drawing=True)]
    # Of these fit cuts what is around a random operator, or would change the order of several.
    found += [fault for seed in (37, 1000, 1005) for fault in faults(seed, "fit", most=8, opsets=OPSETS, drawing=True)]
    found += [fault for fault in faults(1074, "fit options", most=8, opsets=OPSETS, drawing=True)]
    assert not found, "\n".join(f"seed {seed}, {name}: {text}" for seed, name, text in found)


def test_models_with_random_operators_have_all_of_them() -> None:
    drawn = {op for seed in range(60) for op, _ in in_order(random_model(seed, opsets=OPSETS, drawing=True).model)}
    assert drawn == RANDOM


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_properties_of_larger_random_models(first: int) -> None:
    found = [fault for seed in range(first, first + 100) for fault in faults(seed)]
    assert not found, "\n".join(f"seed {seed}, {name}: {text}" for seed, name, text in found)


def test_the_models_are_valid_and_of_every_kind() -> None:
    """The properties would say little of models that are alike. The last is the first with a QLinearConv: six in a thousand have one."""
    features: set[str] = set()
    operators: set[str] = set()
    for seed in (*range(300), 755):
        made = random_model(seed)
        onnx.checker.check_model(made.model, full_check=True)
        features |= made.features
        operators |= {node.op_type for node in made.model.graph.node}
        assert made.model == random_model(seed).model
    assert features == {"If", "Loop", "Scan", "function"}
    assert len(operators) > 70
    assert operators >= {
        "QuantizeLinear",
        "QLinearConv",
        "MatMulInteger",
        "Conv",
        "Gemm",
        "LayerNormalization",
        "Dropout",
    }


def test_models_run() -> None:
    for seed in range(300, 330):
        made = random_model(seed)
        assert run_model(made.model, made.feeds(seed))


SCRIPT = """
import hashlib, sys, warnings
warnings.simplefilter("ignore")
import onnxtile
from onnxtile.model.save import to_bytes
from tests.random_graphs.generator import random_model
digest = hashlib.sha256()
for seed in range(int(sys.argv[1]), int(sys.argv[2])):
    made = random_model(seed, 7)
    result = onnxtile.fuse(made.model, ["library", "Add~*>.", ".~>Reshape"], verify=False)
    fused = result.model
    tiled = onnxtile.tile(made.model, max=4, conv=True, dims=made.dims, verify=False).model
    planned = onnxtile.plan(fused, dims=made.dims, search="greedy-by-size", verify=False)
    undone = [onnxtile.unfuse(fused, verify=False).model] if result.fused else []
    models = [to_bytes(part) for part in (fused, tiled, planned.model, *undone)]
    for part in (*models, repr(planned.plan.to_dict()).encode()):
        digest.update(part)
print(digest.hexdigest())
"""


def test_the_hash_seed_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """This process has a seed of its own, a random one."""
    command = [str(tmp_path / "digest.py"), "400", "410"]
    (tmp_path / "digest.py").write_text(SCRIPT)
    monkeypatch.setattr(sys, "argv", command)
    runpy.run_path(command[0])
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=True)
    assert capsys.readouterr().out == done.stdout


def test_the_turns_of_loops_without_nodes_are_found() -> None:
    """A model whose caller says how often such a Loop turns is refused, so no random model may be one."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
      g (float[2] x, int64 n, int64 m, bool c) => (float[2] y) {
        a = Loop(m, "", x) <body = b (int64 i, bool go, float[2] v) => (bool on, float[2] w) { on = Identity(go) w = Neg(v) }>
        y = If(c) <then_branch = t () => (float[2] p) {
                     p = Loop(n, "", a) <body = e (int64 j, bool still, float[2] u) => (bool still, float[2] u) {}> },
                   else_branch = f () => (float[2] q) { q = Abs(a) }>
      }""")
    assert limits_of_empty_loops(model.graph.node) == {"n"}


def test_outputs_that_rounding_leads_to_another_step_are_not_compared_after_a_step_that_rounds_otherwise() -> None:
    tile, verify, fuse = 'do = "tile"\nmax = 4', 'do = "verify"\nruns = 1', 'do = "fuse"'
    assert fair_steps([fuse, verify, tile], is_stepped=True) == [fuse, verify, tile]
    assert fair_steps([fuse, tile, verify], is_stepped=True) == [fuse, tile]
    assert fair_steps([fuse, tile, verify], is_stepped=False) == [fuse, tile, verify]
