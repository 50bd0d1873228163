"""A plan holds for the graph that was planned: every rewrite takes its marks off, and leaves the user's own metadata."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from onnxtile import api
from onnxtile.fusion.unfuse import unfuse
from onnxtile.model import keys
from onnxtile.model.load import load
from onnxtile.model.topology import clear_plan
from onnxtile.pipeline.file import Destination, from_file
from onnxtile.pipeline.run import run_one
from onnxtile.tiling.limits import Limits

MARKS = {keys.ARENA, keys.OFFSET, keys.SIZE, keys.ALIAS_OF, keys.STEP, keys.PLAN}

GRAPH = """g (float[4, 8] x, bool c) => (float[4, 8] y) <float[8, 8] w, float[8] b> {
    h = MatMul(x, w)
    i = Add(h, b)
    j = If(c) <
        then_branch = t () => (float[4, 8] r) { q = Relu(i) r = Abs(q) },
        else_branch = e () => (float[4, 8] s) { s = Neg(i) }
    >
    k = local.f(j)
    y = Relu(k)
}"""
FUNCTION = '<domain: "local", opset_import: ["" : 17]> f (p) => (o) { n = Abs(p) o = Sqrt(n) }'


@pytest.fixture(name="source")
def _source(text: Callable[..., onnx.ModelProto]) -> ir.Model:
    """A model with a body, a function, and metadata of the user's everywhere."""
    proto = text(GRAPH, functions=FUNCTION)
    for name, shape in (("w", (8, 8)), ("b", (8,))):
        del [one for one in proto.graph.initializer if one.name == name][:]
        proto.graph.initializer.append(
            onnx.helper.make_tensor(name, onnx.TensorProto.FLOAT, shape, [0.5] * (64 if name == "w" else 8))
        )
    model = load(proto)
    for _, props in places(model):
        props["mine"] = "kept"
    return model


def places(model: ir.Model) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield all that can have metadata in a file: graphs, functions, nodes and values at any depth."""
    graphs = [*model.graphs(), *(function.graph for function in model.functions.values())]
    graphs += [graph for function in model.functions.values() for graph in function.subgraphs()]
    for graph in graphs:
        yield "graph", graph.metadata_props
        yield from (("value", value.metadata_props) for value in (*graph.inputs, *graph.initializers.values()))
        for node in graph:
            yield "node", node.metadata_props
            yield from (("value", value.metadata_props) for value in node.outputs)
    yield from (("function", function.metadata_props) for function in model.functions.values())


def marks(model: ir.Model) -> set[str]:
    return {key for _, props in places(model) for key in props} & MARKS


def marked_everywhere(model: ir.Model) -> ir.Model:
    copy = model.clone(deep_copy=True)
    for _, props in places(copy):
        props.update(dict.fromkeys(MARKS, "1"))
    return copy


def test_every_mark_goes_and_nothing_else(source: ir.Model) -> None:
    model = marked_everywhere(source)
    clear_plan(model)
    assert marks(model) == set()
    assert ir.to_proto(model) == ir.to_proto(source)


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda model: api.fuse(model, ["MatMul->Add"]).model,
        lambda model: api.fuse(model, ["Linear"], lower="onnx").model,
        lambda model: api.fuse(model, ["Softmax"]).model,
        lambda model: api.tile(model, Limits.of(max=4)).model,
    ],
    ids=["fuse", "lower", "fuse nothing", "tile"],
)
def test_a_rewrite_takes_the_plan_off(source: ir.Model, rewrite: Callable[[ir.Model], ir.Model]) -> None:
    planned = api.plan(source).model
    assert marks(planned) >= {keys.ARENA, keys.OFFSET, keys.STEP, keys.PLAN}
    for model in (planned, marked_everywhere(source)):
        before = ir.to_proto(model)
        rewritten = rewrite(model)
        assert marks(rewritten) == set()
        assert b"pkg.onnxtile.offset" not in ir.to_proto(rewritten).SerializeToString()
        assert ir.to_proto(model) == before


def test_unfuse_gives_back_the_users_metadata_and_no_plan(source: ir.Model) -> None:
    planned = api.plan(api.fuse(api.plan(source).model, ["MatMul->Add"]).model).model
    assert marks(planned)
    restored = api.unfuse(planned).model
    assert marks(restored) == set()
    assert ir.to_proto(restored) == ir.to_proto(source)


def test_marks_in_the_record_of_a_call_are_not_brought_back(source: ir.Model) -> None:
    """The graph was planned before the pattern was applied to it, without the verb."""
    from onnxtile.fusion.fuse import fuse
    from onnxtile.fusion.pattern import select

    model = marked_everywhere(source)
    fuse(model, select(["MatMul->Add"]))
    assert marks(api.unfuse(model).model) == set()
    unfuse(model)
    assert marks(model)


def test_a_pipeline_leaves_the_marks_of_its_last_plan_only(source: ir.Model, tmp_path: Path) -> None:
    api.save(api.plan(source).model, tmp_path / "m.onnx")
    steps = ('do = "fuse"\npatterns = ["MatMul->Add"]', 'do = "plan"', 'do = "unfuse"', 'do = "tile"\nmax = 4')
    for count, has_marks in ((1, False), (2, True), (3, False), (4, False)):
        text = "".join(f"[[steps]]\n{step}\n" for step in steps[:count])
        (tmp_path / "p.toml").write_text(text)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        (tmp_path / "out").mkdir()
        report = run_one(from_file(tmp_path / "p.toml"), tmp_path / "m.onnx", Destination(tmp_path / "out"))
        assert report.passed, report.error
        assert bool(marks(load(tmp_path / "out" / "m.p.onnx"))) == has_marks
