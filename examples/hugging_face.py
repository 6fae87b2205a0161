"""Models of Hugging Face transformers, both ways: draftwood runs them, and their generate() runs draftwood's methods.

Needs no network: GPT-NeoX, a family without a decoder of draftwood's own, is made here, tiny and random.
"""

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

import draftwood
from draftwood.integrations.transformers import custom_generate

torch.manual_seed(0)
shape = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
target = GPTNeoXForCausalLM(GPTNeoXConfig(**shape, num_hidden_layers=4, initializer_range=0.2)).eval()
draft = GPTNeoXForCausalLM(GPTNeoXConfig(**shape, num_hidden_layers=4, initializer_range=0.2)).eval()
with torch.no_grad():  # a draft that mostly agrees: the target with a little noise
    for ours, theirs in zip(draft.parameters(), target.parameters(), strict=True):
        ours.copy_(theirs + 0.01 * torch.randn_like(theirs))
prompt = [11, 42, 7, 99, 3]

# A model object goes where a path goes; "hf:<directory or hub id>" loads one, safetensors only and no code of its own.
engine = draftwood.load(target, draft=draft)
for method in ("autoregressive", "speculative", {"name": "mcsd", "tree": [3, 2, 1]}):
    result = engine.generate(prompt, method, {"temperature": 0}, max_new_tokens=40, ignore_eos=True)
    print(f"{result.method['name']:14} tau {result.metrics.tau:.2f}", result.tokens[:12])

# The reverse: generate() prepares the batch and reads the settings, draftwood decodes.
inputs = torch.tensor([prompt, prompt[::-1]])
settings = {"attention_mask": torch.ones_like(inputs), "max_new_tokens": 40, "do_sample": False, "pad_token_id": 0}
plain = target.generate(inputs, **settings)
driven = target.generate(inputs, custom_generate=custom_generate, draft=draft, method="mcsd", **settings)
print("the same sequences:", torch.equal(plain, driven))
