"""What Eclipse Aidge finds: a process of its own, run by a Python that has aidge-core and aidge-onnx and need not have onnxtile.

It reads one line of JSON, {"model": path, "queries": [...], "timeout": seconds}, and writes one, {"types": {node: Aidge's type},
"inserted": [names], "results": [...]}, with a list of matches or an error for each query. Nodes must have unique names, each that of its
first output.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import Any

_MEMORY = 4 << 30


def main() -> None:
    """Answer the request on standard input; Aidge's own messages go to standard error."""
    answer = os.dup(1)
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())
    import aidge_core  # type: ignore[import-not-found, unused-ignore]
    import aidge_onnx  # type: ignore[import-not-found, unused-ignore]
    import onnx

    aidge_core.Log.set_console_level(aidge_core.Level.Fatal)
    model = onnx.load(request["model"])
    view = aidge_onnx.load_onnx(model.SerializeToString())
    names = _names(view, model)
    own = {node.name for node in model.graph.node} | {tensor.name for tensor in model.graph.initializer}
    results = [_forked(aidge_core, view, names, query, request["timeout"]) for query in request["queries"]]
    types = {names[node.id()]: node.type() for node in view.get_nodes()}
    inserted = sorted(set(types) - own)
    with os.fdopen(answer, "w") as out:
        json.dump({"types": types, "inserted": inserted, "results": results}, out)


def _names(view: Any, model: Any) -> dict[int, str]:
    """Return our name of each of Aidge's nodes: it keeps them but for a few types, which are told by what they read."""
    by_inputs = {(node.op_type, tuple(node.input[:1])): node.name for node in model.graph.node}
    names = {}
    for node in view.get_nodes():
        parent = node.inputs()[0][0] if node.inputs() else None
        read = (parent.name(),) if parent is not None else ()
        names[node.id()] = node.name() or by_inputs.get((node.type(), read), f"?{node.type()}")
    return names


def _forked(core: Any, view: Any, names: dict[int, str], query: str, timeout: float) -> Any:
    """Run one query in a process of its own, as some never end and some end the process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        signal.setitimer(signal.ITIMER_REAL, timeout)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        with os.fdopen(writer, "w") as out:
            json.dump(_matches(core, view, names, query), out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as source:
        text = source.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return {"error": "never ends" if os.WTERMSIG(status) == signal.SIGALRM else "crashes"}
    return json.loads(text)


def _matches(core: Any, view: Any, names: dict[int, str], query: str) -> Any:
    try:
        found = core.SinglePassGraphMatching(view).match(query, False)
    except (RuntimeError, IndexError) as error:
        return {"error": str(error).strip()}
    return [
        {
            "root": names[match.root_node.id()],
            "nodes": sorted(names[node.id()] for node in match.graph.get_nodes()),
            "anchors": {
                f"{type_ or '.'}{anchor}": names[node.id()]
                for type_, anchors in dict(match.anchors).items()
                for anchor, node in dict(anchors).items()
                if node is not None and anchor not in {"", "#"}
            },
        }
        for match in found
    ]


if __name__ == "__main__":
    main()
