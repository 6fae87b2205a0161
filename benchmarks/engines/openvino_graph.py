"""A Llama checkpoint as an OpenVINO model with a state, built operation by operation from its weights.

No tracing and no further package: what OpenVINO GenAI wants of a model are the names of the inputs and, for each
layer, keys and values in variables that beam_idx gathers, read by one scaled dot product attention.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engines.weights import Weights, fresh


def write(directory: Path, place: Path, dtype: str) -> None:
    """Convert once, into the directory that a GenAI pipeline opens."""
    import openvino as ov

    with fresh(place / "openvino_model.xml") as part:
        if part is None:
            return
        try:
            ov.save_model(Builder(Weights(directory), dtype).model(), part, compress_to_fp16=False)
            part.with_suffix(".bin").replace(place / "openvino_model.bin")
        finally:
            part.with_suffix(".bin").unlink(missing_ok=True)
        config = json.loads((directory / "config.json").read_text("utf-8"))
        end = config.get("eos_token_id", 0)
        generation = {"eos_token_id": end, "do_sample": False}
        for name, document in (("config.json", config), ("generation_config.json", generation)):
            (place / name).write_text(json.dumps(document), "utf-8")
        _tokenizer(directory, place, end)


def _tokenizer(directory: Path, place: Path, end: int) -> None:
    """A pipeline with a draft model refuses to start without one, though it gets token ids."""
    import openvino as ov
    from openvino_tokenizers import convert_tokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
    for name, made in zip(
        ("tokenizer", "detokenizer"), convert_tokenizer(tokenizer, with_detokenizer=True), strict=True
    ):
        ov.save_model(made, place / f"openvino_{name}.xml")


class Builder:
    """Makes the graph. Whole numbers given to an operation are int64, others float32."""

    def __init__(self, weights: Weights, dtype: str) -> None:
        import openvino as ov
        from openvino import opset13

        self.weights, self.shape, self.dtype, self.ov, self.ops = weights, weights.shape, dtype, ov, opset13
        self.sinks: list[Any] = []
        self.variables: list[Any] = []

    def constant(self, value: Any) -> Any:
        array = np.asarray(value)
        return self.ops.constant(array.astype(np.int64 if array.dtype.kind == "i" else np.float32))

    def model(self) -> Any:
        """The whole model: ids to logits."""
        ops, names = self.ops, ("input_ids", "attention_mask", "position_ids")
        inputs = {name: ops.parameter([-1, -1], np.int64) for name in names}
        inputs["beam_idx"] = ops.parameter([-1], np.int32)
        for name, parameter in inputs.items():
            parameter.set_friendly_name(name)  # GenAI looks at this one
            parameter.output(0).tensor.set_names({name})
        ids = inputs["input_ids"]
        x = ops.gather(self.matrix("model.embed_tokens"), ops.convert(ids, "i32"), self.constant(0))
        self.batch = ops.gather(ops.shape_of(ids), self.constant([0]), self.constant(0))
        self.beams = inputs["beam_idx"]
        mask, turn = self.mask(ids, inputs["attention_mask"]), self.rotation(inputs["position_ids"])
        for layer in range(self.shape.num_hidden_layers):
            name = f"model.layers.{layer}."
            x = ops.add(x, self.attention(name, layer, self.norm(x, name + "input_layernorm"), mask, turn))
            h = self.norm(x, name + "post_attention_layernorm")
            inner = ops.multiply(
                ops.swish(self.linear(h, name + "mlp.gate_proj")), self.linear(h, name + "mlp.up_proj")
            )
            x = ops.add(x, self.linear(inner, name + "mlp.down_proj"))
        logits = ops.result(self.linear(self.norm(x, "model.norm"), "lm_head"))
        logits.set_friendly_name("logits")
        logits.output(0).tensor.set_names({"logits"})
        return self.ov.Model([logits], self.sinks, list(inputs.values()), self.variables, "llama")

    def matrix(self, name: str) -> Any:
        """A weight as it is stored, with what makes it float32; the plugin folds or fuses that."""
        ops, array = self.ops, self.weights[f"{name}.weight"]
        if self.dtype == "float32":
            return ops.constant(array)
        if self.dtype == "bfloat16":
            import torch

            held = self.ov.Tensor(self.ov.Type.bf16, self.ov.Shape(array.shape))
            bits = torch.from_numpy(array).bfloat16().view(torch.int16).numpy().view(np.uint16)
            held.data.view(np.uint16)[:] = bits
            return ops.convert(ops.constant(held, shared_memory=False), "f32")
        scale = np.maximum(np.abs(array).max(axis=1, keepdims=True), 1e-12) / 127
        rounded = ops.constant(np.rint(array / scale).astype(np.int8))
        return ops.multiply(ops.convert(rounded, "f32"), self.constant(scale))

    def linear(self, x: Any, name: str) -> Any:
        return self.ops.matmul(x, self.matrix(name), False, True)

    def norm(self, x: Any, name: str) -> Any:
        ops = self.ops
        square = ops.reduce_mean(ops.power(x, self.constant([[[2.0]]])), self.constant([-1]), keep_dims=True)
        length = ops.sqrt(ops.add(square, self.constant([[[self.shape.rms_norm_eps]]])))
        scaled = ops.multiply(x, ops.divide(self.constant([[[1.0]]]), length))
        return ops.multiply(scaled, ops.constant(self.weights[f"{name}.weight"].reshape(1, 1, -1)))

    def rotation(self, positions: Any) -> tuple[Any, Any]:
        """Cosines and sines, [batch, 1, tokens, head_dim]."""
        ops, s = self.ops, self.shape
        steps = s.rope_theta ** -(np.arange(0, s.head_dim, 2, dtype=np.float64) / s.head_dim)
        places = ops.convert(ops.unsqueeze(positions, self.constant([2])), "f32")
        angles = ops.multiply(places, self.constant(steps.reshape(1, 1, -1)))
        both = ops.unsqueeze(ops.concat([angles, angles], -1), self.constant([1]))
        return ops.cos(both), ops.sin(both)

    def rotate(self, x: Any, turn: tuple[Any, Any]) -> Any:
        ops, half = self.ops, self.shape.head_dim // 2
        first, second = ops.variadic_split(x, self.constant(-1), self.constant([half, half])).outputs()
        turned = ops.concat([ops.multiply(second, self.constant([[[[-1.0]]]])), first], -1)
        return ops.add(ops.multiply(x, turn[0]), ops.multiply(turned, turn[1]))

    def mask(self, ids: Any, attention_mask: Any) -> Any:
        """[batch, 1, tokens, all tokens], true where a token may look."""
        ops, zero, one = self.ops, self.constant(0), self.constant(1)
        new, whole = (ops.gather(ops.shape_of(each), one, zero) for each in (ids, attention_mask))
        keys = ops.unsqueeze(ops.range(zero, whole, one, "i64"), self.constant([0]))
        queries = ops.unsqueeze(ops.range(ops.subtract(whole, new), whole, one, "i64"), self.constant([1]))
        causal = ops.unsqueeze(ops.less_equal(keys, queries), self.constant([0, 1]))
        known = ops.unsqueeze(ops.not_equal(attention_mask, zero), self.constant([1, 2]))
        return ops.logical_and(causal, known)

    def attention(self, name: str, layer: int, h: Any, mask: Any, turn: tuple[Any, Any]) -> Any:
        ops, s, order = self.ops, self.shape, self.constant([0, 2, 1, 3])

        def heads(kind: str, count: int) -> Any:
            made = self.linear(h, f"{name}self_attn.{kind}_proj")
            return ops.transpose(ops.reshape(made, self.constant([0, 0, count, s.head_dim]), True), order)

        queries = self.rotate(heads("q", s.num_attention_heads), turn)
        keys = self.remember(f"past_key_values.{layer}.key", self.rotate(heads("k", s.num_key_value_heads), turn))
        values = self.remember(f"past_key_values.{layer}.value", heads("v", s.num_key_value_heads))
        heard = ops.transpose(ops.scaled_dot_product_attention(queries, keys, values, mask), order)
        joined = ops.reshape(heard, self.constant([0, 0, s.num_attention_heads * s.head_dim]), True)
        return self.linear(joined, f"{name}self_attn.o_proj")

    def remember(self, name: str, new: Any) -> Any:
        """Append to a variable; what attention reads of it, for each query head."""
        from openvino.op.util import Variable, VariableInfo

        ops, s, kv = self.ops, self.shape, self.shape.num_key_value_heads
        info = VariableInfo()
        info.data_shape = self.ov.PartialShape([-1, kv, -1, s.head_dim])
        info.data_type = self.ov.Type.f32
        info.variable_id = name
        variable = Variable(info)
        nothing = ops.broadcast(self.constant(0.0), ops.concat([self.batch, self.constant([kv, 0, s.head_dim])], 0))
        past = ops.gather(ops.read_value(nothing, variable), self.beams, self.constant(0))
        whole = ops.concat([past, new], 2)
        self.variables.append(variable)
        self.sinks.append(ops.assign(whole, variable))
        group = s.num_attention_heads // kv
        if group == 1:
            return whole
        several = ops.unsqueeze(whole, self.constant([2]))
        wider = ops.broadcast(several, self.constant([1, 1, group, 1, 1]), broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(wider, self.constant([0, s.num_attention_heads, -1, s.head_dim]), True)
