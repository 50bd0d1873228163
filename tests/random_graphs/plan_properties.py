"""Properties of plans with memories, pins, ranges and states, of published plans, and of certificates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from tempfile import TemporaryDirectory
from typing import Any

import onnx

import onnxtile
from onnxtile.check import check_account, check_bound
from onnxtile.planning.offsets.problem import PinOverlap
from onnxtile.system.errors import Infeasible, ModelError
from tests.random_graphs.carried_out import Run
from tests.random_graphs.kernels import Kernels, run_model
from tests.random_graphs.properties import Case, require_equal, without_addresses, written

QUICK: dict[str, Any] = {"search": "greedy-by-size"}


def published(case: Case) -> None:
    """The check accepts a plan that is read back from its JSON, and from the metadata of the planned model."""
    random, dims = case.random("published"), case.random_model.dims
    options: dict[str, Any] = {
        **QUICK,
        "io": random.choice(["outputs", "inside", "outside"]),
        "alignment": random.choice([1, 2, 4, 64]),
        "order": random.choice(["auto", "model", "any"]),
    }
    result = onnxtile.plan(case.model, verify=False, dims=dims, **options)
    with TemporaryDirectory() as folder:
        document, model = f"{folder}/plan.json", f"{folder}/planned.onnx"
        result.write(document)
        onnxtile.save(result.model, model)
        for one in (document, model):
            audit = onnxtile.check_plan(case.model, one, dims=dims)
            assert audit.sound, f"{one[len(folder) :]}: {audit.failures[0]}"


def moved(case: Case) -> None:
    """A plan with copies between two memories is carried out, its model computes the same, and its bounds are proved."""
    random, dims = case.random("moved"), case.random_model.dims
    planned = onnxtile.plan(case.model, verify=False, dims=dims, io="inside", **QUICK).plan
    if planned.unplanned or not planned.arena_size:
        return
    sram = int(planned.arena_size * random.choice([0.5, 0.8, 1.2])) // 64 * 64 + 64
    movement = random.choice(["activations", "weights"])
    try:
        result = onnxtile.plan(
            case.model,
            verify=case.verify,
            dims=dims,
            movement=movement,
            capacity={"sram": sram, "dram": 1 << 24},
            io="inside",
            **QUICK,
        )
    except Infeasible:
        return
    model = written(result.model)
    # A session does not pack weights that are copied, which changes how their products are rounded.
    but = case.random_model.stepped if movement == "weights" else frozenset()
    case.require_same(run_model(model, case.feeds), exact=movement == "activations", but=but)
    carry_out(case, model, result.plan.to_dict())


def carry_out(case: Case, model: onnx.ModelProto, plan: Mapping[str, Any]) -> None:
    """Require that the run at the addresses of `plan` is equal to one without them."""
    kernels = Kernels(model)
    plain = Run(model, without_addresses(plan), kernels).outputs(case.feeds)
    for name, got in Run(model, plan, kernels).outputs(case.feeds).items():
        if name not in case.random_model.drawn:
            require_equal(name, got, plain[name], exact=True)


def pinned(case: Case) -> None:
    """Tensors lie where they are pinned, and share nothing where they are kept."""
    random, dims = case.random("pinned"), case.random_model.dims
    free = onnxtile.plan(case.model, verify=False, dims=dims, **QUICK).plan
    rows = [row for row in free.buffers if row.kind != "workspace" and row.alias is None and row.size]
    if not rows:
        return
    chosen = random.sample(rows, min(len(rows), random.choice([1, 2])))
    ends = [0, *(free.arena_size + 64 * place * max(row.size for row in rows) for place in (1, 2))]
    pins = {row.name: random.choice(ends) // 64 * 64 for row in chosen}
    keep = tuple(row.name for row in random.sample(rows, 1)) if random.random() < 0.3 else ()
    try:
        result = onnxtile.plan(case.model, verify=case.verify, dims=dims, layout={"pins": pins, "keep": keep}, **QUICK)
    except PinOverlap:
        assert len(pins) > 1, f"one pin cannot be held: {pins}"
        return
    found = result.plan.to_dict()
    at = {row["name"]: row["offset"] for row in found["buffers"]}
    assert all(at[name] == offset for name, offset in pins.items()), f"{pins} lie elsewhere"
    carry_out(case, written(result.model), found)


def ranged(case: Case) -> None:
    """One plan for a range of sizes is carried out at a size inside it."""
    dims = case.random_model.dims
    if not dims:
        return
    random = case.random("ranged")
    ranges = {name: f"1:{size + random.choice([0, 1, 3])}" for name, size in dims.items()}
    try:
        result = onnxtile.plan(case.model, verify=case.verify, dims=ranges, **QUICK)
    except ModelError as error:
        # No inference knows what follows an operator that only onnxruntime has: a run tells it, at one size alone.
        if "over the ranges is not known" not in str(error):
            raise
        return
    carry_out(case, written(result.model), result.plan.to_dict())


def stated(case: Case) -> None:
    """An input and an output of its type are kept at one address over three runs."""
    inputs = {info.name: info for info in case.model.graph.input}
    constants = {tensor.name for tensor in case.model.graph.initializer}
    outputs = [info for info in case.model.graph.output if info.name not in inputs.keys() | constants]
    handed_on = {info.name for info in case.model.graph.output}
    pairs = [
        (one.name, other.name)
        for one in inputs.values()
        if one.name not in handed_on
        for other in outputs
        if one.type.tensor_type == other.type.tensor_type and one.type.tensor_type.elem_type not in {0, 8}
    ]
    if not pairs or not constants.isdisjoint(inputs):
        return
    state = dict([case.random("stated").choice(pairs)])
    dims = case.random_model.dims
    found = onnxtile.plan(case.model, dims=dims, state=state, runs=3, verify=case.verify, io="inside", **QUICK)
    written(found.model)


def certified(case: Case) -> None:
    """The checker accepts each proof, and no other plan takes fewer bytes than one that is proved smallest."""
    dims = case.random_model.dims
    if dims:
        return
    random = case.random("certified")
    options: dict[str, Any] = {"io": random.choice(["outputs", "inside"]), "alignment": random.choice([1, 64])}
    result = onnxtile.plan(case.model, verify=False, order=random.choice(["auto", "model"]), **options)
    if result.plan.unplanned:
        return
    said = result.certificate()
    if said["proof"] is None:
        return
    account = check_account.graph_of(written(result.model), said)
    reason = check_account.refusal(account, said)
    assert not reason, f"the checker refuses the certificate: {reason}"
    assert check_bound.is_proved(said), "the proof of the certificate does not hold"
    others = ("min-peak", "model") if said["claim"] == "any order" else ()
    plans = (onnxtile.plan(case.model, verify=False, order=order, **options).plan for order in others)
    smallest = min(chain((plan.arena_size for plan in plans), [result.plan.arena_size]))
    assert smallest >= said["arena"], f"proved smallest: {said['arena']}, planned: {smallest}"


PLAN_PROPERTIES: dict[str, tuple[Callable[[Case], None], float]] = {
    "published": (published, 0.15),
    "moved": (moved, 0.1),
    "pinned": (pinned, 0.1),
    "ranged": (ranged, 0.1),
    "stated": (stated, 0.1),
    "certified": (certified, 0.1),
}
"""The properties, and how often each is asked of a model."""
