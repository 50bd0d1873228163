"""Sessions of models in memory: large ones go through a file, which leaves nothing behind."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxtile.model import session
from onnxtile.model.load import load
from onnxtile.model.save import save
from onnxtile.model.session import session_of
from onnxtile.system.errors import ModelError


def product(size: int, op: str = "MatMul", layers: int = 1) -> ir.Model:
    weights = np.arange(size * size, dtype=np.float32).reshape(size, size)
    x = made = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, size]))
    nodes, held = [], []
    for layer in range(layers):
        name = f"w{layer}"
        shape, type_ = ir.Shape([size, size]), ir.TensorType(ir.DataType.FLOAT)
        held.append(ir.Value(name=name, const_value=ir.tensor(weights + layer, name=name), shape=shape, type=type_))
        nodes.append(ir.Node("", op, [made, held[-1]]))
        made = nodes[-1].outputs[0]
        made.name, made.type, made.shape = f"y{layer}", x.type, x.shape
    graph = ir.Graph([x], [made], nodes=nodes, initializers=held, opset_imports={"": 17}, name="g")
    return ir.Model(graph, ir_version=10)


def test_a_large_model_gives_what_a_small_one_gives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    feeds = {"x": np.ones((1, 4), np.float32)}
    small = session_of(product(4)).run(feeds)["y0"]
    monkeypatch.setattr(session, "_MOST_FROM_MEMORY", 8)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert session_of(product(4)).run(feeds)["y0"].tolist() == small.tolist()
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_leaves_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session, "_MOST_FROM_MEMORY", 8)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ModelError, match="cannot load"):
        session_of(product(4, op="NoSuchOperator"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is measured as Linux tells it")
def test_weights_are_held_once_while_a_large_model_loads(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    save(product(1024, layers=9), path)
    held = 9 * 1024 * 1024 * 4
    code = f"""
import resource, numpy as np
from pathlib import Path
from onnxtile.model.load import load
from onnxtile.model.session import session_of
session_of(load({str(tmp_path / "small.onnx")!r}))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
session_of(load({str(path)!r}))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""
    save(product(4), tmp_path / "small.onnx")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 1.4 * held


def test_the_model_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_MOST_FROM_MEMORY", 8)
    model = product(4)
    tensor = model.graph.initializers["w0"].const_value
    session_of(model)
    assert model.graph.initializers["w0"].const_value is tensor


def test_a_file_with_external_weights_is_read_where_it_lies(tmp_path: Path) -> None:
    ir.save(product(4), tmp_path / "m.onnx", external_data="m.data", size_threshold_bytes=0)
    found = session_of(load(tmp_path / "m.onnx")).run({"x": np.ones((1, 4), np.float32)})
    assert found["y0"].shape == (1, 4)
