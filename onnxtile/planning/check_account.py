"""Check who uses which bytes in a certificate of `onnxtile plan`: `python check_account.py MODEL.onnx CERTIFICATE.json`.

It needs onnx, and `byte_graph.py` beside it, which reads from the model what `check_bound.py` adds up. This script compares that with the
certificate: the account of all bytes, those of bodies, or the rows of a plan, whose tensors lie in each other's bytes as it says.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

if TYPE_CHECKING or __package__:
    from onnxtile.planning.byte_graph import ByteGraph, name_of, reads
else:
    from byte_graph import ByteGraph, name_of, reads

STEP, META_OP = "pkg.onnxtile.step", "pkg.onnxtile.meta_op"
STANDARD = "", "ai.onnx"
UNITS = "this order, its aliases and whole units"
"""The scope of a proof in which no two buffers share a unit of the alignment."""
WRONG = ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError, RuntimeError, MemoryError


def graph_of(model: onnx.ModelProto, said: Mapping[str, Any]) -> ByteGraph:
    """Return the problem of a model with the dimensions and the types that the certificate says."""
    named = [
        dim for value in model.graph.input for dim in value.type.tensor_type.shape.dim if dim.dim_param in said["dims"]
    ]
    bound = {dim.dim_param: said["dims"][dim.dim_param] for dim in named}
    for dim in named:
        dim.dim_value = bound[dim.dim_param]
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    problem = ByteGraph(model, model.graph, said)
    problem.dims = bound
    return problem


def body_of(problem: ByteGraph, said: Mapping[str, Any], body: Mapping[str, Any]) -> ByteGraph:
    """Return the graph of a body, whose inputs and outputs lie in its workspace. Raises ValueError where a node has no such body."""
    node = next((node for node in problem.nodes if name_of(node) == body["node"]), None)
    if node is None or {*node.output} <= problem.constants:
        raise ValueError(f"no step of the plan makes {body['node']}")
    terms = {**body, "alignment": said["alignment"], "io": "inside", "overwrite_inputs": False, "states": []}
    opsets = {one.domain: one.version for one in problem.model.opset_import}
    for function in [f for f in problem.model.functions if (f.domain, f.name) == (node.domain, node.op_type)]:
        own = {v for inner in function.node for v in inner.output}
        differs = any(opsets.get(one.domain, one.version) != one.version for one in function.opset_import)
        if differs or not {*function.output} <= own or META_OP in problem.marks[node.domain, node.op_type]:
            raise ValueError(f"{body['node']} runs as one kernel")
        known = [v for v, x in zip(function.input, node.input, strict=False) if x in problem.constants]
        called = typed(problem, function, dict(zip(function.input, node.input, strict=False)))
        return ByteGraph(problem.model, called, terms | {"operands": function.input}, known)
    is_old = node.op_type == "Scan" and max(opsets.get(domain, 1) for domain in STANDARD) < 9
    if is_old or node.domain not in STANDARD or node.op_type not in {"If", "Loop", "Scan"}:
        raise ValueError(f"{body['node']} runs as one kernel")
    (graph,) = [a.g for a in node.attribute if a.name == body["attribute"] and a.HasField("g")]
    scanned = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
    first = {"Loop": 2, "Scan": 0}.get(node.op_type, len(graph.input))
    carried = zip(graph.input[first : len(graph.input) - scanned], graph.output[first // 2 :], strict=False)
    terms["states"] = [(given.name, made.name) for given, made in carried]
    return ByteGraph(problem.model, graph, terms, problem.constants)


def typed(problem: ByteGraph, function: onnx.FunctionProto, operands: Mapping[str, str]) -> onnx.GraphProto:
    """Return the nodes of a called function as a graph without inputs, with the types that onnx infers from those of the operands."""
    make, ends = onnx.helper.make_tensor_value_info, [onnx.ValueInfoProto(name=v) for v in function.output]
    given = [make(v, problem.types[x][2], problem.types[x][0]) for v, x in operands.items() if x in problem.types]
    graph = onnx.GraphProto(name="called", node=function.node, input=given, output=ends)
    model = onnx.ModelProto(ir_version=problem.model.ir_version, graph=graph, opset_import=problem.model.opset_import)
    model.functions.extend(problem.model.functions)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    del inferred.input[:]
    return inferred


def account_of(problem: ByteGraph, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return who uses which bytes in the order of a certificate, after a node for the caller before the run, and before one after it.

    In every order a node waits for those that it reads; in the scope "this order" it waits for the one before it.
    """
    require_order(problem, said)
    place = {name: at for at, name in enumerate(said["order"], start=1)}
    rows = {name_of(node): (*problem.rows[at], problem.waits[at]) for at, node in enumerate(problem.nodes)}
    nothing = {"over": [], "spares": 0, "workspace": 0}
    nodes = [{"name": "", "waits": [], "uses": sorted(problem.given), **nothing}]
    for name in said["order"]:
        uses, spares, over, waits = rows[name]
        before = {name_of(problem.nodes[other]) for other in waits} - problem.idle
        row = {"name": name, "waits": sorted({0, *map(place.__getitem__, before)}), "uses": sorted(uses)}
        inside = max((body["arena"] for body in said["bodies"] if body["node"] == name), default=0)
        row |= {"over": sorted(over), "spares": spares, "workspace": said["workspaces"].get(name, 0) + inside}
        nodes.append(row)
    nodes.append({"name": "", "waits": list(range(len(nodes))), "uses": sorted(problem.kept), **nothing})
    if said["scope"] != "any order":
        nodes = [node | {"waits": [at - 1] if at else []} for at, node in enumerate(nodes)]
    return {"bytes": problem.size, "nodes": nodes}


def require_order(problem: ByteGraph, said: Mapping[str, Any]) -> None:
    """Raise ValueError unless the nodes can run in the order of the certificate, which for its scope is that of a planned model."""
    order, names, steps = said["order"], [name_of(node) for node in problem.nodes], steps_of(problem)
    place = {name: step for step, name in enumerate(order)}
    if sorted(order) != sorted({*names} - problem.idle):
        raise ValueError("the order does not have each node once")
    pairs = [(names[at], names[other]) for at, others in enumerate(problem.waits) for other in others]
    if any(place[other] > place[name] for name, other in pairs if {name, other} <= place.keys()):
        raise ValueError("a node of the order runs before one that it reads")
    if said["scope"] != "any order" and steps and sorted(order, key=steps.__getitem__) != order:
        raise ValueError("the order is not that of the plan in the model")


def steps_of(problem: ByteGraph) -> dict[str, int]:
    """Return the step of each node in a planned model; nothing for another."""
    return {name_of(node): int(p.value) for node in problem.nodes for p in node.metadata_props if p.key == STEP}


def require_steps(problem: ByteGraph, said: Mapping[str, Any]) -> None:
    """Raise ValueError unless the steps of the certificate are those of a planned model, or, of another model, of one node each."""
    told, steps = said["steps"], steps_of(problem)
    if steps and told != [steps[name] for name in said["order"]]:
        raise ValueError("the steps are not those of the plan in the model")
    if not steps and any(step >= later for step, later in pairwise([-1, *told, len(problem.nodes)])):
        raise ValueError("the steps do not follow each other, and the model says none")


def lives_of(problem: ByteGraph, said: Mapping[str, Any]) -> dict[str, range]:
    """Return the steps in which each tensor lives, in the order of the certificate."""
    step = dict(zip(said["order"], said["steps"], strict=True))
    touched: dict[str, list[int]] = {name: [0] for name in problem.given_names}
    for node in problem.nodes:
        for name in {*reads(node), *node.output} if name_of(node) in step else ():
            touched.setdefault(name, []).append(step[name_of(node)])
    for name in problem.kept_names:
        touched.setdefault(name, []).append(max(step.values()))
    return {name: range(min(steps), max(steps) + 1) for name, steps in touched.items()}


def held_steps(
    problem: ByteGraph, said: Mapping[str, Any], row: Mapping[str, Any], lives: Mapping[str, range]
) -> list[int]:
    """Return the steps of a row in which tensors hold all of its bytes."""
    ends: dict[int, int] = {}
    own = [(start, name) for name, (owner, start) in said["places"].items() if owner == row["owner"]]
    for start, name in sorted(own):
        for step in lives.get(name, ()) if name in problem.types else ():
            end = ends.get(step, row["start"])
            ends[step] = max(end, start + problem.types[name][3]) if start <= end else end
    is_full = [ends.get(step, -1) >= row["start"] + row["size"] for step in range(row["first"], row["last"] + 1)]
    return [row["first"] + at for at, full in enumerate(is_full) if full or row["workspace"]]


def unheld(problem: ByteGraph, said: Mapping[str, Any]) -> str:
    """Return the first row whose bytes no tensors hold in one of its steps; "" where all are held."""
    require_order(problem, said)
    require_steps(problem, said)
    lives, end = lives_of(problem, said), max(said["steps"])
    outside = (n for n, row in said["rows"].items() if not 0 <= row["first"] <= row["last"] <= end)
    steps = ((n, row, len(held_steps(problem, said, row, lives))) for n, row in said["rows"].items())
    return next(chain(outside, (n for n, row, held in steps if held <= row["last"] - row["first"])), "")


def refusal_of_bodies(problem: ByteGraph, said: Mapping[str, Any]) -> str:
    """Return the reason why the bytes of a body are not those of the model; "" where all are."""
    for body in said["bodies"]:
        inside = body_of(problem, said, body)
        if body["alignment"] != said["alignment"] or body["scope"] != "any order" or "account" not in body:
            return f"the body of {body['node']} has no proof of its bytes in every order"
        if reason := refusal(inside, body):
            return f"the body of {body['node']}: {reason}"
        problem.unsure, problem.spaces = problem.unsure + inside.unsure, problem.spaces + inside.spaces
    return ""


def refusal(problem: ByteGraph, said: Mapping[str, Any]) -> str:
    """Return the reason why the account of a certificate is not that of the model; "" where it is."""
    if said["claim"] == "any order" != said["scope"]:
        return f"a proof for {said['scope']} is none for any order"
    if reason := refusal_of_bodies(problem, said):
        return reason
    if "account" in said:
        account = account_of(problem, said)
        differing = next((key for key in account if account[key] != said["account"].get(key)), None)
        return f"the {differing} in the certificate are not those of the model" if differing else ""
    tree, unit = said["proof"]["tree"], said["alignment"]
    pinned = ["pin" in said["rows"][name] for name in tree.get("chain", ())]
    if said["scope"] == "any order" and ([*tree], pinned) != (["chain"], [True]):
        return "only one pinned row takes its bytes in any order"
    whole = said["scope"] == UNITS
    if reason := shared(said["rows"], unit, whole=whole):
        return reason
    for name, row in said["rows"].items():
        # An owner lies at a multiple of the alignment. Rows that live at once cannot both hold the same such address.
        first, end = -(-(row["start"] - whole * (unit - 1)) // unit), -(-(row["start"] + row["size"]) // unit)
        if row["bytes"] > (end - first) * unit:
            return f"the row {name} holds {(end - first) * unit} bytes, not {row['bytes']}"
        if "pin" in row and row["pin"] != said["pins"].get(row["owner"], -unit) + first * unit:
            return f"the row {name} is not pinned to {row['pin']}"
    name = unheld(problem, said)
    return f"not all bytes live that the certificate counts: {name}" if name else ""


def shared(rows: Mapping[str, Any], unit: int, *, whole: bool = False) -> str:
    """Return the reason why rows count bytes twice, or in no step; "" where each counts bytes of its own, with `whole` in units."""
    by_owner: dict[str, list[str]] = {}
    for name, row in rows.items():
        numbers = [row[key] for key in ("start", "size", "bytes", "first", "last")]
        if any(type(number) is not int for number in numbers) or row["first"] > row["last"] or row["start"] < 0:
            return f"the row {name} has no steps or no bytes"
        for other in by_owner.setdefault(row["owner"], []):
            low, high = sorted((row, rows[other]), key=lambda one: int(one["start"]))
            together = max(low["first"], high["first"]) <= min(low["last"], high["last"])
            start = high["start"] - whole * (unit - 1)
            if together and -(-(low["start"] + low["size"]) // unit) > -(-start // unit):
                return f"the rows {name} and {other} hold the same bytes"
        by_owner[row["owner"]].append(name)
    return ""


def assumed(said: Mapping[str, Any], problem: ByteGraph) -> str:
    """Return what the certificate says and the model does not, as words."""
    options = {key: said[key] for key in ("alignment", "io", "overwrite_inputs")}
    words = [f"{key} {value}" for key, value in (options | problem.dims).items()]
    words += [f"state {given} to {made}" for given, made in said.get("states", [])]
    words += [f"{name} at {offset}" for name, offset in said["pins"].items()] if "account" not in said else []
    spaces = problem.spaces if "account" in said else sum(bool(row["workspace"]) for row in said["rows"].values())
    counts = (problem.unsure, "shapes"), (spaces, "workspaces")
    return ", ".join([*words, *(f"{count} {kind}" for count, kind in counts if count)])


def refusal_of_problem(problem: Path, said: Mapping[str, Any]) -> str:
    """Return the first row of a certificate that is none of the buffers of a bare problem in CSV; "" where all are."""
    with problem.open(newline="", encoding="utf-8") as file:
        buffers = {row.get("id") or row["buffer"]: row for row in csv.DictReader(file)}
    if any(buffer.get(key) for buffer in buffers.values() for key in ("gaps", "alignment", "part_of")):
        return "buffers with gaps, parts or an alignment of their own are not compared"
    for name, row in said["rows"].items():
        lower, upper, size = (int(buffers[row["owner"]][key]) for key in ("lower", "upper", "size"))
        is_inside = row["start"] == 0 and row["size"] == size and lower <= row["first"] <= row["last"] < upper
        if not is_inside or row["bytes"] > -(-size // said["alignment"]) * said["alignment"] or "pin" in row:
            return f"the row {name} is not that of the problem"
    return ""


def main(model: str, certificate: str) -> str:
    """Return a line that says whether the account is that of the model. Raises ValueError with the reason where it is not."""
    said = json.loads(Path(certificate).read_text(encoding="utf-8"))
    if said["proof"] is None:
        raise ValueError(said["reason"])
    if model.endswith(".csv"):
        if reason := refusal_of_problem(Path(model), said) or shared(said["rows"], said["alignment"]):
            raise ValueError(reason)
        return f"the rows are those of the problem; the certificate says: alignment {said['alignment']}"
    problem = graph_of(onnx.load(model, load_external_data=False), said)
    if reason := refusal(problem, said):
        raise ValueError(reason)
    return f"the account is that of the model; the certificate says: {assumed(said, problem)}"


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{ascii(main(*sys.argv[1:]))[1:-1]}\n")
    except WRONG as error:
        sys.exit(f"refused: {ascii(str(error))[1:-1][:300]}")
