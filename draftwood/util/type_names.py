"""Short names of types of numbers, as they are written elsewhere. Imports no torch."""

DTYPE_ALIASES = {"fp32": "float32", "f32": "float32", "bf16": "bfloat16", "fp16": "float16", "f16": "float16"}
DTYPE_ALIASES |= {"half": "float16", "fp64": "float64"}
QUANTIZE_ALIASES = {"q8": "int8", "q4": "int4"}
