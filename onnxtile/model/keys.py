"""The names under which onnxtile leaves its marks in a model, all in one place.

Those that a user leaves on a value for plan are in `onnxtile.declare.layout_rules`.
"""

from __future__ import annotations

DOMAIN = "onnxtile"
"""The operator domain of meta-ops and of wrapped tiles."""

INSIDE = "onnxtile.inside"
"""The attribute of a call that holds a copy of its function's graph while a plan is made. It is never saved."""

PREFIX = "pkg.onnxtile."
"""The first part of each of them."""

# On a call of a meta-op: the number of the record that unfuse needs to restore its nodes.
FUSED = PREFIX + "fused"
# On a node that fuse had to move: where it stood.
PLACE = PREFIX + "place"
# On the model's graph: what unfuse needs to restore the file, the records of all calls among it (packed JSON).
ORIGINAL = PREFIX + "original"
# On a node that a call was lowered to: the meta-op that it was.
LOWERED = PREFIX + "lowered"
# On a local function that fuse made: the name of its pattern.
META_OP = PREFIX + "meta_op"
# On such a function: over which of its inputs, by place, its kernel may write its results (JSON), where its pattern says so.
IN_PLACE = PREFIX + "in_place"
# On such a function: it is a quantised island, whose float tensors are never stored.
ISLAND = PREFIX + "island"
# On such a function: its result is its first operand under another shape.
VIEW = PREFIX + "view"
# On such a function: how many bytes its kernel needs beside its operands and results (see shapes.size_rule), where its pattern says so.
WORKSPACE = PREFIX + "workspace"

# On a local function that plan made: a call copies its operand into another memory, and is a kernel.
COPY = PREFIX + "copy"

# On a node that fuse or tile made: the modules around it, with slashes between, where its name says others.
MODULE = PREFIX + "module"

# On a node that tile emitted: its source node, operator and place in the grid (JSON).
TILE = PREFIX + "tile"

# On a value, by plan.
ARENA = PREFIX + "arena"
OFFSET = PREFIX + "offset"
SIZE = PREFIX + "size"
ALIAS_OF = PREFIX + "alias_of"
# The parts of a buffer with live ranges of their own: start, size, first and last step of each (JSON).
PARTS = PREFIX + "parts"
# On a graph input, by fit or the user, for plan: the axis along which its rows come, one after the other.
STREAM = PREFIX + "stream"
# On a node, by plan: its place in the schedule, counted from 0.
STEP = PREFIX + "step"
# On a node, by plan: arena, offset and bytes of its workspace (JSON).
WORKSPACE_AT = PREFIX + "workspace_at"
# On a node, by plan: arena, offset and bytes of its workspace that is kept for the whole run (JSON).
UNIQUE_WORKSPACE_AT = PREFIX + "unique_workspace_at"
# On the graph, by plan: version, alignment, arenas, peak, what lies in the arenas, the order, the workspace of several nodes (JSON).
PLAN = PREFIX + "plan"

OF_PLAN = frozenset({ARENA, OFFSET, SIZE, ALIAS_OF, PARTS, STEP, WORKSPACE_AT, UNIQUE_WORKSPACE_AT, PLAN})
"""The marks of a plan: they are of these nodes in this order, and hold for no other."""


def meta_op(operator: str) -> str:
    """Return the meta-op that an operator of the domain is: functions of one meta-op with different bodies are Linear, Linear.2 ...

    Names, not overloads, tell them apart: onnxruntime 1.31 takes the first overload for every call inside another function.
    """
    return operator.partition(".")[0]
