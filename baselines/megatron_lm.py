"""Megatron-LM (Narayanan et al., 2021): megatron-core with its GPT, split layers, 1F1B and optimizer.

Layers, messages, order, reductions and steps are Megatron's. The suite provides initial weights, rows and learning
rates, and adds the loss. It runs on CUDA only. Ranks are in the suite's order (suite.core.grid), "tp-cp-ep-pp-dp" in
Megatron: parts of a layer, then stages, then replicas. Embedding and head are split by the vocabulary, which is padded
to a multiple of grid.tensor. Padding takes part in the softmax, so losses equal those of the other systems if
grid.tensor divides the vocabulary. Every weight decays, as in the other systems. By default megatron-core marks biases
and norms (wd_mult=0), and its scheduler, which is not used here, excludes them. `arguments` translates a config to
Megatron's arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import nn

from baselines.common import (
    DefaultGroup,
    PeerPlan,
    bytes_of,
    bytes_of_moments,
    gpt,
    join,
    refuse,
    set_rate,
    suite_rule,
    train_options,
)
from baselines.megatron_weights import renamed
from baselines.tensor_parallel import check_heads
from suite import accelerator
from suite.config.network import KernelForms
from suite.config.plugins import own_settings
from suite.config.protocols import System
from suite.config.run import RunConfig
from suite.core import errors
from suite.core.errors import Broken, InvalidRequest, Unsupported
from suite.core.protocols import Missing, Ready, Value, World
from suite.core.trace import Trace
from suite.engine.optim.lr_schedule import as_rate
from suite.engine.optim.optimizer import SGD, Adam

Option = bool | int | float | str | torch.dtype | dict[str, int]  # of a library's keyword argument


@dataclass(frozen=True, kw_only=True)
class MegatronSettings:
    """Megatron's own keys of `system`; conf/system/megatron_lm.yaml explains them."""

    reduce: Literal["half", "float32"]
    overlap_grad_reduce: bool


def arguments(config: RunConfig) -> dict[str, dict[str, Option]]:
    """A config as keyword arguments of Megatron's functions. Nothing of Megatron is imported.

    Returns:
        Arguments of parallel_state.initialize_model_parallel (`parallel`), TransformerConfig (`transformer`), GPTModel
        (`model`), DistributedDataParallelConfig (`ddp`), OptimizerConfig (`optimizer`), get_megatron_optimizer in
        addition to it (`groups`), and of the result of get_forward_backward_func (`passes`).

    Raises InvalidRequest, or a subclass, for a config that Megatron cannot express.
    """
    check(config)
    grid, settings = config.grid, own_settings(MegatronSettings, config)
    options, shape = train_options(config), gpt(config)
    sizes = {"tensor_model_parallel_size": grid.tensor, "pipeline_model_parallel_size": grid.inter}
    dtype = options.half or torch.float32
    halves: dict[str, Option] = {"fp16": dtype is torch.float16, "bf16": dtype is torch.bfloat16, "params_dtype": dtype}
    recompute: dict[str, Option] = {"recompute_granularity": "full", "recompute_method": "uniform"}
    recompute["recompute_num_layers"] = options.checkpoints or 0
    return {
        "parallel": {**sizes, "order": "tp-cp-ep-pp-dp"},
        "transformer": {
            **sizes,
            **halves,
            **(recompute if options.checkpoints else {}),
            "num_layers": shape.layers,
            "hidden_size": shape.hidden,
            "num_attention_heads": shape.heads,
            "pipeline_dtype": dtype,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        },
        "model": {
            "vocab_size": -(-shape.vocabulary // grid.tensor) * grid.tensor,
            "max_sequence_length": shape.sequence,
            "share_embeddings_and_output_weights": shape.tied,
            "position_embedding_type": "learned_absolute",
        },
        "ddp": {
            "grad_reduce_in_fp32": settings.reduce == "float32",
            "overlap_grad_reduce": settings.overlap_grad_reduce,
        },
        "optimizer": {**halves, **_rule(config), "clip_grad": options.clip or 0.0},
        "groups": {"config_overrides": {}},
        "passes": {
            "num_microbatches": config.microbatches,
            "seq_length": shape.sequence,
            "micro_batch_size": config.batch.microbatch,
        },
    }


def check(config: RunConfig) -> None:
    """Raise InvalidRequest, or a subclass, for a combination that Megatron does not have."""
    refuse(config, dtypes=("float32",))
    own_settings(MegatronSettings, config)
    check_heads(gpt(config).heads, config.grid.tensor)
    errors.refuse(_rules(config), Unsupported)


def _rules(config: RunConfig) -> Iterator[Broken]:
    layers, inter, interval = gpt(config).layers, config.grid.inter, train_options(config).checkpoints or 1
    blocks, rest = divmod(layers, inter)
    stages = max(n for n in range(1, inter + 1) if layers % n == 0)
    what, rule = f"{layers} blocks on {inter} stages, split={config.split}", "the same number of blocks on every stage"
    yield rest or config.split != "even", what, f"Megatron-LM has {rule}", f"grid.inter={stages} split=even"
    pieces = max((n for n in range(1, interval) if blocks % n == 0), default=1)
    what, rule = f"activation_checkpointing={interval} with {blocks} blocks per stage", "pieces of equal size"
    yield blocks % interval, what, f"Megatron-LM recomputes {rule}", f"activation_checkpointing={pieces}"
    kernels, rule = config.kernels != KernelForms(), "Megatron-LM reads no key of the group kernels"
    yield kernels, "megatron_lm with other kernels than its own", rule, "system=axonn"
    dropout, rule = config.model.dropout, "Megatron-LM also drops out embeddings, and the suite's GPT does not"
    yield dropout, f"megatron_lm with model.dropout={dropout}", rule, "model.dropout=0.0"


def _rule(config: RunConfig) -> dict[str, Option]:
    """Optimizer and loss scale as arguments of OptimizerConfig."""
    rule, scaling = suite_rule(config), train_options(config)
    options: dict[str, Option] = {"lr": as_rate(rule.lr)(0), "weight_decay": rule.weight_decay}
    if isinstance(rule, Adam):
        options |= {"optimizer": "adam", "adam_beta1": rule.beta1, "adam_beta2": rule.beta2}
        options |= {"adam_eps": rule.eps, "decoupled_weight_decay": rule.decoupled}
    elif isinstance(rule, SGD) and not rule.dampening:
        options |= {"optimizer": "sgd", "sgd_momentum": rule.momentum}
    else:
        rule_text = "Megatron has AdamW, Adam, and SGD without dampening"
        legal = "optimizer=adamw, or optimizer=sgd with optimizer.dampening=0.0"
        raise Unsupported(f"megatron_lm with optimizer={rule}", rule=rule_text, legal=legal)
    if scaling.half is torch.float16:
        scale = scaling.scale()
        options |= {"initial_loss_scale": scale.start, "min_loss_scale": scale.least}
        options |= {"loss_scale_window": scale.patience, "hysteresis": 1}
    return options


class MegatronLM(System):
    """One rank of Megatron's pipeline on grid.inter stages, grid.tensor parts of every layer and grid.data replicas."""

    settings = MegatronSettings

    @classmethod
    def probe(cls, config: RunConfig) -> Ready | Missing:
        arguments(config)
        if find_spec("megatron") is None or find_spec("megatron.core") is None:
            return Missing("megatron-core is not installed: pip install megatron-core")
        if config.launch.device != "cuda" or not accelerator.count():
            return Missing("megatron-core computes on CUDA alone: a device, and launch.device=cuda")
        return Ready()

    def __init__(self, world: World, config: RunConfig) -> None:
        from megatron.core import parallel_state
        from megatron.core.distributed import (
            DistributedDataParallel,
            DistributedDataParallelConfig,
            finalize_model_grads,
        )
        from megatron.core.models.gpt import GPTModel
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        from megatron.core.pipeline_parallel import get_forward_backward_func
        from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
        from megatron.core.transformer.module import Float16Module
        from megatron.core.transformer.transformer_config import TransformerConfig

        options, self.plan, self.world = arguments(config), PeerPlan(config), world
        self.passes, grid = options["passes"], self.plan.grid
        self.group = DefaultGroup(world, grid)
        self.position = grid.position(world.rank)
        parallel_state.initialize_model_parallel(**options["parallel"])
        model_parallel_cuda_manual_seed(config.seed)  # its attention wants generators, also where nothing is drawn
        transformer = TransformerConfig(**options["transformer"])
        with torch.device(world.device):
            model = GPTModel(
                transformer,
                get_gpt_layer_local_spec(),
                pre_process=self.position.inter == 0,
                post_process=self.position.inter == grid.inter - 1,
                **options["model"],
            )
        padded = options["model"]["vocab_size"]
        assert isinstance(padded, int)
        exact = self._fill(model, padded)
        model.to(world.device)
        inner = Float16Module(transformer, model) if self.plan.options.half else model
        self.model = DistributedDataParallel(transformer, DistributedDataParallelConfig(**options["ddp"]), inner)
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(**options["optimizer"]), [self.model], **options["groups"]
        )
        _unround(self.optimizer, exact)
        transformer.grad_scale_func = self.optimizer.scale_loss
        transformer.finalize_model_grads_func = finalize_model_grads
        if options["ddp"]["overlap_grad_reduce"]:
            transformer.no_sync_func = self.model.no_sync
        self.rate = as_rate(suite_rule(config).lr)
        self.run, self.updates = get_forward_backward_func(), 0

    def train_batch(self, batch: Value) -> float:
        self.model.train()
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        loss = self._pass(batch, forward_only=False)
        set_rate(self.optimizer, self.rate(self.updates))
        applied, _, _ = self.optimizer.step()
        self.updates += bool(applied)
        return loss

    @torch.no_grad()
    def evaluate(self, batches: Sequence[Value]) -> float:
        self.model.eval()
        return sum(self._pass(batch, forward_only=True) for batch in batches) / len(batches)

    def observe(self) -> Trace:
        """An empty trace: Megatron's timers would wait for the device."""
        return Trace()

    def memory(self, batch: Value) -> tuple[float, dict[str, int]]:
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        accelerator.reset_peaks(self.world.device)
        before = accelerator.peaks(self.world.device)["allocated"]
        loss = self.train_batch(batch)
        peak = accelerator.peaks(self.world.device)["allocated"] - before
        stepped = [p for group in self.optimizer.param_groups for p in group["params"]]
        masters = [p for p in stepped if all(p is not weight for weight in weights)]
        bytes_by_kind = {"weights": bytes_of(weights), "gradients": bytes_of(weight.main_grad for weight in weights)}
        if masters:
            bytes_by_kind["masters"] = bytes_of(masters)
        moments = sum(bytes_of_moments(one.optimizer) for one in _each(self.optimizer))
        return loss, {**bytes_by_kind, "moments": moments, "activations": peak}

    def close(self) -> None:
        from megatron.core import parallel_state

        parallel_state.destroy_model_parallel()
        self.group.close()

    def _pass(self, batch: Value, *, forward_only: bool) -> float:
        """Run all microbatches of a batch. Returns its mean loss, on every rank."""

        def forward(rows: Iterator[tuple[torch.Tensor, ...]], model: nn.Module) -> Any:
            tokens, targets = (part.to(self.world.device) for part in next(rows))
            places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
            return model(tokens, places, None, labels=targets), mean

        def mean(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            loss = losses.float().mean()
            return loss, {"loss": loss.detach().clone()}  # Megatron divides the loss where it lies

        inputs, targets = (self.plan.rows(part, self.position.data) for part in batch)
        rows = iter(list(zip(inputs, targets, strict=True)))
        outputs = self.run(
            forward_step_func=forward, data_iterator=rows, model=[self.model], forward_only=forward_only, **self.passes
        )
        mean_loss = float(torch.stack([one["loss"] for one in outputs]).double().mean()) if outputs else 0.0
        share = mean_loss / (self.plan.grid.data * self.plan.grid.tensor)
        return self.world.all_reduce_numbers([share], "sum", lambda: None)[0]

    @torch.no_grad()
    def _fill(self, model: nn.Module, vocabulary: int) -> dict[int, torch.Tensor]:
        """Fill this rank's weights with its part of the common initial weights; a bias that the network lacks stays
        zero.

        Returns them, by the id of Megatron's weight, before Megatron's half precision rounds them.
        """
        plan, tensor = self.plan, self.plan.grid.tensor
        part, own_layers = self.world.rank % tensor, plan.split[self.position.inter]
        layers = {number: plan.layer(number) for number in {*own_layers, *(tie[0] for tie in plan.ties)}}
        join(layers, plan.ties)
        renamed_weights = renamed(
            layers, own_layers, blocks=len(plan.makers) - 2, part=part, parts=tensor, vocabulary=vocabulary
        )
        exact = {}
        for name, weight in model.named_parameters():
            if name in renamed_weights:
                exact[id(weight)] = renamed_weights.pop(name)
                weight.copy_(exact[id(weight)])
            else:
                weight.zero_()
                weight.requires_grad_(False)
        if renamed_weights:
            raise InvalidRequest(
                f"megatron-core has no weights named {', '.join(renamed_weights)}",
                rule="the initial weights are copied by the weight names of megatron-core 0.16",
            )
        return exact


def _each(optimizer: Any) -> list[Any]:
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))


@torch.no_grad()
def _unround(optimizer: Any, exact: Mapping[int, torch.Tensor]) -> None:
    """Copy the exact initial weights into the master weights, which Megatron initializes from rounded weights."""
    for one in _each(optimizer):
        groups = getattr(one, "float16_groups", ())  # of Float16OptimizerWithFloat16Params
        for halves, masters in zip(groups, one.fp32_from_float16_groups if groups else (), strict=True):
            for half, master in zip(halves, masters, strict=True):
                if id(half) in exact:
                    master.copy_(exact[id(half)])
