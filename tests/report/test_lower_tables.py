"""What was lowered to what, and what was not, for a reader."""

from __future__ import annotations

from rich.console import Console

from onnxtile.report.tables import for_lowered

SITES = [
    {"call": "gelu", "meta_op": "GeLU", "operator": "Gelu"},
    {"call": "gelu_2", "meta_op": "GeLU", "operator": "Gelu"},
    {"call": "norm", "meta_op": "LayerNorm", "reason": "its mean is of axis 1"},
    {"call": "mlp", "meta_op": "SwiGLU", "reason": "no operator is known", "opened": True},
]


def shown(result: dict[str, object]) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        for part in for_lowered(result):
            console.print(part)
    return capture.get()


def test_sites_are_counted_by_operator_and_by_reason() -> None:
    text = shown({"lowered": SITES})
    lines = [" ".join(line.replace("│", " ").split()) for line in text.splitlines()]
    assert "GeLU Gelu 2" in lines
    assert "LayerNorm kept 1 its mean is of axis 1 norm" in lines
    assert "SwiGLU parts lowered 1 no operator is known mlp" in lines


def test_sites_that_were_not_run_alone_are_named() -> None:
    skipped = {"call": "gelu", "equal": True, "outputs": [], "also": 0, "skipped": "no kernel for Gelu of bfloat16"}
    assert "no kernel for Gelu of bfloat16" in shown({"lowered": SITES, "sites": [skipped]})


def test_without_lowering_there_is_no_table() -> None:
    assert for_lowered({"lowered": []}) == []
    assert for_lowered({}) == []
