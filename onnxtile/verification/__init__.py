"""Comparison of two models: both run in onnxruntime on the same inputs, and every output is compared."""

from onnxtile.verification.draws import SameDraws, drawn_outputs, same_draws
from onnxtile.verification.open_sizes import bound_copy, bound_form
from onnxtile.verification.rounding import compare, excused, judge, moved_by_rounding, within_one_step
from onnxtile.verification.trials import Trial, Verdict, compare_with, run_original
from onnxtile.verification.values import OutputError, compare_quantised, compare_values

__all__ = [
    "OutputError",
    "SameDraws",
    "Trial",
    "Verdict",
    "bound_copy",
    "bound_form",
    "compare",
    "compare_quantised",
    "compare_values",
    "compare_with",
    "drawn_outputs",
    "excused",
    "judge",
    "moved_by_rounding",
    "run_original",
    "same_draws",
    "within_one_step",
]
