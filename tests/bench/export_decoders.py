"""Exports decoder steps with caches and random weights to a folder: the models of the table "decode-steps" of tests.bench.measure.

    PYTHON tests/bench/export_decoders.py FOLDER

PYTHON is one with `pip install torch transformers onnx`; it needs no onnxtile. The decoders are like Llama, GPT-2 and Whisper: two layers
of 64 channels, one token of one sequence, a cache of the length "past". Files that are there are kept.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

LAYERS, WIDTH, HEADS = 2, 64, 4
FRAMES = 50


def main() -> None:
    """Export every decoder."""
    warnings.filterwarnings("ignore")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in {"llama_step": _llama, "gpt2_step": _gpt2, "whisper_step": _whisper}.items():
        path = folder / f"{name}.onnx"
        if not path.exists():
            _export(*made(), path)


def _llama() -> tuple[Any, dict[str, int], dict[str, int]]:
    transformers = import_module("transformers")
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": 2, "max_position_embeddings": 128}
    config = transformers.LlamaConfig(
        vocab_size=100,
        hidden_size=WIDTH,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        attn_implementation="eager",
        **heads,
    )
    return _self_attending(transformers.LlamaForCausalLM(config)), dict(_caches("", 2)), {"attention_mask": 1}


def _gpt2() -> tuple[Any, dict[str, int], dict[str, int]]:
    transformers = import_module("transformers")
    config = transformers.GPT2Config(
        vocab_size=100, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=128, attn_implementation="eager"
    )
    return _self_attending(transformers.GPT2LMHeadModel(config)), dict(_caches("", HEADS)), {"attention_mask": 1}


def _whisper() -> tuple[Any, dict[str, int], dict[str, int]]:
    torch, transformers = import_module("torch"), import_module("transformers")
    caching = import_module("transformers.cache_utils")
    sizes = {
        f"{part}_{name}": n for part in ("encoder", "decoder") for name, n in (("layers", LAYERS), ("ffn_dim", 128))
    }
    sizes |= {f"{part}_attention_heads": HEADS for part in ("encoder", "decoder")}
    config = transformers.WhisperConfig(
        vocab_size=100, d_model=WIDTH, max_target_positions=128, max_source_positions=FRAMES, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None, attn_implementation="eager", **sizes,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config)

    class Step(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, ids: Any, *past: Any) -> tuple[Any, ...]:
            own, across = caching.DynamicCache(), caching.DynamicCache()
            for layer in range(LAYERS):
                own.update(past[2 * layer], past[2 * layer + 1], layer)
                across.update(past[2 * (LAYERS + layer)], past[2 * (LAYERS + layer) + 1], layer)
            both = caching.EncoderDecoderCache(own, across)
            both.is_updated = dict.fromkeys(range(LAYERS), True)
            frames = torch.zeros(1, FRAMES, WIDTH)
            found = model.model.decoder(
                input_ids=ids, encoder_hidden_states=frames, past_key_values=both, use_cache=True
            )
            return (model.proj_out(found.last_hidden_state), *_flat(found.past_key_values.self_attention_cache))

    step = Step()
    step.held = model
    return step, {**dict(_caches("decoder.", HEADS)), **dict(_caches("encoder.", HEADS))}, {}


def _self_attending(model: Any) -> Any:
    torch, caching = import_module("torch"), import_module("transformers.cache_utils")

    class Step(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, ids: Any, mask: Any, *past: Any) -> tuple[Any, ...]:
            cache = caching.DynamicCache()
            for layer in range(LAYERS):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            found = model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True)
            return (found.logits, *_flat(found.past_key_values))

    step = Step()
    step.held = model
    return step


def _flat(cache: Any) -> Iterator[Any]:
    for layer in cache.layers:
        yield from (layer.keys, layer.values)


def _caches(part: str, heads: int) -> Iterator[tuple[str, int]]:
    """Yield the names of the caches of `part`, each with its heads."""
    for layer in range(LAYERS):
        yield from ((f"{layer}.{part}{kind}", heads) for kind in ("key", "value"))


def _export(step: Any, caches: dict[str, int], masks: dict[str, int], path: Path) -> None:
    torch = import_module("torch")
    step.eval()
    size = WIDTH // HEADS
    past = [torch.randn(1, heads, FRAMES if "encoder" in name else 5, size) for name, heads in caches.items()]
    fed = (torch.tensor([[3]]), *(torch.ones(1, 6, dtype=torch.int64) for _ in masks), *past)
    grown = [name for name in caches if "encoder" not in name]
    dynamic = {f"past_key_values.{name}": {2: "past"} for name in grown} | {
        name: {axis: "past + 1"} for name, axis in masks.items()
    }
    export: Callable[..., None] = torch.onnx.export
    with torch.no_grad():
        export(
            step, fed, str(path), opset_version=17, dynamo=False, dynamic_axes=dynamic,
            input_names=["input_ids", *masks, *(f"past_key_values.{name}" for name in caches)],
            output_names=["logits", *(f"present.{name}" for name in grown)],
        )  # fmt: skip


if __name__ == "__main__":
    main()
