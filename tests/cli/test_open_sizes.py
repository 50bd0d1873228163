"""Sizes that a file leaves open: only first dimensions are planned at 1, with the formula; otherwise one line names what is missing."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import onnxtile
from onnxtile.system.errors import ModelError
from tests import build
from tests.cli.conftest import Run


def net(batch: str) -> onnx.ModelProto:
    """Return a net with its `batch` open: a name, or nothing that names it."""
    return build.parsed(
        f"""net (float[{batch},3,16,16] x) => (float[{batch},4] y)
        <float[4,3,3,3] w = {{{", ".join(["0.125"] * 108)}}}>
        {{ c = Conv<pads = [1,1,1,1]>(x, w) r = Relu(c) q = MaxPool<kernel_shape = [2,2], strides = [2,2]>(r)
           m = GlobalMaxPool(q) y = Flatten(m) }}"""
    )


def nameless() -> onnx.ModelProto:
    model = net("N")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].Clear()
    return model


@pytest.mark.parametrize(
    ("model", "options", "size"),
    [(net("batch"), "--dim batch=1", {"batch": 1}), (nameless(), "--shape x=1x3x16x16", {"x[0]": 1})],
)
def test_an_open_batch_is_planned_at_1(model: onnx.ModelProto, options: str, size: dict[str, int]) -> None:
    planned = onnxtile.plan(model)
    fixed = onnxtile.plan(model, shapes={"x": (1, 3, 16, 16)})
    assert planned.open_sizes is not None
    assert (planned.open_sizes.options, planned.open_sizes.sizes) == (options, size)
    assert planned.plan.buffers == fixed.plan.buffers
    assert fixed.open_sizes is None
    assert planned.verdict is not None


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_the_formula_of_an_open_batch_is_the_arena_at_each_size(size: int) -> None:
    model = net("batch")
    taken = onnxtile.plan(model).open_sizes
    assert taken is not None
    assert taken.ranges == {"batch": (1, 8)}
    (formula,) = taken.formulas
    assert formula.scaled is not None
    largest = max(eval(piece, {"batch": size, "max": max}) for piece in formula.scaled.pieces)
    assert largest == onnxtile.plan(model, dims={"batch": size}).plan.arena_size


def test_the_command_says_so_in_one_line(run: Run, tmp_path: Path) -> None:
    onnx.save(net("batch"), tmp_path / "net.onnx")
    done = run("plan", tmp_path / "net.onnx")
    (line,) = [row for row in done.out.splitlines() if "leaves open" in row]
    assert "batch=1, which the file leaves open (--dim batch=1); 5,120·batch bytes at batch 1 to 8" in line
    assert (done.code, done.err) == (0, "")
    assert run("plan", tmp_path / "net.onnx", "--check", tmp_path / "net.planned.onnx").code == 0


def test_two_open_names_are_both_1_without_a_formula() -> None:
    taken = onnxtile.plan(build.parsed("g (float[n,4] a, float[m,4] b) => (float[k,4] y) { y = Add(a, b) }")).open_sizes
    assert taken is not None
    assert (taken.sizes, taken.formulas) == ({"n": 1, "m": 1}, ())


def test_capacity_is_that_of_the_size_1() -> None:
    planned = onnxtile.plan(net("batch"), capacity=5120)
    assert planned.open_sizes is not None and planned.open_sizes.formulas


@pytest.mark.parametrize("verify", [True, False])
def test_other_open_sizes_are_one_line(verify: bool) -> None:
    model = build.parsed("g (float[batch,seq] x) => (float[batch,seq] y) { a = Relu(x) b = Exp(a) y = Neg(b) }")
    with pytest.raises(ModelError) as raised:
        onnxtile.plan(model, verify=verify)
    assert str(raised.value).splitlines()[0].startswith("sizes of inputs are not known: 'x' [batch, seq]")
    assert "batch" in str(raised.value.hint)
    assert "seq" in str(raised.value.hint)


def test_fit_takes_an_open_batch_as_1(run: Run, tmp_path: Path) -> None:
    onnx.save(net("batch"), tmp_path / "net.onnx")
    done = run("fit", tmp_path / "net.onnx", "--capacity", "4KiB", "--json", tmp_path / "fit.json")
    assert done.code == 0
    assert "sizes: batch=1, which the file leaves open (--dim batch=1)" in done.out
    fitted = onnxtile.fit(net("batch"), capacity="4KiB")
    assert fitted.open_sizes is not None
    assert fitted.open_sizes.sizes == {"batch": 1}


def test_tile_has_one_row_for_all_nodes_that_an_open_size_leaves(run: Run, tmp_path: Path) -> None:
    body = " ".join(f"t{i + 1} = MatMul(t{i}, w) " for i in range(5))
    text = f"g (float[n,8] t0) => (float[n,8] t5) <float[8,8] w = {{{', '.join(['0.5'] * 64)}}}> {{ {body} }}"
    onnx.save(build.parsed(text), tmp_path / "m.onnx")
    done = run("tile", tmp_path / "m.onnx", "--max", "4")
    rows = [row for row in done.out.splitlines() if "bind it with --dim n=N" in row and "warning" not in row]
    assert len(rows) == 1
    assert rows[0].split()[0] == "5"
