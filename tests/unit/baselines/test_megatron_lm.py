"""A config in Megatron's terms: AxoNN's Table II, mixed precision, refusals, and which part of a weight is whose.

Nothing here needs Megatron or a device.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

import baselines.megatron_lm
from baselines.common import PeerPlan
from baselines.megatron_lm import MegatronLM, arguments
from baselines.megatron_weights import renamed
from suite import accelerator
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.protocols import Missing, Ready
from tests.support.curves import config_of


def translate(*overrides: str) -> dict[str, dict[str, Any]]:
    return arguments(config_of(["system=megatron_lm", *overrides]))


def test_a_plan_of_axonns_table_2_is_translated() -> None:
    grid = ("grid.tensor=3", "grid.inter=16", "grid.data=2", "batch.size=16384", "batch.microbatch=1")
    translated = translate("precision=fp16", "activation_checkpointing=1", "model=transformer_24b", *grid)
    parallel = {"tensor_model_parallel_size": 3, "pipeline_model_parallel_size": 16}
    assert translated["parallel"] == {**parallel, "order": "tp-cp-ep-pp-dp"}
    assert translated["passes"] == {"num_microbatches": 8192, "seq_length": 512, "micro_batch_size": 1}
    sizes = {"num_layers": 48, "hidden_size": 6336, "num_attention_heads": 36, "recompute_num_layers": 1}
    assert (sizes | parallel | {"fp16": True, "params_dtype": torch.float16}).items() <= translated[
        "transformer"
    ].items()
    assert translated["model"]["vocab_size"] == 51201, "a multiple of three"


def test_settings_are_translated() -> None:
    plain = translate()
    assert not any(key.startswith("recompute") for key in plain["transformer"])
    assert (plain["transformer"]["fp16"], plain["transformer"]["bf16"]) == (False, False)
    assert plain["transformer"]["pipeline_dtype"] is torch.float32
    assert plain["optimizer"]["clip_grad"] == 0.0, "Megatron clips by default"
    assert (plain["optimizer"]["optimizer"], plain["optimizer"]["decoupled_weight_decay"]) == ("adam", True)
    assert plain["groups"] == {"config_overrides": {}}, "by default Megatron marks biases and norms not to decay"
    assert "initial_loss_scale" not in plain["optimizer"]
    assert plain["model"]["share_embeddings_and_output_weights"]
    other = translate(
        *("precision=bf16", "activation_checkpointing=2", "optimizer.clip_norm=0.5"),
        *("system.reduce=float32", "optimizer=sgd"),
    )
    recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 2}
    assert recompute.items() <= other["transformer"].items()
    assert (other["transformer"]["bf16"], other["optimizer"]["bf16"]) == (True, True)
    assert other["ddp"]["grad_reduce_in_fp32"]
    assert (other["optimizer"]["clip_grad"], other["optimizer"]["sgd_momentum"]) == (0.5, 0.9)
    scaled = translate("precision=fp16", "optimizer=adam")
    assert scaled["optimizer"]["initial_loss_scale"] == 65536.0
    assert (scaled["optimizer"]["loss_scale_window"], scaled["optimizer"]["hysteresis"]) == (200, 1)
    assert not scaled["optimizer"]["decoupled_weight_decay"]
    assert not scaled["ddp"]["grad_reduce_in_fp32"]


def test_refusals_have_a_legal_value() -> None:
    for kind, legal, *overrides in (
        (Unsupported, "grid.inter=2", "grid.inter=3"),
        (Unsupported, "grid.inter=1 split=even", "split=cost"),
        (InvalidRequest, "grid.tensor=2", "grid.tensor=3"),
        (Unsupported, "activation_checkpointing=2", "activation_checkpointing=3"),
        (Unsupported, "model.dropout=0.0", "model.dropout=0.1"),
        (Unsupported, "optimizer.dampening=0.0", "optimizer=sgd", "optimizer.dampening=0.5"),
        (InvalidRequest, "system.reduce", "system.reduce=bf16"),
        (Unsupported, "model.dtype=float32", "model.dtype=float64"),
    ):
        with pytest.raises(kind) as caught:
            MegatronLM.probe(config_of(["system=megatron_lm", *overrides]))
        assert legal in str(caught.value), overrides


def test_a_missing_package_or_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu, on_cuda = (config_of(["system=megatron_lm", f"launch.device={device}"]) for device in ("cpu", "cuda"))

    def reason(config: Any) -> str:
        answer = MegatronLM.probe(config)
        return answer.reason if isinstance(answer, Missing) else ""

    monkeypatch.setattr(baselines.megatron_lm, "find_spec", lambda name: None)
    assert "pip install megatron-core" in reason(on_cuda)
    monkeypatch.setattr(baselines.megatron_lm, "find_spec", lambda name: name)
    monkeypatch.setattr(accelerator, "count", lambda: 0)
    assert "launch.device=cuda" in reason(on_cpu)
    assert reason(on_cuda)
    monkeypatch.setattr(accelerator, "count", lambda: 1)
    assert MegatronLM.probe(on_cuda) == Ready()


def test_parts_of_a_block_add_up_to_it() -> None:
    """Each part as Megatron computes with it: queries, keys and values head by head, sums of two partial products."""
    plan = PeerPlan(config_of(["model.shape.attention_bias=true"]))
    block = plan.layer(1)
    torch.manual_seed(0)
    with torch.no_grad():
        block.qkv.bias.normal_()
    x = torch.randn(2, 8, 64)
    attended, total = torch.zeros(2, 8, 64), torch.zeros(2, 8, 64)
    for part in range(2):
        weights = renamed({1: block}, range(1, 2), blocks=4, part=part, parts=2, vocabulary=256)
        of_layer = {name.removeprefix("decoder.layers.0."): weight for name, weight in weights.items()}
        mixed = functional.linear(
            block.norm_1(x), *(of_layer[f"self_attention.linear_qkv.{k}"] for k in ("weight", "bias"))
        )
        q, k, v = mixed.view(2, 8, 2, 48).transpose(1, 2).chunk(3, dim=-1)  # [b, heads / 2, s, h / heads] each
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 8, 32)
        attended += functional.linear(heads, of_layer["self_attention.linear_proj.weight"])
        wide = functional.gelu(functional.linear(x, of_layer["mlp.linear_fc1.weight"], of_layer["mlp.linear_fc1.bias"]))
        total += functional.linear(wide, of_layer["mlp.linear_fc2.weight"])
        assert len(of_layer) == 12
    normed = block.qkv(block.norm_1(x)).view(2, 8, 3, 4, 16).permute(2, 0, 3, 1, 4)
    whole = functional.scaled_dot_product_attention(*normed, is_causal=True).transpose(1, 2).reshape(2, 8, 64)
    assert torch.allclose(attended + block.project.bias, block.project(whole), atol=1e-6)
    assert torch.allclose(total + block.narrow.bias, block.narrow(functional.gelu(block.widen(x))), atol=1e-6)


def test_ends_are_split_by_a_padded_vocabulary() -> None:
    plan = PeerPlan(config_of(["model.shape.vocabulary=257"]))
    layers = {number: plan.layer(number) for number in (0, 3, 4, 5)}
    first = renamed(layers, range(1), blocks=4, part=1, parts=2, vocabulary=258)
    rows = first["embedding.word_embeddings.weight"]
    assert torch.equal(rows[:-1], layers[0].token.weight[129:])
    assert not rows[-1].any()
    last = renamed(layers, range(3, 6), blocks=4, part=0, parts=2, vocabulary=258)
    assert torch.equal(last["output_layer.weight"], layers[5].weight[:129])
    assert {name.split(".")[2] for name in last if "layers" in name} == {"0", "1"}, "a stage counts its own blocks"
    layers[5].weight = layers[0].token.weight
    assert "output_layer.weight" not in renamed(layers, (0, 3, 4, 5), blocks=4, part=0, parts=2, vocabulary=258)
