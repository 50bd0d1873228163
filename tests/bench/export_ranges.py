"""Exports nets with open dimensions, with random weights, to a folder: the models of the table "random-ranges" of tests.bench.measure.

    PYTHON -m tests.bench.export_ranges FOLDER

PYTHON is one with `pip install torch transformers onnx onnxscript`; it needs no onnxtile. The decoders have two layers of 64 channels and a
cache, and are exported by dynamo with open batch, number of new tokens and length of the cache. Files that are there are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from tests.bench.export_nets import with_torchvision

_Made: TypeAlias = tuple[Any, tuple[Any, ...], tuple[Any, ...], dict[tuple[str, int], str]]
"""A net, what it is fed, its open dimensions as torch wants them, and their names by input and axis."""
LAYERS, WIDTH, HEADS = 2, 64, 4
COMMON = {"vocab_size": 100}
USUAL = {
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 128,
    "max_position_embeddings": 128,
}  # fmt: skip
OLDER = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 128}
DECODERS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "bloom": ("Bloom", HEADS, {"hidden_size": WIDTH, "n_layer": LAYERS, "n_head": HEADS}),
    "falcon": ("Falcon", 1, {**USUAL, "new_decoder_architecture": False, "multi_query": True}),
    "gemma": ("Gemma", 2, {**USUAL, "num_key_value_heads": 2, "head_dim": 16}),
    "gpt2": ("GPT2", HEADS, OLDER),
    "gptj": ("GPTJ", HEADS, {**OLDER, "rotary_dim": 8}),
    "gptneox": ("GPTNeoX", HEADS, USUAL),
    "llama": ("Llama", 2, {**USUAL, "num_key_value_heads": 2}),
    "mistral": ("Mistral", 2, {**USUAL, "num_key_value_heads": 2}),
    "opt": ("OPT", HEADS, {**USUAL, "ffn_dim": 128, "word_embed_proj_dim": WIDTH}),
    "phi": ("Phi", HEADS, USUAL),
    "qwen2": ("Qwen2", 2, {**USUAL, "num_key_value_heads": 2}),
    "qwen3": ("Qwen3", 2, {**USUAL, "num_key_value_heads": 2, "head_dim": 16}),
}
"""The class of each decoder, its heads of keys and values, and its settings."""
EAGER = frozenset({"bloom", "gptj"})
"""Decoders that transformers has without torch's attention."""


def main() -> None:
    """Export every net."""
    folder = Path(sys.argv[1])
    with_torchvision(folder)
    makers: dict[str, Callable[[], _Made]] = {"t5": _t5, "gru": _recurrent}
    makers |= {name: partial(_decoder, name) for name in DECODERS}
    for name, make in makers.items():
        path = folder / f"{name}.onnx"
        if not path.exists():
            _export(*make(), path)
            print(path.name, flush=True)


def _decoder(name: str) -> _Made:
    torch, transformers = import_module("torch"), import_module("transformers")
    caching = import_module("transformers.cache_utils")
    kind, heads, settings = DECODERS[name]
    attention = "eager" if name in EAGER else "sdpa"
    config = getattr(transformers, f"{kind}Config")(**COMMON, **settings, attn_implementation=attention)
    net = getattr(transformers, f"{kind}LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")(config)

    class Step(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, input_ids: Any, attention_mask: Any, past: list[Any]) -> tuple[Any, ...]:
            cache = caching.DynamicCache()
            for layer in range(LAYERS):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            made = net(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
            layers = made.past_key_values.layers
            return (made.logits, *(one for layer in layers for one in (layer.keys, layer.values)))

    step = Step()
    step.held = net
    past = [torch.randn(2, heads, 5, WIDTH // HEADS) for _ in range(2 * LAYERS)]
    fed = (torch.randint(0, 99, (2, 3)), torch.ones(2, 8, dtype=torch.int64), past)
    open_ = torch.export.Dim.DYNAMIC
    dims = ({0: open_, 1: open_}, {0: open_, 1: open_}, [{0: open_, 2: open_} for _ in past])
    names = {("input_ids", 0): "batch", ("input_ids", 1): "seq", ("past_0", 2): "past", ("attention_mask", 1): "total"}
    return step, fed, dims, names


def _t5() -> _Made:
    torch, transformers = import_module("torch"), import_module("transformers")
    sizes = {"d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": 128, "num_layers": LAYERS, "num_heads": HEADS}
    net = transformers.T5ForConditionalGeneration(transformers.T5Config(**COMMON, **sizes, decoder_start_token_id=0))

    class Step(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, encoded: Any, mask: Any, ids: Any) -> Any:
            return net(encoder_outputs=(encoded,), attention_mask=mask, decoder_input_ids=ids, use_cache=False).logits

    step = Step()
    step.held = net
    fed = (torch.randn(2, 7, WIDTH), torch.ones(2, 7, dtype=torch.int64), torch.randint(0, 99, (2, 3)))
    open_ = torch.export.Dim.DYNAMIC
    names = {("encoded", 0): "batch", ("encoded", 1): "source", ("ids", 1): "seq"}
    return step, fed, tuple({0: open_, 1: open_} for _ in fed), names


def _recurrent() -> _Made:
    torch = import_module("torch")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.GRU(16, 32, num_layers=2, batch_first=True)
            self.last = torch.nn.Linear(32, 10)

        def forward(self, x: Any) -> Any:
            return self.last(self.inner(x)[0])

    open_ = torch.export.Dim.DYNAMIC
    return Net(), (torch.randn(2, 6, 16),), ({0: open_, 1: open_},), {("x", 0): "batch", ("x", 1): "seq"}


def _export(
    net: Any, fed: tuple[Any, ...], dims: tuple[Any, ...], names: dict[tuple[str, int], str], path: Path
) -> None:
    """Write `net` to `path`; dimensions of inputs get `names` in place of those that torch counts."""
    torch, onnx = import_module("torch"), import_module("onnx")
    with torch.no_grad():
        torch.onnx.export(
            net.eval(), fed, str(path), dynamo=True, opset_version=18, external_data=False, dynamic_shapes=dims
        )
    model = onnx.load(path)
    shapes = {info.name: info.type.tensor_type.shape.dim for info in model.graph.input}
    named = {shapes[name][axis].dim_param: word for (name, axis), word in names.items()}
    for info in model.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.dim_param:
                # Torch has other names, too, for a batch and a length that are equal to these.
                dim.dim_param = named.get(dim.dim_param, "past" if axis else "batch")
    del model.graph.value_info[:]
    for info in model.graph.output:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.ClearField("dim_param")
    onnx.save(model, path)


if __name__ == "__main__":
    main()
