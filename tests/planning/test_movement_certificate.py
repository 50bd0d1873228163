"""Certificates of plans with copies: the scripts accept the bytes that are moved, and no more than the least of all choices."""

from __future__ import annotations

import contextlib
import copy
import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import onnxtile
from onnxtile.model.constants import Constants
from onnxtile.planning import check_account, check_movement
from onnxtile.planning.certificate import certificate, proof_of
from onnxtile.planning.check_movement import CLAIMS, Copies, is_proved
from onnxtile.planning.model_plan import PlanSettings
from onnxtile.planning.movement.eviction import UNIT, Gap, MovementProblem, least_bytes, prices
from onnxtile.planning.movement.plan import plan_with_movement
from onnxtile.shapes.resolve import resolve
from tests.planning.movement_optimum import SmallMovement
from tests.planning.test_movement_choice import movements
from tests.planning.test_movement_optimum import UNIT as BYTES
from tests.planning.test_movement_optimum import graphs, model_of
from tests.planning.test_movement_plan import BODY, COPIED, PARTS, SKIP, WEIGHTED, moved

LATE = SKIP.replace("y = Add(s, a)", "y = Add(s, x)")


def written(text: str, fast: int, movement: str = "activations", **options: Any) -> tuple[Any, dict[str, Any]]:
    """Return a plan, and its certificate as it is read from a file."""
    planned = moved(text, fast, movement, verify=False, **options)
    return planned, json.loads(json.dumps(planned.certificate()))


def refusal(planned: Any, said: dict[str, Any]) -> str:
    """Return the reason of a refusal of the account of the copies; "" where it is accepted."""
    terms = check_account.moved(said)
    try:
        return check_account.refusal(check_account.graph_of(ir.to_proto(planned.model), terms), terms)
    except ValueError as error:
        return str(error)


def with_bytes(said: dict[str, Any], name: str, size: int) -> dict[str, Any]:
    return {**said, "bounds": {**said["bounds"], name: {**said["bounds"][name], "bytes": size}}}


@pytest.mark.parametrize(
    ("text", "fast", "movement"),
    [
        (SKIP, 1024, "activations"),
        (SKIP, 1280, "activations"),
        (LATE, 1024, "activations"),
        (BODY, 1024, "activations"),
        (WEIGHTED, 18432, "weights"),
        (COPIED, 18432, "weights"),
        (COPIED, 40000, "weights"),
    ],
)
def test_the_scripts_accept_what_plan_says_and_no_byte_more(text: str, fast: int, movement: str) -> None:
    planned, said = written(text, fast, movement)
    told = said["movement"]
    assert told["reason"] is None and refusal(planned, said) == ""
    for name in CLAIMS:
        claimed = getattr(planned.plan.movement, name)
        assert (told["bounds"][name]["bytes"], told["bounds"][name]["reason"]) == (claimed, None)
        assert is_proved(told, name)
        assert not is_proved(with_bytes(told, name, claimed + 1), name)


@settings(max_examples=60, deadline=None)
@given(movements(8))
def test_prices_and_branches_prove_the_least_bytes(problem: MovementProblem) -> None:
    """Branches prove the bytes of the best choice and no more, prices at least what the relaxation does."""
    least, copies = least_of(problem), as_copies(problem)
    assert proof_of(copies, least, 1_000) is None
    proof = proof_of(copies, least - 1, 1_000)
    assert proof is not None and copies.is_more(proof, UNIT, least - 1, {}, range(len(copies.over)))
    assert not copies.is_more(proof, UNIT, least, {}, range(len(copies.over)))
    found, bound = prices(problem), least_bytes(problem)
    assert found is not None and bound is not None
    assert bound <= copies.priced(found, UNIT, {}, range(len(copies.over))) <= least


def least_of(problem: MovementProblem) -> int:
    """Return the bytes that the best of all choices copies."""
    numbers = range(len(problem.gaps))
    chosen = (frozenset(some) for count in range(len(numbers) + 1) for some in combinations(numbers, count))
    fitting = (
        one
        for one in chosen
        if all(used <= free for used, free in zip(problem.held({*numbers} - one), problem.free, strict=True))
    )
    return min(map(problem.cost, fitting))


def as_copies(problem: MovementProblem) -> Copies:
    """Return a problem of movement as the script has it: gaps without a store are of tensors of their own."""
    copies = Copies.__new__(Copies)
    copies.stores = [*problem.stores, *[0] * len(problem.gaps)]
    alone = len(problem.stores)
    copies.waits = [
        check_movement.Wait(alone + at if g.store is None else g.store, g.first, g.last + 1, g.size, g.loaded)
        for at, g in enumerate(problem.gaps)
    ]
    copies.begins = [
        min((w.first for w in copies.waits if w.tensor == v), default=0) for v in range(len(copies.stores))
    ]
    held = problem.held(range(len(problem.gaps)))
    copies.over = [used - free for used, free in zip(held, problem.free, strict=True)]
    return copies


def parts_of(proofs: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a part of a proof, up to any kernel and of any bytes."""
    return st.fixed_dictionaries({"end": st.integers(-1, 8), "bytes": st.integers(-4, 12), "proof": proofs})


PROOFS = st.recursive(
    st.fixed_dictionaries(
        {"prices": st.dictionaries(st.integers(0, 8).map(str), st.integers(0, 3 * UNIT), max_size=4)}
    ),
    lambda proofs: (
        st.fixed_dictionaries({"wait": st.integers(-2, 6), "stays": proofs, "leaves": proofs})
        | st.fixed_dictionaries({"parts": st.lists(parts_of(proofs), min_size=1, max_size=3)})
    ),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(movements(6), PROOFS, st.sampled_from((1, 3, UNIT)))
def test_no_prices_and_no_branches_prove_more_than_a_choice_copies(
    problem: MovementProblem, proof: dict[str, Any], unit: int
) -> None:
    with contextlib.suppress(IndexError):
        assert not as_copies(problem).is_more(proof, unit, least_of(problem), {}, range(len(problem.free)))


def test_both_sides_of_a_branch_are_proved() -> None:
    """Of two tensors of 3 bytes one leaves where there is room for 4: parts of both would need 2 copied bytes."""
    problem, kernels = MovementProblem((4,), (Gap(0, 0, 3, 3), Gap(0, 0, 3, 3))), range(1)
    copies = as_copies(problem)
    proof = proof_of(copies, 2, 10)
    assert proof is not None and "wait" in proof and copies.is_more(proof, UNIT, 2, {}, kernels)
    relaxed = {"prices": prices(problem)}
    assert not copies.is_more(relaxed, UNIT, 2, {}, kernels)
    zero: dict[str, Any] = {"prices": {}}
    assert copies.is_more(proof | {"leaves": zero}, UNIT, 2, {}, kernels)
    assert not copies.is_more(proof | {"stays": zero}, UNIT, 2, {}, kernels)
    with pytest.raises(KeyError):
        copies.is_more({key: side for key, side in proof.items() if key != "leaves"}, UNIT, 2, {}, kernels)
    with pytest.raises(IndexError):
        copies.is_more({"wait": 2, "stays": proof, "leaves": proof}, UNIT, 2, {}, kernels)
    assert proof_of(copies, 2, 1) is None


def test_a_proof_is_not_deeper_than_readers_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = as_copies(MovementProblem((4,), (Gap(0, 0, 3, 3), Gap(0, 0, 3, 3))))
    assert proof_of(copies, 2, 10) is not None
    monkeypatch.setattr("onnxtile.planning.certificate._DEEPEST", 0)
    assert proof_of(copies, 2, 10) is None


def test_parts_of_a_proof_have_kernels_of_their_own() -> None:
    """Beside each of two kernels one of two tensors leaves; no price of one kernel counts for both."""
    gaps = (Gap(0, 0, 3, 3), Gap(0, 0, 3, 3), Gap(2, 2, 3, 3), Gap(2, 2, 3, 3))
    copies, kernels = as_copies(MovementProblem((4, 9, 4), gaps)), range(3)
    proof = proof_of(copies, 5)
    assert proof is not None and [(part["end"], part["bytes"]) for part in proof["parts"]] == [(1, 3), (3, 3)]
    assert copies.is_more(proof, UNIT, 5, {}, kernels)
    one, two = proof["parts"]
    for forged in (
        [one, one],
        [two, one],
        [one, one | {"end": 3}],
        [one, two | {"end": 4}],
        [one | {"end": -1}, two],
        [one, two | {"bytes": 4}],
        [one, two | {"bytes": 3.5}],
        [two],
    ):
        assert not copies.is_more({"parts": forged}, UNIT, 5, {}, kernels)


def test_parts_of_tensors_have_no_branches() -> None:
    _, said = written(SKIP, 1024)
    told = said["movement"]
    claim = told["bounds"]["parts_bound"]
    both = {"wait": 0, "stays": claim["proof"], "leaves": claim["proof"]}
    parts = {"parts": [{"end": len(told["account"]["nodes"]) - 2, "bytes": claim["bytes"], "proof": both}]}
    assert is_proved(told, "parts_bound")
    for proof in (both, parts, both | claim["proof"], parts | claim["proof"]):
        assert not is_proved({**told, "bounds": {"parts_bound": claim | {"proof": proof}}}, "parts_bound")
    assert is_proved({**told, "bounds": {"lower_bound": claim | {"proof": both}}}, "lower_bound")


def test_a_byte_is_worth_what_its_tensor_moves() -> None:
    """Two tensors of 4 bytes, and room for one: each byte over the room costs a copied byte."""
    problem = MovementProblem((4, 4), (Gap(0, 1, 4, 4), Gap(0, 1, 4, 4)))
    found = prices(problem)
    assert found is not None and sum(found.values()) == UNIT
    assert as_copies(problem).priced(found, UNIT, {}, range(2)) == 4
    assert as_copies(problem).priced({}, UNIT, {}, range(2)) == 0


@settings(max_examples=15, deadline=None)
@given(graphs())
def test_no_more_is_proved_than_any_plan_moves(graph: SmallMovement) -> None:
    model = model_of(graph)
    wanted = PlanSettings(order="auto", share=frozenset(), capacity={"sram": BYTES * graph.capacity, "dram": 1 << 20})
    found = plan_with_movement(model, resolve(model), Constants(model), wanted)
    told = json.loads(json.dumps(certificate(found.model, found.result)))["movement"]
    numbers = {kernel.result: number for number, kernel in enumerate(graph.kernels)}
    order = [numbers[name] for name in found.result.schedule if name in numbers]
    least = {
        "lower_bound": graph.least(order),
        "parts_bound": graph.least(order, in_parts=True),
        "any_order_bound": graph.least(None),
    }
    for name, units in least.items():
        assert told["bounds"][name]["bytes"] <= BYTES * units
        assert is_proved(told, name)
        assert not is_proved(with_bytes(told, name, BYTES * units + 1), name)


FORGED: dict[str, Any] = {
    "a smaller memory": lambda told: told.update(capacity=1023),
    "weights count": lambda told: told.update(weights=True, capacity=None),
    "a tensor moves more bytes": lambda told: told["account"]["moved"].update(a=512),
    "a tensor takes more bytes": lambda told: told["account"]["bytes"].update(a=512),
    "another kernel uses a tensor": lambda told: told["account"]["nodes"][2]["uses"].append("a"),
    "a kernel less": lambda told: told["account"]["nodes"].pop(2),
    "a tensor is in no memory": lambda told: told["account"]["nodes"][0].update(uses=[]),
    "parts count less than nothing": lambda told: told["account"].update(twice=[-64, -64]),
    "another order": lambda told: told["order"].reverse(),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_account_is_refused(name: str) -> None:
    planned, said = written(SKIP, 1024)
    forged = copy.deepcopy(said)
    FORGED[name](forged["movement"])
    assert forged != said
    if name == "a smaller memory":
        terms = check_account.moved(forged)
        problem = check_account.graph_of(ir.to_proto(planned.model), terms)
        assert "capacity 1023" in check_account.assumed(terms, problem)
    elif name == "weights count":
        with pytest.raises(ValueError, match="no whole number"):
            is_proved(forged["movement"], "lower_bound")
    else:
        assert refusal(planned, forged) != ""


@pytest.mark.parametrize("price", [-1, 0.5, True, None])
def test_prices_are_whole_numbers(price: Any) -> None:
    _, said = written(SKIP, 1024)
    told = said["movement"]
    told["bounds"]["parts_bound"] |= {"proof": {"prices": {"2": price}}, "unit": UNIT}
    with pytest.raises((ValueError, TypeError)):
        is_proved(told, "parts_bound")


def test_parts_of_an_input_count_the_largest() -> None:
    """Slices may read the same elements, so that every order copies the largest of them, at least."""
    planned, said = written(PARTS, 448)
    bounds = said["movement"]["bounds"]
    assert refusal(planned, said) == ""
    assert bounds["lower_bound"]["bytes"] == planned.plan.movement.bytes
    assert (bounds["any_order_bound"]["bytes"], planned.plan.movement.any_order_bound) == (68 * 4 + 4, 128 * 4 + 4)
    assert "of which the scripts prove fewer" in bounds["any_order_bound"]["reason"]


NESTED = """
<ir_version: 10, opset_import: ["" : 17]>
nested (float[64] x, int64[1] length) => (float[1] y, float[1] z) {
    a = Exp(x)
    b = Sin(x)
    c = Cos(x)
    d = Concat <axis = 0> (a, b, c)
    e = ReduceMax <keepdims = 1> (d)
    f = Neg(e)
    g = Expand(f, length)
    h = Concat <axis = 0> (a, b, g)
    y = ReduceMean <keepdims = 1> (h)
    z = ReduceMean <keepdims = 1> (a)
}
"""


def test_a_concat_lies_over_operands_that_are_read_later() -> None:
    """Two of three operands of `d` begin `h`, too, so that both have the same bytes."""
    model = onnx.parser.parse_model(NESTED)
    del model.graph.input[1]
    model.graph.initializer.append(onnx.helper.make_tensor("length", onnx.TensorProto.INT64, [1], [64]))
    capacity = {"sram": 3 * 256 + 64, "dram": 1 << 20}
    planned = onnxtile.plan(model, movement="activations", capacity=capacity, verify=False, order="model")
    said = json.loads(json.dumps(planned.certificate()))
    assert refusal(planned, said) == ""
    for name in CLAIMS:
        assert is_proved(said["movement"], name)


def test_a_plan_with_places_has_no_proof_of_its_copies() -> None:
    _, said = written(SKIP, 1280, places={"a": "sram"})
    assert said["movement"]["reason"] == "tensors have a place, or are kept"


def test_the_scripts_run_by_themselves(tmp_path: Path) -> None:
    planned, said = written(SKIP, 1024)
    planned.save(tmp_path / "planned.onnx")
    file = tmp_path / "plan.certificate.json"
    planned.write(file)

    def run(name: str, *files: Path) -> tuple[int, str]:
        script = Path(check_movement.__file__).with_name(f"{name}.py")
        command = [sys.executable, "-Es", str(script), *map(str, files)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        return done.returncode, done.stdout + done.stderr

    code, line = run("check_account", tmp_path / "planned.onnx", file)
    assert (code, line.endswith("overwrite_inputs True, capacity 1024, weights False\n")) == (0, True)
    assert run("check_movement", file) == (
        0,
        "accepted: no plan copies fewer than 1024 bytes of whole tensors in this order, 1024 bytes in this order, 512 bytes in any order\n",
    )
    more = {**said, "movement": with_bytes(said["movement"], "lower_bound", 1025)}
    file.write_text(json.dumps(more))
    assert run("check_movement", file) == (1, "refused: lower_bound: the proof does not hold\n")
    file.write_text(json.dumps({**said, "movement": {"reason": "tensors have a place, or are kept"}}))
    assert run("check_movement", file) == (1, "refused: tensors have a place, or are kept\n")
    file.write_text(json.dumps({"proof": None}))
    assert run("check_movement", file)[0] == 1
