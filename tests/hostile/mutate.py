"""Seeded mutations of models, of texts that users write, and of bytes."""

from __future__ import annotations

import random
from collections.abc import Callable

import onnx

_NUMBERS = (0, -1, 1, 2, 3, 7, 2**31, 2**31 - 1, -(2**31), 2**53 + 1, 2**62, -(2**63), 2**63 - 1)
_OPERATORS = (
    *("Relu", "Add", "MatMul", "Gemm", "Conv", "Reshape", "Slice", "Concat", "Gather", "Softmax", "If", "Loop", "Scan"),
    *(
        "ConstantOfShape",
        "Expand",
        "Tile",
        "Range",
        "Split",
        "Transpose",
        "Shape",
        "Cast",
        "NonZero",
        "Dropout",
        "LSTM",
    ),
    *(
        "SequenceInsert",
        "Pad",
        "Resize",
        "Einsum",
        "TopK",
        "OneHot",
        "DequantizeLinear",
        "Identity",
        "Constant",
        "NoSuch",
    ),
)
_TEXTS = (
    "",
    "a",
    "x",
    "y",
    "é",
    "../x",
    "a/b",
    "a\x1bb",
    "=1",
    " ",
    "x" * 300,
    "{name}",
    "-1",
    "nan",
    "1e400",
    "9" * 5000,
    "\x1b]0;canary\x07",
    "</script><script>canary()</script>",
    "*/ canary /*",
    "=canary()",
    "\u202ecanary",
    "a\nb\rc",
    "\x9b31mcanary",
)
_TOKENS = (
    *('""', "{}", "[]", "true", "-1", "0", "nan", "inf", "1e400", "9" * 25, "9" * 5000, '"a\\u0000b"', '"../../x"'),
    *(
        "[[steps]]\n",
        "do = 'plan'\n",
        "#",
        "=",
        "\n",
        "\\",
        '"""',
        "é",
        "\0",
        ",",
        "->",
        "-*>",
        "(",
        ")",
        "{2}",
        "*",
        "?",
    ),
)


def mutated_model(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes of a model with one to three faults: in its fields, mostly, else in its bytes."""
    if rng.random() < 0.12:
        return mutated_bytes(data, rng)
    model = onnx.ModelProto.FromString(data)
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        rng.choice(_MODEL_FAULTS if rng.random() < 0.6 else _SMALL_FAULTS)(model, rng)
    result: bytes = model.SerializeToString()
    return result


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return `data` with flipped bits, cut, or with a piece of it elsewhere."""
    content = bytearray(data)
    way = rng.randrange(3)
    if way == 0:
        for _ in range(rng.randint(1, 8)):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif way == 1:
        del content[rng.randrange(len(content)) :]
    else:
        start = rng.randrange(len(content))
        piece = content[start : start + rng.randint(1, 40)]
        at = rng.randrange(len(content))
        content[at : at + rng.randint(0, 40)] = piece
    return bytes(content)


def mutated_text(text: str, rng: random.Random) -> str:
    """Return `text` with lines lost or doubled, numbers replaced, and words that do not belong there."""
    for _ in range(rng.randint(1, 3)):
        lines = text.split("\n")
        at = rng.randrange(len(lines))
        way = rng.randrange(4)
        if way == 0:
            del lines[at]
        elif way == 1:
            lines.insert(at, rng.choice(lines))
        elif way == 2:
            place = rng.randrange(len(lines[at]) + 1)
            lines[at] = lines[at][:place] + rng.choice(_TOKENS) + lines[at][place + rng.randint(0, 3) :]
        else:
            key, sign, _ = lines[at].partition("=")
            lines[at] = f"{key}{sign} {rng.choice(_TOKENS)}" if sign else lines[at].replace("1", rng.choice(_TOKENS))
        text = "\n".join(lines)
        if not text:
            return "\n"
    return text


def _graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    found, todo = [], [model.graph]
    while todo:
        graph = todo.pop()
        found.append(graph)
        todo += [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return found


def _nodes(model: onnx.ModelProto, rng: random.Random) -> list[onnx.NodeProto]:
    holders = [list(graph.node) for graph in _graphs(model)] + [list(function.node) for function in model.functions]
    return rng.choice(holders)


def _node(model: onnx.ModelProto, rng: random.Random) -> onnx.NodeProto:
    nodes = _nodes(model, rng)
    return rng.choice(nodes) if nodes else onnx.NodeProto()


def _names(model: onnx.ModelProto) -> list[str]:
    found = ["", "nowhere"]
    for graph in _graphs(model):
        found += [one.name for one in (*graph.input, *graph.output)]
        found += [one.name for one in graph.initializer]
        found += [name for node in graph.node for name in node.output]
    return found


def _drop_node(model: onnx.ModelProto, rng: random.Random) -> None:
    graph = rng.choice(_graphs(model))
    if graph.node:
        del graph.node[rng.randrange(len(graph.node))]


def _double_node(model: onnx.ModelProto, rng: random.Random) -> None:
    graph = rng.choice(_graphs(model))
    if graph.node:
        graph.node.append(rng.choice(graph.node))


def _reorder_nodes(model: onnx.ModelProto, rng: random.Random) -> None:
    graph = rng.choice(_graphs(model))
    nodes = list(graph.node)
    rng.shuffle(nodes)
    del graph.node[:]
    graph.node.extend(nodes)


def _rewire(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    names = rng.choice((node.input, node.output))
    if names:
        names[rng.randrange(len(names))] = rng.choice(_names(model))


def _lengthen(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    names = rng.choice((node.input, node.output))
    if names and rng.random() < 0.5:
        del names[-1]
    else:
        names.append(rng.choice(_names(model)))


def _other_operator(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if rng.random() < 0.2:
        node.domain = rng.choice(("", "ai.onnx", "local", "com.microsoft", "onnxtile", "no.such"))
    else:
        node.op_type = rng.choice(_OPERATORS)


def _attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if not node.attribute or rng.random() < 0.3:
        name = rng.choice(("axis", "axes", "perm", "alpha", "group", "to", "keepdims", "kernel_shape", "body", "value"))
        node.attribute.append(onnx.helper.make_attribute(name, rng.choice((*_NUMBERS, 0.5, "text", [1, 2], [-1]))))
        return
    attribute = rng.choice(node.attribute)
    way = rng.randrange(5)
    if way == 0:
        attribute.i = rng.choice(_NUMBERS)
    elif way == 1:
        attribute.ints[:] = [rng.choice(_NUMBERS) for _ in range(rng.randint(0, 5))]
    elif way == 2:
        attribute.type = rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13])  # type: ignore[assignment]
    elif way == 3:
        attribute.ref_attr_name = "slope"
    else:
        attribute.name = rng.choice(("axis", "axes", "", "value", "then_branch"))


def _shape(model: onnx.ModelProto, rng: random.Random) -> None:
    graph = rng.choice(_graphs(model))
    values = [*graph.input, *graph.output, *graph.value_info]
    if not values:
        return
    shape = rng.choice(values).type.tensor_type.shape
    way = rng.randrange(3)
    if shape.dim and way == 0:
        rng.choice(shape.dim).dim_value = rng.choice(_NUMBERS)
    elif shape.dim and way == 1:
        rng.choice(shape.dim).dim_param = rng.choice(_TEXTS)
    else:
        shape.dim.add().dim_value = rng.choice(_NUMBERS)


def _element_type(model: onnx.ModelProto, rng: random.Random) -> None:
    graph = rng.choice(_graphs(model))
    values = [*graph.input, *graph.output]
    if not values:
        return
    value = rng.choice(values)
    if rng.random() < 0.1:
        value.ClearField("type")
    else:
        value.type.tensor_type.elem_type = rng.randrange(27)


def _tensor(model: onnx.ModelProto, rng: random.Random) -> None:
    tensors = [tensor for graph in _graphs(model) for tensor in graph.initializer]
    if not tensors:
        return
    tensor = rng.choice(tensors)
    way = rng.randrange(6)
    if way == 0:
        tensor.raw_data = tensor.raw_data[: rng.randint(0, len(tensor.raw_data))]
    elif way == 1:
        tensor.dims[:] = [rng.choice(_NUMBERS) for _ in range(rng.randint(0, 3))]
    elif way == 2:
        tensor.data_type = rng.randrange(27)
    elif way == 3:
        tensor.CopyFrom(onnx.TensorProto(name=tensor.name, data_type=8, dims=[2], string_data=[b"a", b"\xff"]))
    elif way == 4:
        tensor.name = rng.choice(_names(model))
    else:
        _external(tensor, rng)


def _external(tensor: onnx.TensorProto, rng: random.Random) -> None:
    tensor.data_location = onnx.TensorProto.EXTERNAL
    if rng.random() < 0.5:
        tensor.ClearField("raw_data")
    places = ("w.bin", "../w.bin", "/etc/passwd", "none.bin", "", ".", "a\0b", "loop", "pipe", "x" * 300)
    links = ("outside.bin", "dir.bin", "dir.bin/../../outside.bin", "out", "m.onnx", "/dev/zero", "w.bin/x", "a\x1bb")
    tensor.external_data.add(key="location", value=rng.choice((*places, *links)))
    if rng.random() < 0.2:
        tensor.external_data.add(
            key=rng.choice(("unknown", "checksum", "location", "a\x1bb")), value=rng.choice(_TEXTS)
        )
    for key in ("offset", "length"):
        if rng.random() < 0.5:
            tensor.external_data.add(key=key, value=rng.choice((*map(str, _NUMBERS), "many", "9" * 5000)))


def _opset(model: onnx.ModelProto, rng: random.Random) -> None:
    way = rng.randrange(4)
    if way == 0:
        model.ir_version = rng.choice((0, 1, 3, 4, 7, 13, 14, 9999))
    elif way == 1 and model.opset_import:
        rng.choice(model.opset_import).version = rng.choice((0, 1, 6, 9, 12, 13, 18, 21, 24, 9999, 2**62))
    elif way == 2 and model.opset_import:
        del model.opset_import[rng.randrange(len(model.opset_import))]
    else:
        model.opset_import.add(domain=rng.choice(("", "ai.onnx", "x")), version=rng.choice((1, 17, 9999)))


def _function(model: onnx.ModelProto, rng: random.Random) -> None:
    if not model.functions:
        model.functions.add(name="f", domain="local", input=["x"], output=["x"])
        return
    function = rng.choice(model.functions)
    way = rng.randrange(5)
    if way == 0:
        model.functions.append(function)
    elif way == 1:
        function.node.add(op_type=function.name, domain=function.domain, input=["x"], output=["again"])
    elif way == 2:
        function.attribute.append(rng.choice(_TEXTS))
    elif way == 3:
        del function.opset_import[:]
    else:
        _recurse(model, rng)


def _recurse(model: onnx.ModelProto, rng: random.Random) -> None:
    """Let functions call each other in a circle, or each the next one twice, which is 2 to the 40th when written out."""
    depth = rng.choice((2, 40, 400))
    for i in range(depth):
        function = model.functions.add(name=f"f{i}", domain="local", input=["x"], output=["y"])
        function.opset_import.add(domain="local", version=1)
        callee = f"f{(i + 1) % depth}"
        function.node.add(op_type=callee, domain="local", input=["x"], output=["h"])
        function.node.add(op_type=callee, domain="local", input=["h"], output=["y"])
    if rng.random() < 0.7:
        last = model.functions[-1]
        del last.node[:]
        last.opset_import.add(domain="", version=17)
        last.node.add(op_type="Relu", input=["x"], output=["y"])
    model.opset_import.add(domain="local", version=1)
    node = _node(model, rng)
    node.op_type, node.domain = "f0", "local"


def _cycle(model: onnx.ModelProto, rng: random.Random) -> None:
    """Let a node read what comes of it."""
    graph = rng.choice(_graphs(model))
    nodes = [node for node in graph.node if node.input and node.output]
    if nodes:
        first, last = sorted((rng.randrange(len(nodes)), rng.randrange(len(nodes))))
        nodes[first].input[rng.randrange(len(nodes[first].input))] = nodes[last].output[0]


_MOST_NESTED, _DEEPEST = 2**22, 28
"""Bytes of a node that is still put into bodies, and levels: protobuf reads no more than 33."""


def _depth(node: onnx.NodeProto) -> int:
    inner = (one for attribute in node.attribute if attribute.HasField("g") for one in attribute.g.node)
    return 1 + max(map(_depth, inner), default=0)


def _nested(model: onnx.ModelProto, rng: random.Random) -> None:
    """Put a node inside bodies of If, one in the other: with one level it may read itself."""
    graph = rng.choice(_graphs(model))
    if not graph.node:
        return
    node = graph.node[rng.randrange(len(graph.node))]
    for level in range(rng.choice((1, 2, 20, 28))):
        if node.ByteSize() > _MOST_NESTED or _depth(node) > _DEEPEST:
            return
        inner = onnx.GraphProto(name=f"level{level}", node=[node])
        inner.output.add(name=node.output[0] if node.output else "")
        outer = onnx.NodeProto(op_type="If", input=[rng.choice(("c", "go", "x"))], output=list(node.output))
        for name in ("then_branch", "else_branch")[: 1 if level > 3 else 2]:
            outer.attribute.append(onnx.helper.make_attribute(name, inner))
        node.CopyFrom(outer)


def _sparse(model: onnx.ModelProto, rng: random.Random) -> None:
    graph = rng.choice(_graphs(model))
    name, number = rng.choice(_names(model)), rng.choice(_NUMBERS)
    values = onnx.helper.make_tensor(name, onnx.TensorProto.FLOAT, [2], [1.0, 2.0])
    indices = onnx.helper.make_tensor("", onnx.TensorProto.INT64, [2], [0, number])
    graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [rng.choice(_NUMBERS)]))


def _value_type(model: onnx.ModelProto, rng: random.Random) -> None:
    """Give an input or an output a type that is no tensor's."""
    graph = rng.choice(_graphs(model))
    values = [*graph.input, *graph.output, *graph.value_info]
    if not values:
        return
    kind = rng.choice(values).type
    way = rng.randrange(4)
    if way == 0:
        kind.sequence_type.elem_type.tensor_type.elem_type = rng.randrange(27)
    elif way == 1:
        kind.map_type.key_type = rng.randrange(27)
    elif way == 2:
        kind.optional_type.elem_type.sequence_type.elem_type.tensor_type.elem_type = 1
    else:
        kind.sparse_tensor_type.elem_type = rng.randrange(27)


def _training(model: onnx.ModelProto, rng: random.Random) -> None:
    info = model.training_info.add()
    info.algorithm.CopyFrom(rng.choice(_graphs(model)))
    info.update_binding.add(key=rng.choice(_names(model)), value=rng.choice(_names(model)))


def _rename(model: onnx.ModelProto, rng: random.Random) -> None:
    """Give one value another name everywhere, one that a page, a terminal or a compiler may take for more than a name."""
    old, new = rng.choice(_names(model)), rng.choice(_TEXTS)
    for graph in _graphs(model):
        named: list[onnx.ValueInfoProto | onnx.TensorProto] = [*graph.input, *graph.output, *graph.value_info]
        named += graph.initializer
        for value in named:
            value.name = new if value.name == old else value.name
        for node in graph.node:
            node.input[:] = [new if name == old else name for name in node.input]
            node.output[:] = [new if name == old else name for name in node.output]


def _constant(model: onnx.ModelProto, rng: random.Random) -> None:
    """Put a constant of strings, of four bits or of no type where a node reads numbers."""
    graph = rng.choice(_graphs(model))
    readers = [node for node in graph.node if node.input]
    if not readers:
        return
    node, dims = rng.choice(readers), [rng.choice((0, 1, 2, 3, 2**40))]
    kind = rng.choice((0, 1, 7, 8, 8, 8, 9, 10, 14, 16, 17, 21, 22, 23, 24, 25, 26, 99))
    tensor = onnx.TensorProto(name="odd", data_type=kind, dims=dims)
    if kind == onnx.TensorProto.STRING:
        tensor.string_data.extend([b"a\x1bb", b"\xff", b"c"][: dims[0]])
    else:
        tensor.raw_data = bytes(rng.choice((0, 1, 4, 8, 12, 24)))
    if rng.random() < 0.5:
        graph.initializer.append(tensor)
    else:
        made = graph.node.add(op_type="Constant", output=["odd"])
        made.attribute.append(onnx.helper.make_attribute("value", tensor))
        nodes = [graph.node[-1], *list(graph.node)[:-1]]
        copies = [onnx.NodeProto.FromString(one.SerializeToString()) for one in nodes]
        at = next((i for i, one in enumerate(graph.node) if one == node), 0) + 1
        del graph.node[:]
        graph.node.extend(copies)
        node = graph.node[min(at, len(graph.node) - 1)]
    if node.input:
        node.input[rng.randrange(len(node.input))] = "odd"


def _text(model: onnx.ModelProto, rng: random.Random) -> None:
    text = rng.choice(_TEXTS)
    graph = rng.choice(_graphs(model))
    way = rng.randrange(4)
    if way == 0:
        _node(model, rng).name = text
    elif way == 1:
        graph.name = text
    elif way == 2:
        model.metadata_props.add(key=f"pkg.onnxtile.{text}", value=text)
    else:
        _node(model, rng).metadata_props.add(key=rng.choice(("pkg.onnxtile.fused", "pkg.onnxtile.step")), value=text)


def _end(model: onnx.ModelProto, rng: random.Random) -> None:
    graph = rng.choice(_graphs(model))
    ends = rng.choice((graph.input, graph.output))
    if not ends:
        return
    way = rng.randrange(3)
    if way == 0:
        del ends[rng.randrange(len(ends))]
    elif way == 1:
        ends.append(rng.choice(ends))
    else:
        rng.choice(ends).name = rng.choice(_names(model))


def _small_value(model: onnx.ModelProto, rng: random.Random) -> None:
    """Change some bytes of a tensor: a shape, an axis, a count or a number that is not one."""
    tensors = [tensor for graph in _graphs(model) for tensor in graph.initializer if tensor.raw_data]
    if not tensors:
        return
    tensor = rng.choice(tensors)
    size = {1: 4, 7: 8, 6: 4, 11: 8}.get(tensor.data_type, 1)
    at = rng.randrange(0, max(len(tensor.raw_data) // size, 1)) * size
    odd = rng.choice((b"\xff" * size, bytes(size), rng.choice((2, 5, 100, 2**31 - 1)).to_bytes(8, "little")[:size]))
    tensor.raw_data = tensor.raw_data[:at] + odd + tensor.raw_data[at + size :]


_MODEL_FAULTS: tuple[Callable[[onnx.ModelProto, random.Random], None], ...] = (
    *(_drop_node, _double_node, _reorder_nodes, _rewire, _rewire, _lengthen, _other_operator, _attribute, _attribute),
    *(_shape, _element_type, _tensor, _tensor, _opset, _function, _text, _end),
    *(_cycle, _nested, _sparse, _value_type, _training, _rename, _rename, _constant, _constant),
)
_SMALL_FAULTS = (
    _attribute,
    _shape,
    _tensor,
    _text,
    _rename,
    _small_value,
    _small_value,
    _drop_node,
    _double_node,
    _function,
    _opset,
)
"""Those that often leave a valid model, which commands then work on."""
