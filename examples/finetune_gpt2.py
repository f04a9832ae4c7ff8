"""Train a GPT-2 of Hugging Face (small, of random weights, with tied embeddings) on two stages.

GPT2LMHeadModel compares sizes in an `if` where it makes a causal mask, which a symbolic trace cannot follow. An
attention function under a name of its own makes no mask: `is_causal` of PyTorch's attention is the same.
"""

import inspect

import torch
from torch.nn.functional import cross_entropy
from transformers import AttentionInterface, GPT2Config, GPT2LMHeadModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from suite import Engine, Grid

LENGTH, BATCH, GRID = 32, 8, Grid(inter=2)
TEXT = torch.tensor(list(inspect.getsource(inspect).encode()))
AttentionInterface.register("causal_sdpa", sdpa_attention_forward)


def make_model(attention="causal_sdpa"):
    torch.manual_seed(0)
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = {"n_layer": 4, "n_embd": 32, "n_head": 4, "n_positions": LENGTH, "vocab_size": 256}
    sizes |= {"bos_token_id": None, "eos_token_id": None}
    return GPT2LMHeadModel(GPT2Config(**sizes, **no_dropout, use_cache=False, attn_implementation=attention))


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)


def loss_of(output, targets):
    return cross_entropy(output.logits.flatten(0, 1), targets.flatten())


def batch_of(step):
    starts = torch.randint(len(TEXT) - LENGTH - 1, (BATCH,), generator=torch.Generator().manual_seed(step))
    rows = torch.stack([TEXT[start : start + LENGTH + 1] for start in starts])
    return {"input_ids": rows[:, :-1].contiguous()}, rows[:, 1:].contiguous()


def main(steps=60, dtype=torch.float32, grid=GRID, make_model=make_model):
    model = make_model().to(dtype)
    with Engine(
        model, loss=loss_of, optimizer=make_optimizer, microbatch=4, grid=grid, input_names=["input_ids"]
    ) as engine:
        losses = engine.fit(map(batch_of, range(steps)))
        text = torch.tensor([list(b"def get")])
        for _ in range(20):
            logits = engine.predict({"input_ids": text[:, -LENGTH:]}).logits
            text = torch.cat([text, logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    return losses, bytes(text[0].tolist()), model


if __name__ == "__main__":
    losses, text, model = main()
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}")
    print(text.decode(errors="replace"))
    tied = model.lm_head.weight is model.transformer.wte.weight
    print(f"{sum(weight.numel() for weight in model.parameters()):,} weights, embeddings tied: {tied}")
