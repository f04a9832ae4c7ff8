"""Train a Llama of Hugging Face (small, of random weights) on two stages, with data and loop of finetune_gpt2.py.

The cosines and sines of the rotary positions are a tuple, which travels from stage to stage with the hidden state.
"""

import finetune_gpt2
import torch
from finetune_gpt2 import GRID, LENGTH
from transformers import LlamaConfig, LlamaForCausalLM


def make_model(attention="causal_sdpa"):
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 4, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 256}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": LENGTH}
    sizes |= {"bos_token_id": None, "eos_token_id": None}
    return LlamaForCausalLM(LlamaConfig(**sizes, use_cache=False, attn_implementation=attention))


def main(steps=60, dtype=torch.float32, grid=GRID):
    return finetune_gpt2.main(steps, dtype, grid, make_model)


if __name__ == "__main__":
    losses, text, model = main()
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}")
    print(text.decode(errors="replace"))
    print(f"{sum(weight.numel() for weight in model.parameters()):,} weights on {GRID.inter} stages")
