"""The modules around a node, from the metadata and the names that exporters write."""

from __future__ import annotations

import pytest

from onnxtile.model import keys
from onnxtile.model.modules import dotted, module_classes, module_note, module_path, shared_path
from onnxtile.system.text import alike

SCOPES = "['', 'blocks', 'blocks.0', 'blocks.0.attn', 'softmax']"
CLASSES = "['timm.ViT', 'torch.nn.Sequential', 'timm.Block', 'timm.Attention', 'aten.softmax.int']"
NAMESPACE = ": timm.ViT/blocks: torch.nn.Sequential/blocks.0: timm.Block/blocks.0.attn: timm.Attention/softmax: aten.softmax.int"
TORCH = {"pkg.torch.onnx.name_scopes": SCOPES, "pkg.torch.onnx.class_hierarchy": CLASSES}


@pytest.mark.parametrize("notes", [TORCH, {"namespace": NAMESPACE}, {**TORCH, "namespace": "damaged"}])
def test_metadata_of_torch_has_the_modules_and_their_classes(notes: dict[str, str]) -> None:
    assert module_path("node_Softmax_56", notes) == ("blocks", "0", "attn")
    assert module_classes(notes) == ("timm.ViT", "torch.nn.Sequential", "timm.Block", "timm.Attention")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("/blocks/blocks.0/attn/Softmax", ("blocks", "0", "attn")),  # TorchScript
        ("/m/encoder/layers.0/blocks.1/attn/Softmax", ("m", "encoder", "layers.0", "blocks.1", "attn")),
        ("layer1.0.conv1.Conv", ("layer1", "0", "conv1")),
        ("p2o.Conv.12", ()),  # the number is that of the node: Conv is no module
        ("Conv_12", ()),
        ("/Conv", ()),
        ("", ()),
        (None, ()),
    ],
)
def test_names_have_modules_before_the_operator(name: str | None, path: tuple[str, ...]) -> None:
    assert module_path(name, {}) == path
    assert module_classes({}) == ()


@pytest.mark.parametrize(
    "notes",
    [
        {"pkg.torch.onnx.name_scopes": "{}"},
        {"pkg.torch.onnx.name_scopes": "['a', __import__('os')]"},
        {"pkg.torch.onnx.name_scopes": "[" * 10_000},
        {"namespace": "my_model"},
        {"namespace": ""},
    ],
)
def test_other_metadata_says_nothing(notes: dict[str, str]) -> None:
    assert module_path("/a/Conv", notes) == ("a",)
    assert module_classes(notes) == ()


def test_classes_of_another_length_are_left_out() -> None:
    notes = {**TORCH, "pkg.torch.onnx.class_hierarchy": "['timm.ViT']"}
    assert module_path("n", notes) == ("blocks", "0", "attn")
    assert module_classes(notes) == ()


def test_a_module_that_is_called_elsewhere_has_the_name_that_it_has_there() -> None:
    notes = {"pkg.torch.onnx.name_scopes": "['', 'decoder', 'shared', 'embedding']"}
    assert dotted(module_path("n", notes)) == "decoder.shared"


def test_a_new_node_has_a_note_where_its_name_says_other_modules() -> None:
    path = ("blocks", "0", "attn")
    assert module_note(path, "/blocks/blocks.0/attn/Linear") == {}
    note = module_note(path, "linear_7/Linear")
    assert note == {keys.MODULE: "blocks/0/attn"}
    assert module_path("linear_7/Linear", note) == path
    assert module_path("y/Linear", module_note((), "y/Linear")) == ()


def test_shared_modules() -> None:
    assert shared_path([("a", "0", "b"), ("a", "0", "c", "d"), ("a", "0")]) == ("a", "0")
    assert shared_path([("a",), ()]) == ()
    assert shared_path([]) == ()


def test_names_that_differ_in_numbers_are_one() -> None:
    assert alike(["a.0.b", "head", "a.2.b", "a.1.b", "a.10.b"]) == ["a.{0,1,2,10}.b", "head"]
    assert alike(["a0", "a1", "a2", "a3"]) == ["a{0..3}"]
    assert alike(["a7", "a7"]) == ["a7"]
    assert alike([f"n{i * i}" for i in range(9)]) == ["n{0,1,4,9,…}"]
    assert alike(["x1y1", "x1y2"]) == ["x1y{1,2}"]
    assert alike([]) == []
