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
    """Return the bytes of a model with one to four faults: in its fields, mostly, else in its bytes."""
    if rng.random() < 0.15:
        return mutated_bytes(data, rng)
    model = onnx.ModelProto.FromString(data)
    for _ in range(rng.randint(1, 4)):
        rng.choice(_MODEL_FAULTS)(model, rng)
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
    tensor.external_data.add(key="location", value=rng.choice(places))
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
    way = rng.randrange(4)
    if way == 0:
        model.functions.append(function)
    elif way == 1:
        function.node.add(op_type=function.name, domain=function.domain, input=["x"], output=["again"])
    elif way == 2:
        function.attribute.append(rng.choice(_TEXTS))
    else:
        del function.opset_import[:]


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


_MODEL_FAULTS: tuple[Callable[[onnx.ModelProto, random.Random], None], ...] = (
    *(_drop_node, _double_node, _reorder_nodes, _rewire, _rewire, _lengthen, _other_operator, _attribute, _attribute),
    *(_shape, _element_type, _tensor, _tensor, _opset, _function, _text, _end),
)
