"""A Llama checkpoint as an OpenVINO model with a state, built operation by operation from its weights.

No tracing and no further package: what OpenVINO GenAI wants of a model are the names of the inputs and, for each
layer, keys and values in variables that beam_idx gathers, read by one scaled dot product attention.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from draftwood.eval.experiments.engines.weights import Weights, fresh


def write(directory: Path, place: Path, dtype: str) -> None:
    """Convert once, into the directory that a GenAI pipeline opens."""
    import openvino as ov

    with fresh(place / "openvino_model.xml") as part:
        if part is None:
            return
        try:
            model = Builder(Weights(directory), dtype).model()
            ov.save_model(model, part, compress_to_fp16=False)
            del model
            part.with_suffix(".bin").replace(place / "openvino_model.bin")
        finally:
            part.with_suffix(".bin").unlink(missing_ok=True)
        config = json.loads((directory / "config.json").read_text("utf-8"))
        (place / "config.json").write_text(json.dumps(config), "utf-8")
        _tokenizer(directory, place)
        generation = {"eos_token_id": config.get("eos_token_id", 0), "do_sample": False}
        (place / "generation_config.json").write_text(json.dumps(generation), "utf-8")


def _tokenizer(directory: Path, place: Path) -> None:
    """A pipeline with a draft model refuses to start without one, though it gets token ids."""
    import openvino as ov
    from openvino_tokenizers import convert_tokenizer
    from transformers import PreTrainedTokenizerFast

    known = json.loads((directory / "config.json").read_text("utf-8")).get("eos_token_id", 0)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(known)
    there, back = convert_tokenizer(tokenizer, with_detokenizer=True)
    ov.save_model(there, place / "openvino_tokenizer.xml")
    ov.save_model(back, place / "openvino_detokenizer.xml")


class Builder:
    """Makes the graph."""

    def __init__(self, weights: Weights, dtype: str) -> None:
        import numpy
        import openvino as ov
        from openvino import opset13

        self.weights, self.shape, self.dtype = weights, weights.shape, dtype
        self.ops, self.ov, self.np = opset13, ov, numpy
        self.sinks: list[Any] = []
        self.variables: list[Any] = []

    def model(self) -> Any:
        """The whole model: ids to logits."""
        ops, s = self.ops, self.shape
        inputs = {
            name: ops.parameter([-1, -1], self.np.int64) for name in ("input_ids", "attention_mask", "position_ids")
        }
        inputs["beam_idx"] = ops.parameter([-1], self.np.int32)
        for name, parameter in inputs.items():
            parameter.set_friendly_name(name)  # GenAI looks at this one
            parameter.output(0).tensor.set_names({name})
        ids = inputs["input_ids"]
        x = ops.gather(self.matrix("model.embed_tokens.weight"), ops.convert(ids, "i32"), self.number(0))
        batch = ops.gather(ops.shape_of(ids), self.numbers([0]), self.number(0))
        mask, turn = self.mask(ids, inputs["attention_mask"]), self.rotation(inputs["position_ids"])
        for layer in range(s.layers):
            name = f"model.layers.{layer}."
            heard = self.attention(
                name + "self_attn.",
                layer,
                self.norm(x, name + "input_layernorm.weight"),
                batch,
                mask,
                turn,
                inputs["beam_idx"],
            )
            x = ops.add(x, heard)
            h = self.norm(x, name + "post_attention_layernorm.weight")
            gate = ops.swish(self.linear(h, name + "mlp.gate_proj.weight"))
            inner = ops.multiply(gate, self.linear(h, name + "mlp.up_proj.weight"))
            x = ops.add(x, self.linear(inner, name + "mlp.down_proj.weight"))
        logits = ops.result(self.linear(self.norm(x, "model.norm.weight"), "lm_head.weight"))
        logits.set_friendly_name("logits")
        logits.output(0).tensor.set_names({"logits"})
        return self.ov.Model([logits], self.sinks, list(inputs.values()), self.variables, "llama")

    def number(self, value: int) -> Any:
        return self.ops.constant(self.np.array(value, dtype=self.np.int64))

    def numbers(self, values: list[int]) -> Any:
        return self.ops.constant(self.np.array(values, dtype=self.np.int64))

    def reals(self, values: Any) -> Any:
        return self.ops.constant(self.np.array(values, dtype=self.np.float32))

    def matrix(self, name: str) -> Any:
        """A weight as it is stored, with what makes it float32; the plugin folds or fuses that."""
        array = self.weights[name]
        if self.dtype == "float32":
            return self.ops.constant(array)
        if self.dtype == "bfloat16":
            import torch

            bits = torch.from_numpy(array).bfloat16().view(torch.int16).numpy().view(self.np.uint16)
            held = self.ov.Tensor(self.ov.Type.bf16, self.ov.Shape(array.shape))
            held.data.view(self.np.uint16)[:] = bits
            stored = self.ops.constant(held, shared_memory=False)
            return self.ops.convert(stored, "f32")
        scale = self.np.maximum(self.np.abs(array).max(axis=1, keepdims=True), 1e-12) / 127
        rounded = self.ops.constant(self.np.rint(array / scale).astype(self.np.int8))
        return self.ops.multiply(self.ops.convert(rounded, "f32"), self.reals(scale))

    def linear(self, x: Any, name: str) -> Any:
        return self.ops.matmul(x, self.matrix(name), False, True)

    def norm(self, x: Any, name: str) -> Any:
        ops = self.ops
        square = ops.reduce_mean(ops.power(x, self.reals([[[2.0]]])), self.numbers([-1]), keep_dims=True)
        length = ops.sqrt(ops.add(square, self.reals([[[self.shape.norm_eps]]])))
        scaled = ops.multiply(x, ops.divide(self.reals([[[1.0]]]), length))
        return ops.multiply(scaled, self.ops.constant(self.weights[name].reshape(1, 1, -1)))

    def rotation(self, positions: Any) -> tuple[Any, Any]:
        """Cosines and sines, [batch, 1, tokens, head_dim]."""
        ops, s = self.ops, self.shape
        powers = self.np.arange(0, s.head_dim, 2, dtype=self.np.float64) / s.head_dim
        steps = self.reals((s.rope_theta**-powers).reshape(1, 1, -1))
        angles = ops.multiply(ops.convert(ops.unsqueeze(positions, self.numbers([2])), "f32"), steps)
        both = ops.unsqueeze(ops.concat([angles, angles], -1), self.numbers([1]))
        return ops.cos(both), ops.sin(both)

    def rotate(self, x: Any, turn: tuple[Any, Any]) -> Any:
        ops, half = self.ops, self.shape.head_dim // 2
        first, second = ops.variadic_split(x, self.number(-1), self.numbers([half, half])).outputs()
        turned = ops.concat([ops.multiply(second, self.reals([[[[-1.0]]]])), first], -1)
        return ops.add(ops.multiply(x, turn[0]), ops.multiply(turned, turn[1]))

    def mask(self, ids: Any, attention_mask: Any) -> Any:
        """[batch, 1, tokens, all tokens], true where a token may look."""
        ops, zero, one = self.ops, self.number(0), self.number(1)
        new = ops.gather(ops.shape_of(ids), one, zero)
        whole = ops.gather(ops.shape_of(attention_mask), one, zero)
        keys = ops.unsqueeze(ops.range(zero, whole, one, "i64"), self.numbers([0]))
        queries = ops.unsqueeze(ops.range(ops.subtract(whole, new), whole, one, "i64"), self.numbers([1]))
        causal = ops.unsqueeze(ops.less_equal(keys, queries), self.numbers([0, 1]))
        known = ops.unsqueeze(ops.not_equal(attention_mask, zero), self.numbers([1, 2]))
        return ops.logical_and(causal, known)

    def attention(
        self, name: str, layer: int, h: Any, batch: Any, mask: Any, turn: tuple[Any, Any], beam_idx: Any
    ) -> Any:
        ops, s = self.ops, self.shape

        def heads(kind: str, count: int) -> Any:
            made = ops.reshape(
                self.linear(h, f"{name}{kind}_proj.weight"), self.numbers([0, 0, count, s.head_dim]), True
            )
            return ops.transpose(made, self.numbers([0, 2, 1, 3]))

        queries = self.rotate(heads("q", s.heads), turn)
        keys = self.remember(f"past_key_values.{layer}.key", self.rotate(heads("k", s.kv_heads), turn), batch, beam_idx)
        values = self.remember(f"past_key_values.{layer}.value", heads("v", s.kv_heads), batch, beam_idx)
        heard = ops.scaled_dot_product_attention(queries, keys, values, mask)
        joined = ops.reshape(
            ops.transpose(heard, self.numbers([0, 2, 1, 3])), self.numbers([0, 0, s.heads * s.head_dim]), True
        )
        return self.linear(joined, f"{name}o_proj.weight")

    def remember(self, name: str, new: Any, batch: Any, beam_idx: Any) -> Any:
        """Append to a variable; what attention reads of it, for each query head."""
        from openvino.op.util import Variable, VariableInfo

        ops, s = self.ops, self.shape
        info = VariableInfo()
        info.data_shape = self.ov.PartialShape([-1, s.kv_heads, -1, s.head_dim])
        info.data_type = self.ov.Type.f32
        info.variable_id = name
        variable = Variable(info)
        nothing = ops.concat([batch, self.numbers([s.kv_heads, 0, s.head_dim])], 0)
        past = ops.gather(ops.read_value(ops.broadcast(self.reals(0.0), nothing), variable), beam_idx, self.number(0))
        whole = ops.concat([past, new], 2)
        self.variables.append(variable)
        self.sinks.append(ops.assign(whole, variable))
        group = s.heads // s.kv_heads
        if group == 1:
            return whole
        wider = ops.broadcast(
            ops.unsqueeze(whole, self.numbers([2])),
            self.numbers([1, 1, group, 1, 1]),
            broadcast_spec="BIDIRECTIONAL",
        )
        return ops.reshape(wider, self.numbers([0, s.heads, -1, s.head_dim]), True)
