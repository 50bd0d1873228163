"""Operators whose number of products is the kernel's own affair: a Fourier transform, a support vector machine."""

from __future__ import annotations

from typing import NoReturn

from onnxtile.inspection.work import CountedNode, NotKnown, Rule


def _count(site: CountedNode) -> NoReturn:
    raise NotKnown(f"the number of products of {site.node.op_type} depends on its algorithm")


RULE = Rule("not counted", frozenset({"DFT", "STFT", "ai.onnx.ml::SVMClassifier", "ai.onnx.ml::SVMRegressor"}), _count)
