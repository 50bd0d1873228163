"""Limits on runs: a run that never ends is stopped, one that asks for too much memory is refused, and both in one line."""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxtile import api
from onnxtile.pipeline.file import Destination, from_file
from onnxtile.pipeline.run import run_one
from onnxtile.system.errors import ModelError, OnnxtileError, OverLimit, UsageError
from onnxtile.system.long_work import LOOP_SECONDS, SECONDS, Clock, RunLimits, Watch, seconds_of_a_run
from onnxtile.system.runtime import Session
from tests import build

ENDLESS = 2**62


def looping(turns: int, *, nodes: bool = True) -> onnx.ModelProto:
    scalar = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["goes"]), helper.make_node("Neg", ["v"], ["w"])] if nodes else [],
        "body",
        [scalar("i", TensorProto.INT64, []), scalar("go", TensorProto.BOOL, []), scalar("v", TensorProto.FLOAT, [2])],
        [
            scalar("goes" if nodes else "go", TensorProto.BOOL, []),
            scalar("w" if nodes else "v", TensorProto.FLOAT, [2]),
        ],
    )
    return build.model(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)],
        [scalar("x", TensorProto.FLOAT, [2])],
        [scalar("y", TensorProto.FLOAT, [2])],
        [helper.make_tensor("n", TensorProto.INT64, [], [turns])],
        ir_version=9,
    )


def filling(*shape: int) -> onnx.ModelProto:
    """Return a model of a few hundred bytes that fills a tensor of `shape`."""
    return build.model(
        [
            helper.make_node("ConstantOfShape", ["shape"], ["filled"]),
            helper.make_node("ReduceSum", ["filled"], ["sum"], keepdims=0),
            helper.make_node("Add", ["x", "sum"], ["y"]),
        ],
        {"x": [2]},
        {"y": [2]},
        [helper.make_tensor("shape", TensorProto.INT64, [len(shape)], shape)],
        ir_version=9,
    )


VERBS: dict[str, Callable[[onnx.ModelProto], object]] = {
    "fuse": api.fuse,
    "plan": api.plan,
    "verify": lambda model: api.verify(model, model),
    "trace": lambda model: api.trace(model, ["."]),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("verb", VERBS)
def test_a_loop_without_end_is_stopped(verb: str) -> None:
    with RunLimits(seconds=0.3).held(), pytest.raises(OverLimit, match=r"after 0\.3 s") as caught:
        VERBS[verb](looping(ENDLESS))
    assert "runs 3600s" in (caught.value.hint or "")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("shape", [(10**15,), (10**5, 10**5)])
def test_a_tensor_beyond_the_memory_is_refused(verb: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(OverLimit, match="memory") as caught, RunLimits(memory=2**28).held():
        VERBS[verb](filling(*shape))
    assert "\n" not in str(caught.value)


def test_a_model_within_its_limits_runs() -> None:
    with RunLimits(seconds=60, memory=2**31).held():
        assert api.fuse(looping(1000)).verdict is not None
        assert api.plan(filling(100, 100)).verdict is not None


def test_a_loop_without_nodes_which_nothing_could_stop_is_refused() -> None:
    with pytest.raises(ModelError, match="an empty body"):
        api.inspect(looping(ENDLESS, nodes=False))


@pytest.mark.parametrize("verb", VERBS)
def test_a_loop_without_nodes_runs_where_a_constant_limits_its_turns(verb: str) -> None:
    VERBS[verb](looping(3, nodes=False))


def test_the_turns_of_a_loop_without_nodes_may_stand_in_a_graph_around_it() -> None:
    inner = looping(3, nodes=False)
    inner.graph.node[0].output[0] = "inner"
    branch = helper.make_graph(
        inner.graph.node, "branch", [], [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [2])]
    )
    choice = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    truth = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph([choice], "g", [*inner.graph.input, truth], inner.graph.output, inner.graph.initializer)
    model = helper.make_model(graph, opset_imports=inner.opset_import, ir_version=9)
    for verb in VERBS.values():
        verb(model)
    model.graph.input.append(helper.make_tensor_value_info("n", TensorProto.INT64, []))
    with pytest.raises(ModelError, match="an empty body"):
        api.inspect(model)


def test_the_turns_of_a_loop_without_nodes_are_constant_in_a_file_so_old_that_it_lists_all_initializers() -> None:
    model = looping(3, nodes=False)
    model.ir_version, model.opset_import[0].version = 3, 11
    model.graph.input.append(helper.make_tensor_value_info("n", TensorProto.INT64, []))
    for verb in VERBS.values():
        verb(model)


def test_a_model_that_loops_has_less_time_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def seconds(*, iterates: bool) -> float:
        asked.append(iterates)
        return 60.0

    monkeypatch.setattr("onnxtile.system.runtime.seconds_of_a_run", seconds)
    feeds = {"x": np.zeros(2, np.float32)}
    for model in (looping(1), filling(2)):
        onnx.save(model, tmp_path / "m.onnx")
        Session(model.SerializeToString()).run(feeds)
        Session(tmp_path / "m.onnx").run(feeds)
    assert asked == [True, True, False, False]
    assert (seconds_of_a_run(iterates=False), seconds_of_a_run(iterates=True)) == (SECONDS, LOOP_SECONDS)


def test_the_innermost_limits_hold_and_what_was_before_comes_back() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with RunLimits(5, 2**30).held():
        outer = resource.getrlimit(resource.RLIMIT_DATA)[0]
        with RunLimits(7, 2**28).held():
            assert seconds_of_a_run(iterates=True) == 7
            assert 0 < resource.getrlimit(resource.RLIMIT_DATA)[0] < outer
        assert seconds_of_a_run(iterates=True) == 5
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == outer
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_memory_of_our_own_is_limited_too() -> None:
    with pytest.raises(OverLimit), RunLimits(memory=2**26).held():
        np.ones(2**30, np.uint8)


@pytest.mark.parametrize(
    "limits", [{"seconds": 0}, {"seconds": float("nan")}, {"seconds": float("inf")}, {"memory": 0}]
)
def test_what_is_no_limit_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="a run cannot have a limit of"):
        RunLimits(**limits)


def test_limits_that_are_given_come_before_others() -> None:
    assert RunLimits(5).or_else(RunLimits(7, 2**20)) == RunLimits(5, 2**20)


def test_a_run_of_many_short_ones_is_stopped() -> None:
    with RunLimits(seconds=1e-9).held():
        clock = Clock()
    with pytest.raises(OverLimit):
        clock.check()


def test_many_runs_have_one_watchdog() -> None:
    import threading

    stopped: list[int] = []
    for _ in range(100):
        with Watch(60, lambda: stopped.append(1)):
            pass
    assert sum(thread.name == "onnxtile watchdog" for thread in threading.enumerate()) <= 1
    assert not stopped


def test_a_pipeline_has_limits(tmp_path: Path) -> None:
    onnx.save(looping(ENDLESS), tmp_path / "m.onnx")
    file = tmp_path / "p.toml"
    file.write_text('runs = "0.3s,2GiB"\n[[steps]]\ndo = "fuse"\n')
    pipeline = from_file(file)
    assert pipeline.limits == RunLimits(0.3, 2**31)
    report = run_one(pipeline, tmp_path / "m.onnx", Destination())
    assert report.error is not None
    assert "stopped after 0.3 s" in report.error
    onnx.save(filling(10**15), tmp_path / "m.onnx")
    report = run_one(pipeline, tmp_path / "m.onnx", Destination())
    assert report.error is not None
    assert "memory" in report.error
    assert "internal" not in report.error


def test_a_step_and_a_function_have_limits_of_their_own(tmp_path: Path) -> None:
    onnx.save(looping(ENDLESS), tmp_path / "m.onnx")
    (tmp_path / "p.toml").write_text('runs = "60s"\n[[steps]]\ndo = "fuse"\nruns = "0.3s"\n')
    report = run_one(from_file(tmp_path / "p.toml"), tmp_path / "m.onnx", Destination())
    assert "stopped after 0.3 s" in (report.error or "")
    with RunLimits(60).held(), pytest.raises(OverLimit, match=r"after 0\.2 s"):
        api.fuse(tmp_path / "m.onnx", runs="200ms")


@pytest.mark.parametrize(
    "line", ['runs = "0s"', 'runs = "inf"', 'runs = "0B"', "runs = 3", "runs = true", "limits = {run_seconds = 1.0}"]
)
def test_limits_of_a_pipeline_that_are_none_are_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "p.toml"
    file.write_text(f'{line}\n[[steps]]\ndo = "fuse"\n')
    with pytest.raises(OnnxtileError, match=r"p\.toml:1"):
        from_file(file)
