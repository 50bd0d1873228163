"""Activations: those of onnxruntime itself, of the nodes asked for and no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxtile import api
from onnxtile.inspection import trace as traced_bytes
from onnxtile.model import exact_products
from onnxtile.model.feeds import write_arrays
from onnxtile.system.errors import ModelError, OverLimit, QueryError, UsageError
from onnxtile.system.runtime import Session
from tests.build import parsed as text

CHAIN = text("g (float[N,3] x) => (float[N,3] y) { a = Neg(x)  b = Exp(a)  c = Log(b)  y = Relu(c) }")


def test_what_is_saved_is_what_onnxruntime_computes(transformer: Path, tmp_path: Path) -> None:
    """The same values, shown as outputs of a session that optimises as it likes."""
    image = np.random.default_rng(7).standard_normal((1, 3, 64, 64)).astype(np.float32)
    model = onnx.load(transformer)
    name = model.graph.input[0].name
    write_arrays(tmp_path / "x.npz", {name: image})
    result = api.trace(transformer, ["Softmax"], inputs=tmp_path / "x.npz")
    write_arrays(tmp_path / "acts.npz", result.arrays)
    wanted = [node.output[0] for node in model.graph.node if node.op_type == "Softmax"]
    model.graph.output.extend(onnx.ValueInfoProto(name=one) for one in wanted if one != model.graph.output[0].name)
    expected = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        wanted, {name: image}
    )
    saved = np.load(tmp_path / "acts.npz")
    assert saved.files == wanted
    for key, array in zip(wanted, expected, strict=True):
        np.testing.assert_allclose(saved[key], array, rtol=1e-4, atol=1e-6)
    for one in result.activations:
        assert one.op == "Softmax"
        assert one.shape == saved[one.name].shape
        assert one.low == saved[one.name].min()
        assert one.high == saved[one.name].max()
        assert one.mean == pytest.approx(1 / one.shape[-1], rel=1e-4)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (["Exp"], ["b"]),
        (["a"], ["a"]),
        (["Log", "Neg"], ["a", "c"]),
        (["Neg->Exp"], ["a", "b"]),
        (["y", "Exp->Log"], ["b", "c", "y"]),
    ],
)
def test_nodes_by_operator_name_or_query(wanted: list[str], found: list[str]) -> None:
    assert list(api.trace(CHAIN, wanted).arrays) == found


def test_what_no_chosen_node_needs_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a run is that of the nodes asked for, and of what they come from while it is needed."""
    ran: list[list[str]] = []

    class Spy(Session):
        def run(self, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None) -> dict[str, Any]:
            ran.append(self.outputs)
            return super().run(feeds, outputs)

    monkeypatch.setattr(exact_products, "Session", Spy)
    result = api.trace(CHAIN, ["Exp"])
    assert ran == [["b"]]
    assert list(result.arrays) == ["b"]


def test_a_summary_counts_what_is_not_finite(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.asarray([[1, np.nan, -np.inf], [0, 3, np.nan]], np.float32))
    (one,) = api.trace(CHAIN, ["Neg"], inputs=tmp_path / "x.npz").activations
    assert (one.low, one.high, one.nans, one.infinities) == (-3, 0, 2, 1)
    assert one.mean == pytest.approx(-4 / 3)


def test_other_element_types_and_sequences() -> None:
    graph = (
        "g (float[4] x) => (int64 n) { h = Cast <to = 16> (x)  b = Greater(x, x)  t = Constant <value_int = 2> ()"
        "  s = SplitToSequence(x, t)  n = SequenceLength(s) }"
    )
    result = api.trace(text(graph), ["Cast", "Greater", "SplitToSequence", "SequenceLength"])
    kinds = {one.name: (one.dtype, one.shape) for one in result.activations}
    pair = ("float32", (2,))
    assert kinds == {"h": ("bfloat16", (4,)), "b": ("bool", (4,)), "s[0]": pair, "s[1]": pair, "n": ("int64", ())}
    assert result.arrays["h"].dtype == ml_dtypes.bfloat16


def test_values_of_any_name_are_saved(tmp_path: Path) -> None:
    names = ["file", "allow_pickle", "/a/b.npy", "../c", "é::0", "args"]
    model = text("g (float[3] x) => (float[3] y) { a = Neg(x) b = Neg(a) c = Neg(b) d = Neg(c) e = Neg(d) y = Neg(e) }")
    renamed = dict(zip("abcdey", names, strict=True))
    for node in model.graph.node:
        node.input[0], node.output[0] = renamed.get(node.input[0], node.input[0]), renamed[node.output[0]]
    model.graph.output[0].name = renamed["y"]
    result = api.trace(model, ["Neg"])
    write_arrays(tmp_path / "acts.npz", result.arrays)
    saved = np.load(tmp_path / "acts.npz")
    assert saved.files == names
    for name in names:
        np.testing.assert_array_equal(saved[name], result.arrays[name])


def test_what_cannot_be_chosen() -> None:
    body = "b (int64 i, bool c, float[3] s) => (bool d, float[3] r) { d = Identity(c)  r = Abs(s) }"
    looping = text(f"g (int64 n, float[3] x) => (float[3] y) {{ y = Loop (n, , x) <body = {body}> }}")
    with pytest.raises(UsageError, match="only in bodies of loops"):
        api.trace(looping, ["Abs"])
    with pytest.raises(UsageError, match="nowhere"):
        api.trace(CHAIN, ["Exp->Relu"])
    with pytest.raises(QueryError):
        api.trace(CHAIN, ["Expp"])


def test_nodes_inside_functions(transformer: Path) -> None:
    """A fused model shows what the plain one does, also where a meta-op hides it."""
    fused = api.fuse(transformer, ["LayerNorm", "Linear"], verify=False).model
    assert all(node.op_type != "Sqrt" for node in fused.graph)
    plain, inside = api.trace(transformer, ["Sqrt"]), api.trace(fused, ["Sqrt"])
    assert [one.op for one in inside.activations] == ["Sqrt"] * len(plain.activations)
    for one, other in zip(plain.arrays.values(), inside.arrays.values(), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(UsageError, match="nowhere"):
        api.trace(fused, ["Sqrt->Sqrt"])


BRANCHES = text(
    "g (bool c, bool d, float[3] x) => (float[3] y) { n = Neg(x)  y = If (c) <"
    "then_branch = t () => (float[3] p) { a = Abs(n)  p = If (d) <"
    "then_branch = u () => (float[3] q) { q = Exp(a) }, else_branch = v () => (float[3] r) { r = Sqrt(a) }> }, "
    "else_branch = e () => (float[3] s) <float[3] k = {1, 2, 3}> { s = Mul(n, k) }> }"
)


@pytest.mark.parametrize(
    ("flags", "wanted", "found"),
    [
        ((True, True), ["Exp", "Neg"], {"n": [-1, 0, 4], "q": np.exp([1, 0, 4])}),
        ((True, False), ["Abs", "Sqrt", "Mul"], {"a": [1, 0, 4], "r": [1, 0, 2]}),
        ((False, True), ["Mul", "Exp"], {"s": [-1, 0, 12]}),
        ((True, True), ["y.then_branch/p.then_branch/q"], {"q": np.exp([1, 0, 4])}),
    ],
)
def test_nodes_in_the_branches_that_are_taken(
    flags: tuple[bool, bool], wanted: list[str], found: dict[str, list[float]], tmp_path: Path
) -> None:
    np.savez(tmp_path / "x.npz", c=np.array(flags[0]), d=np.array(flags[1]), x=np.asarray([1, 0, -4], np.float32))
    result = api.trace(BRANCHES, wanted, inputs=tmp_path / "x.npz")
    assert result.arrays.keys() == found.keys()
    for name, array in found.items():
        np.testing.assert_allclose(result.arrays[name], array, rtol=1e-6)


def test_branches_that_are_not_taken_have_nothing_to_show(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", c=np.array(False), d=np.array(True), x=np.ones(3, np.float32))
    with pytest.raises(UsageError, match="does not reach the branches"):
        api.trace(BRANCHES, ["Exp"], inputs=tmp_path / "x.npz")


def test_ranges_bound_the_random_inputs() -> None:
    result = api.trace(CHAIN, ["Neg"], inputs={"x": (2, 3)})
    assert all(-3 <= one.low <= one.high <= -2 for one in result.activations if one.low is not None and one.high)
    with pytest.raises(UsageError, match="no input 'z'"):
        api.trace(CHAIN, ["Neg"], inputs={"z": (2, 3)})
    with pytest.raises(UsageError, match="nothing is drawn"):
        api.trace(CHAIN, ["Neg"], inputs=["x.npz", {"x": (2, 3)}])


def test_the_command(
    transformer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from onnxtile import cli

    def run(*options: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["onnxtile", "inspect", str(transformer), *options])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return int(end.value.code or 0), *capsys.readouterr()

    target = tmp_path / "acts.npz"
    code, out, err = run("--trace", "Softmax", "-o", str(target))
    assert (code, err) == (0, "")
    assert "2 activations, random inputs" in out
    assert len(np.load(target).files) == 2
    first = target.read_bytes()
    run("--trace", "Softmax", "-o", str(target))
    assert target.read_bytes() == first
    for options, message in (
        (("-o", str(target)), "--output is for --trace"),
        (("--trace", "Softmax", "--training"), "does not go with --trace"),
        (("--trace", "Softmax", "--inputs", "x=2:1"), "is empty"),
        (("--trace", "Softmax", "--inputs", "no.npz"), "no such file"),
    ):
        code, out, err = run(*options)
        assert (code, out) == (2, "")
        assert message in err


def test_a_model_that_the_wheel_brings(silero: Callable[[str], Path]) -> None:
    for name in ("silero_vad_16k_sequence", "silero_vad"):
        result = api.trace(silero(name), ["LSTM"])
        assert result.activations
        assert not any(one.nans for one in result.activations)


def test_a_condition_of_several_elements_is_refused(tmp_path: Path) -> None:
    model = text(
        "g (bool[N] c, float[3] x) => (float[3] y) "
        "{ y = If (c) <then_branch = t () => (float[3] p) { p = Abs(x) }, else_branch = e () => (float[3] q) { q = Exp(x) }> }"
    )
    np.savez(tmp_path / "x.npz", c=np.array([True, False]), x=np.ones(3, np.float32))
    with pytest.raises(ModelError, match="'c' of an If has 2 elements"):
        api.trace(model, ["Exp"], inputs=tmp_path / "x.npz")


WIDE = text(
    "g (float[N,1024] x) => (float[1] y) <int64[3] shape = {1024, 1024, 1024}, int64[1] first = {0}> "
    "{ a = Expand(x, shape)  b = Neg(a)  c = ReduceMax <axes = [0, 1, 2], keepdims = 0> (b)  y = Unsqueeze(c, first) }"
)
"""Two values of 4 GiB each, from an input of 4 MiB."""


def test_values_that_take_too_much_memory_are_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = list[str]()
    monkeypatch.setattr(Session, "run", lambda *_: ran.append("run"))
    with pytest.raises(
        OverLimit, match="the traced values take 8,589,934,600 bytes of memory, and 1,073,741,824 are allowed"
    ):
        api.trace(WIDE, ["."], dims={"N": 1024})
    assert ran == []


def test_limits_say_how_much_traced_values_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced_bytes, "memory_of_runs", lambda: 71)
    with pytest.raises(OverLimit, match="the traced values take 72 bytes of memory, and 71 are allowed"):
        api.trace(CHAIN, ["Neg", "Exp"], dims={"N": 3})
    assert len(api.trace(CHAIN, ["Neg"], dims={"N": 3}).activations) == 1


def test_strings_are_traced() -> None:
    model = text("g (string[2] s) => (string[2] t) { r = Identity(s)  t = Identity(r) }")
    assert [one.dtype for one in api.trace(model, ["."]).activations] == ["string", "string"]
