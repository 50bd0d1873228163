"""Plans of TensorFlow Lite models: what is written runs in TensorFlow Lite Micro, in the planned bytes and with the same outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import flatbuffers
import numpy as np
import pytest

import onnxtile
from onnxtile import cli
from onnxtile.deployment import micro_proof, tflite_model
from onnxtile.deployment.micro_proof import micro_runs, require_sound
from onnxtile.deployment.tflite_model import (
    ONLINE,
    MicroGraph,
    MicroOperator,
    MicroTensor,
    offsets_in,
    read_tflite,
    with_offsets,
)
from onnxtile.deployment.tflite_plan import problem_of
from onnxtile.planning.problem_plan import plan_buffers
from onnxtile.system.errors import CheckFailed, Infeasible, Mismatch, ModelError, UsageError, of_extra
from onnxtile.verbs.flows import other_formats as micro
from tests.deployment.networks import SCHEMA, Network, network

ARENA = 2**20


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], model: Path
) -> Callable[..., tuple[int, str]]:
    """Give a function that runs the command in the folder of `model`, and returns its exit code and what it wrote to stderr."""

    def command(*arguments: str) -> tuple[int, str]:
        monkeypatch.chdir(model.parent)
        monkeypatch.setattr(sys, "argv", ["onnxtile", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert isinstance(end.value.code, int)
        return end.value.code, capfd.readouterr().err

    return command


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The file of a random network."""
    path = tmp_path / "net.tflite"
    path.write_bytes(network(1))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_the_written_model_runs_in_the_planned_bytes(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(network(seed, operators=8 + 2 * seed))
    planned = onnxtile.plan_tflite(path)
    assert planned.verdict is not None and planned.verdict.equal
    assert planned.verdict.head == planned.plan.arena_size
    assert planned.verdict.head <= planned.verdict.own_head
    assert planned.plan.optimal


def test_one_model_runs_in_the_planned_bytes(model: Path, tmp_path: Path) -> None:
    planned = onnxtile.plan_tflite(model)
    assert planned.verdict is not None and planned.verdict.head == planned.plan.arena_size < planned.verdict.own_head
    assert planned.plan.in_place > 0 and planned.plan.copies.avoided > 0
    planned.save(tmp_path / "out.tflite")
    data = model.read_bytes()
    written = (tmp_path / "out.tflite").read_bytes()
    assert written.endswith(data) and read_tflite(written, "") == read_tflite(data, "")


def test_a_falsified_offset_is_seen_by_the_check_and_by_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, model = Network(), tmp_path / "net.tflite"
    a = net.conv(net.inputs[0])
    b = net.conv(a)
    data = net.bytes([net.conv(net.add("ADD", [a, b], net.shape(a)))])
    model.write_bytes(data)
    planned = onnxtile.plan_tflite(model, verify=False)
    offsets = list(offsets_in(planned.data) or ())
    offsets[b] = offsets[a]  # both are operands of the ADD
    falsified = with_offsets(data, offsets)
    ours, theirs = micro_runs([planned.data, falsified], ARENA)
    assert ours.outputs != theirs.outputs
    monkeypatch.setattr(micro, "with_offsets", lambda _data, _offsets: falsified)
    with pytest.raises(CheckFailed, match=r"CONV_2D writes 't[0-9]+' over an operand that it still reads"):
        onnxtile.plan_tflite(model, verify=False)
    monkeypatch.setattr(micro, "require_sound", lambda _data, _arena: None)
    with pytest.raises(Mismatch, match="the run with the plan differs"):
        onnxtile.plan_tflite(model)


def test_every_single_falsified_offset_of_live_tensors_is_seen_by_the_check(model: Path) -> None:
    planned = onnxtile.plan_tflite(model, verify=False)
    offsets = offsets_in(planned.data) or ()
    data = model.read_bytes()
    for index, offset in enumerate(offsets):
        beyond = with_offsets(data, [*offsets[:index], planned.plan.arena_size, *offsets[index + 1 :]])
        with pytest.raises(CheckFailed):
            require_sound(beyond, planned.plan.arena_size)
        if offset != ONLINE:
            crooked = with_offsets(data, [*offsets[:index], offset + 8, *offsets[index + 1 :]])
            with pytest.raises(CheckFailed):
                require_sound(crooked, planned.plan.arena_size)
    with pytest.raises(CheckFailed, match="it has offsets for"):
        require_sound(with_offsets(data, offsets[1:]), planned.plan.arena_size)


def test_a_plan_replaces_the_one_before(model: Path, tmp_path: Path) -> None:
    once = onnxtile.plan_tflite(model, verify=False)
    once.save(tmp_path / "once.tflite")
    twice = onnxtile.plan_tflite(tmp_path / "once.tflite", verify=False)
    assert offsets_in(twice.data) == offsets_in(once.data)
    assert offsets_in(model.read_bytes()) is None


def test_a_result_may_not_be_written_over_an_operand_that_is_read_again() -> None:
    net = Network()
    a = net.conv(net.inputs[0])
    b = net.add("RELU", [a], net.shape(a))
    out = net.joined(a, b)
    graphs = read_tflite(net.bytes([out]), "")
    problem = problem_of(graphs)
    assert problem.owners[0, b] == (0, b)
    data = net.bytes([out])
    offsets = [ONLINE] * len(graphs[0].tensors)
    for index, place in ((net.inputs[0], 2048), (a, 0), (b, 0), (out, 4096)):
        offsets[index] = place
    with pytest.raises(CheckFailed, match="has changed before CONCATENATION reads it"):
        require_sound(with_offsets(data, offsets), ARENA)


def test_a_model_with_scratch_keeps_it_inside_the_planned_bytes(tmp_path: Path) -> None:
    net = Network()
    x = net.conv(net.inputs[0])
    axes = net.tensor((2,), np.array([1, 2], np.int32))
    (tmp_path / "net.tflite").write_bytes(net.bytes([net.add("MEAN", [x, axes], (1, 4))]))
    planned = onnxtile.plan_tflite(tmp_path / "net.tflite")
    assert planned.verdict is not None and planned.verdict.head == planned.plan.arena_size <= planned.verdict.own_head
    assert [row.kind for row in planned.plan.buffers].count("workspace") == 1


def test_what_is_no_model_is_refused(model: Path, tmp_path: Path, transformer: Path) -> None:
    with pytest.raises(ModelError, match="not a TensorFlow Lite model"):
        onnxtile.plan_tflite(transformer)
    data = model.read_bytes()
    for length in range(0, len(data), max(1, len(data) // 150)):
        (tmp_path / "cut.tflite").write_bytes(data[:length])
        with pytest.raises(ModelError, match=r"damaged|not a TensorFlow Lite model"):
            onnxtile.plan_tflite(tmp_path / "cut.tflite", verify=False)


def test_changed_bytes_are_read_or_refused(model: Path) -> None:
    data, random = bytearray(model.read_bytes()), np.random.default_rng(0)
    for _ in range(300):
        changed = bytearray(data)
        for place in random.integers(8, len(data), 3):
            changed[place] = random.integers(0, 256)
        try:
            graphs = read_tflite(bytes(changed), "changed")
            with_offsets(bytes(changed), [ONLINE] * sum(len(graph.tensors) for graph in graphs))
        except ModelError:
            pass


OUT_OF_RANGE = [-2, -1, 0, 1, 1000, 2**31 - 1, -(2**31)]


@pytest.mark.parametrize("seed", range(60))
def test_indices_that_lead_nowhere_are_refused(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro, "is_installed", lambda: False)
    random, net = np.random.default_rng(seed), SCHEMA.ModelT.InitFromPackedBuf(network(seed % 5), 0)
    graph = net.subgraphs[0]
    owner = graph if seed % 2 else graph.operators[random.integers(len(graph.operators))]
    field = "inputs" if random.random() < 0.5 else "outputs"
    indices = list(getattr(owner, field))
    indices[random.integers(len(indices))] = int(random.choice(OUT_OF_RANGE))
    setattr(owner, field, [indices, [], None][int(random.integers(3))] if seed % 3 else indices)
    builder = flatbuffers.Builder(1024)
    builder.Finish(net.Pack(builder), b"TFL3")
    (tmp_path / "changed.tflite").write_bytes(bytes(builder.Output()))
    with suppress(ModelError, UsageError, CheckFailed):
        onnxtile.plan_tflite(tmp_path / "changed.tflite")


@pytest.mark.parametrize("end", ["inputs", "outputs"])
def test_an_end_of_the_model_that_is_left_out_is_damage(end: str, tmp_path: Path) -> None:
    net = Network()
    result = net.conv(net.inputs[0])
    if end == "inputs":
        net.inputs.append(-1)
    (tmp_path / "ends.tflite").write_bytes(net.bytes([result] if end == "inputs" else [-1]))
    with pytest.raises(ModelError, match="damaged"):
        onnxtile.plan_tflite(tmp_path / "ends.tflite", verify=False)


def test_a_subgraph_that_runs_itself_is_refused() -> None:
    body = MicroOperator("IF", (), (), (1, 1))
    empty = MicroGraph((), (body,), (), ())
    with pytest.raises(ModelError, match="runs itself"):
        problem_of((empty, empty))


def test_subgraphs_are_live_while_their_operator_runs() -> None:
    tensors = tuple(MicroTensor(f"t{i}", "FLOAT", (16,), 64, False, False) for i in range(3))
    inner = MicroGraph(tensors[:2], (MicroOperator("RELU", (0,), (1,)),), (0,), (1,))
    outer = MicroGraph(tensors, (MicroOperator("IF", (0, 1), (2,), (1, 1)),), (0, 1), (2,))
    problem = problem_of((outer, inner))
    assert problem.live_ranges == {(0, 0): (0, 5), (0, 1): (0, 5), (0, 2): (1, 5), (1, 0): (2, 5), (1, 1): (3, 5)}
    assert plan_buffers(problem.problem).arena_size == 5 * 64


def test_options_that_do_not_fit(model: Path) -> None:
    with pytest.raises(UsageError, match="aligns tensors to 16 bytes, not to 8"):
        onnxtile.plan_tflite(model, alignment=8)
    with pytest.raises(UsageError, match="has one arena"):
        onnxtile.plan_tflite(model, capacity={"a": 4096, "b": 4096})
    with pytest.raises(Infeasible, match="the arena"):
        onnxtile.plan_tflite(model, capacity=64)


def test_without_the_extra_it_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tflite", None)
    with pytest.raises(UsageError, match="the extra tflite is not installed") as caught:
        tflite_model.read_tflite(model.read_bytes(), "net.tflite")
    assert caught.value.hint == of_extra("tflite")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--io", "inside"], "--io is for ONNX models, not for a .tflite"),
        (["--emit", "x.tflm"], "x.tflm: of a .tflite this is not written"),
        (["-o", "-"], "a .tflite is written to a file, not to stdout"),
    ],
)
def test_the_command_names_what_is_not_for_a_tflite(
    arguments: list[str], message: str, command: Callable[..., tuple[int, str]]
) -> None:
    code, said = command("plan", "net.tflite", *arguments)
    assert code == 2 and message in said and said.count("\n") == 1


def test_the_command_writes_the_model_and_the_plan(command: Callable[..., tuple[int, str]], model: Path) -> None:
    files = [model.with_name(name) for name in ("plan.html", "plan.json", "plan.csv")]
    emit = [text for file in files for text in ("--emit", file.name)]
    assert command("plan", "net.tflite", "--no-verify", *emit) == (0, "")
    assert offsets_in(model.with_name("net.planned.tflite").read_bytes()) is not None
    assert all(file.exists() for file in files)
    model.with_name("bad.tflite").write_bytes(model.read_bytes()[:200])
    code, said = command("plan", "bad.tflite")
    assert code == 2 and said.count("\n") == 1
    assert not model.with_name("bad.planned.tflite").exists()


@pytest.mark.parametrize(
    ("said", "reason"),
    [("", "exit code -11"), ("[Recording] x\n", "exit code -11"), ("\n Traceback (y)\nOdd op\nz", "Odd op")],
)
def test_the_reason_of_a_crash_is_its_first_own_line_or_its_exit_code(said: str, reason: str) -> None:
    assert micro_proof._reason(said, -11) == reason


def test_a_subgraph_without_operators_has_no_scratch() -> None:
    assert micro_proof.scratch_bytes(b"", MicroGraph((), (), (), ()), 0) == {}
