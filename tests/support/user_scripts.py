"""Training scripts of the kinds that people write: a table of one of each kind, and random ones."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from tests.support.plain import Script, mean_square, rows, sgd

WIDTH, TOKENS = 4, 6
Between = Callable[[nn.Module, int], None]


def seeded(make: Callable[..., nn.Module], seed: int, *args: Any, **more: Any) -> nn.Module:
    torch.manual_seed(seed)
    return make(*args, **more).double()


def linear(seed: int = 0, outputs: int = WIDTH) -> nn.Module:
    return seeded(nn.Linear, seed, WIDTH, outputs)


def two() -> nn.Sequential:
    return nn.Sequential(linear(0), linear(1))


def tokens(count: int = 4, size: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    draw = partial(torch.randint, 0, TOKENS, (size, 3), generator=generator)
    return [(draw(), draw()) for _ in range(count)]


def token_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


# -- modules ---------------------------------------------------------------------------------------------------------


class ResidualChain(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


class Doubling(nn.ModuleList):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in self:
            x = 2 * module(x)
        return x


class Blocks(nn.Module):
    """Blocks in a list, a scale that the forward reads, and a buffer that it may write."""

    def __init__(self, *blocks: nn.Module, running: bool = False) -> None:
        super().__init__()
        self.tau, self.running, self.blocks = 1.0, running, nn.ModuleList(blocks)
        self.register_buffer("mean", torch.zeros(WIDTH, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks[0](x)
        if self.running:
            self.mean.mul_(0.5).add_(0.5 * x.detach().mean(0))
        for block in self.blocks[1:]:
            x = block(x)
        return self.tau * x + self.mean


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok, self.body = seeded(nn.Embedding, 0, TOKENS, WIDTH), nn.ModuleList([linear(1), linear(2)])
        self.head = seeded(nn.Linear, 3, WIDTH, TOKENS, bias=False)
        self.head.weight = self.tok.weight  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tok(x)
        for block in self.body:
            h = h + torch.tanh(block(h))
        logits: torch.Tensor = self.head(h)
        return logits


class Layer(nn.Module):
    """A linear layer whose forward does what `what` says."""

    def __init__(self, what: str = "", seed: int = 0) -> None:
        super().__init__()
        self.linear, self.other = linear(seed), linear(seed + 50)
        self.what, self.turn, self.tau, self.aux = what, 0, 1.0, torch.zeros(())
        self.draws = random.Random(seed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        match self.what:
            case "turns":
                return (self.other if self.turn % 2 else self.linear)(x) + 0 * x  # type: ignore[no-any-return]
            case "in place":
                x.mul_(2.0)
            case "random":
                x = x * (2.0 if random.random() < 0.5 else 1.0)
            case "own random":
                x = x * (2.0 if self.draws.random() < 0.5 else 1.0)
            case "complex":
                x = torch.complex(x, x)
                return self.linear(x.real * 0.5 + x.imag)  # type: ignore[no-any-return]
        h: torch.Tensor = self.linear(x) + 0 * self.other.weight.sum() + 0 * self.other.bias.sum()
        if self.what == "aux":
            self.aux = 0.1 * (h**2).mean()
        return self.tau * h


class Complex(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(WIDTH, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x if x.is_complex() else torch.complex(x, x))


class Real(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.real + 0.5 * x.imag


# -- what a script does between batches --------------------------------------------------------------------------------


def clamp(model: nn.Module, number: int, *, data: bool = False) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            (weight.data if data else weight).clamp_(-0.3, 0.3)


def saliency(model: nn.Module, number: int) -> None:
    if number % 2:
        model(torch.ones(2, WIDTH, dtype=torch.float64)).sum().backward()


def thaw(model: nn.Module, number: int) -> None:
    for weight in list(model.parameters())[:1]:
        weight.requires_grad_(number != 1)


def anneal(model: nn.Module, number: int) -> None:
    for module in model.modules():
        if "tau" in vars(module):
            module.tau = 1.0 / (1 + number)
        if "turn" in vars(module):
            module.turn = number


def seed_host(model: nn.Module, number: int) -> None:
    random.seed(number)


def modes(model: nn.Module, number: int) -> None:
    model.train(number % 2 == 0)


# -- optimizers ------------------------------------------------------------------------------------------------------


class Clipping(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.1)
        return super().step(closure)


def by_name(weights: Any, *, part: str = "0") -> torch.optim.Optimizer:
    named = dict(weights.named_parameters())
    chosen = [weight for name, weight in named.items() if part in name]
    rest = [weight for name, weight in named.items() if part not in name]
    return torch.optim.SGD([{"params": chosen, "lr": 0.2}, {"params": rest, "weight_decay": 0.5}], lr=0.05)


def by_position(weights: Any) -> torch.optim.Optimizer:
    listed = list(weights.parameters())
    return torch.optim.SGD([{"params": listed[:2], "lr": 0.2}, {"params": listed[2:]}], lr=0.02)


def with_hook(weights: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(weights.parameters(), lr=0.1)

    def halve(optimizer: torch.optim.Optimizer, *more: Any) -> None:
        for weight in optimizer.param_groups[0]["params"]:
            if weight.grad is not None:
                weight.grad.mul_(0.5)

    optimizer.register_step_pre_hook(halve)
    return optimizer


def of_class(kind: type[torch.optim.Optimizer], **settings: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda weights: kind(weights.parameters(), **settings)


# -- the kinds ---------------------------------------------------------------------------------------------------------


def hooked(kind: str) -> nn.Module:
    model = two()
    if kind == "forward":
        model.register_forward_hook(lambda module, inputs, output: 2 * output)
    else:
        model.register_full_backward_hook(lambda module, inputs, outputs: None)
    return model


def reading(make: Callable[[], nn.Module], extra: Callable[[nn.Module], Any]) -> Script:
    """A script whose loss reads the model itself."""
    models: list[nn.Module] = []

    def made() -> nn.Module:
        models[:] = [make()]
        return models[0]

    return Script(made, loss=lambda output, target: mean_square(output, target) + extra(models[0]))


def penalty(model: nn.Module) -> Any:
    return 0.1 * sum((weight**2).sum() for weight in model.parameters())


def clamp_head(model: nn.Module, number: int) -> None:
    with torch.no_grad():
        model.head.weight.clamp_(-0.3, 0.3)  # type: ignore[union-attr, operator]


def pruned() -> nn.Module:
    model = two()
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    return model


ALL, NONE = ["1x1", "2x1", "1x2", "2x2"], list[str]()
ADAMW = of_class(torch.optim.AdamW, lr=0.01, weight_decay=0.5)
# scripts that random_script does not draw: the grids that refuse them, and words of the refusal; others have its losses
KINDS: dict[str, tuple[Script, Sequence[str], str]] = {
    "forward hook of the model": (Script(partial(hooked, "forward")), ["2x1", "2x2"], "has forward hooks"),
    "backward hook of the model": (Script(partial(hooked, "backward")), ["2x1", "2x2"], "has backward hooks"),
    "groups by name": (
        Script(
            lambda: nn.Sequential(OrderedDict(stem=linear(0), head=linear(1))), optimizer=partial(by_name, part="stem")
        ),
        NONE,
        "",
    ),
    "groups of a tie": (
        Script(Tied, loss=token_loss, batches=tokens(), optimizer=partial(by_name, part="tok")),
        NONE,
        "",
    ),
    "tie clamped": (Script(Tied, loss=token_loss, batches=tokens(), between=clamp_head), NONE, ""),
    "complex recomputed": (
        Script(
            lambda: nn.Sequential(Complex(0), Complex(1), Real(), linear(2)), options={"activation_checkpointing": 1}
        ),
        NONE,
        "",
    ),
    "loss reads weights": (reading(two, penalty), ["2x1", "1x2", "2x2"], "reads the weight"),
    "loss reads a result": (
        reading(lambda: nn.Sequential(Layer("aux"), linear(1)), lambda model: model[0].aux),  # type: ignore[index]
        ALL,
        "",
    ),
    "buffer of two stages": (
        Script(lambda: Blocks(linear(0), linear(1), running=True)),
        ["2x1", "2x2"],
        "buffer of several stages",
    ),
    "weight without gradient, AdamW": (
        Script(lambda: nn.Sequential(Layer("turns"), linear(2)), between=anneal, optimizer=ADAMW),
        NONE,
        "",
    ),
    "weight without gradient, buckets": (
        Script(
            lambda: nn.Sequential(Layer("turns"), linear(2)),
            between=anneal,
            optimizer=ADAMW,
            options={"bucket_numel": 8},
        ),
        ALL,
        "without a gradient",
    ),
    "requires_grad": (Script(two, between=thaw), ALL, "requires_grad of the weight 0.weight"),
    "attribute of a traced forward": (
        Script(lambda: Blocks(linear(0), linear(1)), between=anneal),
        ALL,
        "the attribute tau",
    ),
    "forward writes a weight": (
        Script(
            lambda: nn.Sequential(seeded(nn.Embedding, 0, TOKENS, WIDTH, max_norm=1.0), linear(1, TOKENS)),
            loss=token_loss,
            batches=tokens(),
        ),
        ["2x1", "1x2", "2x2"],
        "which a forward writes",
    ),
    "clipping inside a step": (
        Script(two, optimizer=lambda weights: Clipping(weights.parameters(), lr=0.1)),
        ["2x1", "2x2"],
        "depends on other weights",
    ),
    "hook of the step, buckets": (
        Script(two, optimizer=with_hook, options={"bucket_numel": 8}),
        ALL,
        "hooks of its step",
    ),
    "random of Python": (
        Script(lambda: nn.Sequential(Layer("random"), linear(1)), between=seed_host),
        ["2x1", "1x2", "2x2"],
        "draws from random",
    ),
    "random of Python, recomputed": (
        Script(
            lambda: nn.Sequential(Layer("random"), linear(1)),
            between=seed_host,
            options={"activation_checkpointing": 1},
        ),
        ["2x1", "1x2", "2x2"],
        "draws from random",
    ),
    "write to an input, recomputed": (
        Script(lambda: nn.Sequential(linear(1), Layer("in place")), options={"activation_checkpointing": 1}),
        NONE,
        "",
    ),
    "root of a mean": (
        Script(two, loss=lambda output, target: mean_square(output, target).sqrt()),
        ALL,
        "a mean whose microbatches",
    ),
    "pruned by torch": (Script(pruned), ["1x2", "2x2"], "deepcopy cannot copy"),
    "stage without weights": (
        Script(
            lambda: nn.Sequential(linear(0), nn.Tanh()),
            optimizer=lambda weights: torch.optim.Adam([w for _, w in weights.named_parameters()], lr=0.1),
        ),
        NONE,
        "",
    ),
}


# -- random scripts ----------------------------------------------------------------------------------------------------


RARE = {"aux", "own random", "thaw", "anneal", "root", "clipping", "hook", "running blocks"}


def random_script(seed: int) -> tuple[Script, str]:
    """A script of random parts, and its description. Parts that some grid refuses are rare."""
    rng = random.Random(seed)
    parts: list[str] = []

    def pick(options: dict[str, Any]) -> Any:
        (name,) = rng.choices(list(options), [0.1 if name in RARE else 1.0 for name in options])
        parts.append(name)
        return options[name]

    blocks = {
        "linear": linear,
        "tanh": lambda seed: nn.Sequential(linear(seed), nn.Tanh()),
        "relu": lambda seed: nn.Sequential(linear(seed), nn.ReLU(inplace=True)),
        "leaf relu": lambda seed: nn.ReLU(inplace=True),
        "norm": lambda seed: seeded(nn.LayerNorm, seed, WIDTH),
        "layer": lambda seed: Layer("", seed),
        "turns": lambda seed: Layer("turns", seed),
        "in place": lambda seed: Layer("in place", seed),
        "complex": lambda seed: Layer("complex", seed),
        "aux": lambda seed: Layer("aux", seed),
        "own random": lambda seed: Layer("own random", seed),
        "residual": lambda seed: ResidualChain(linear(seed), nn.Tanh()),
        "parametrized": lambda seed: parametrizations.weight_norm(linear(seed)),
        "batch norm": lambda seed: seeded(nn.BatchNorm1d, seed, WIDTH, momentum=None, track_running_stats=False),
    }
    containers: dict[str, Callable[[list[nn.Module]], nn.Module]] = {
        "sequential": lambda modules: nn.Sequential(*modules),
        "named": lambda modules: nn.Sequential(OrderedDict((f"part{n}", module) for n, module in enumerate(modules))),
        "residual container": lambda modules: ResidualChain(*modules),
        "list container": Doubling,
        "blocks": lambda modules: Blocks(*modules),
        "running blocks": lambda modules: Blocks(*modules, running=True),
    }
    makers = [partial(pick(blocks), 10 * number + rng.randrange(9)) for number in range(rng.randint(2, 4))]
    container = pick(containers)
    frozen = rng.random() < 0.2
    parts += ["frozen"] if frozen else []

    def make() -> nn.Module:
        model = container([maker() for maker in makers])
        if frozen:
            for weight in list(model.parameters())[:1]:
                weight.requires_grad_(requires_grad=False)
        return model

    between = pick(
        {
            "nothing": lambda model, number: None,
            "clamp": clamp,
            "clamp data": partial(clamp, data=True),
            "saliency": saliency,
            "thaw": thaw,
            "anneal": anneal,
            "modes": modes,
        }
    )
    loss = pick(
        {
            "mean square": mean_square,
            "absolute": nn.functional.l1_loss,
            "huber": nn.HuberLoss(),
            "root": lambda output, target: mean_square(output, target).sqrt(),
        }
    )
    optimizer = pick(
        {
            "sgd": of_class(torch.optim.SGD, lr=0.05),
            "momentum": sgd,
            "nesterov": of_class(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
            "adam": of_class(torch.optim.Adam, lr=0.01),
            "adamw": ADAMW,
            "rmsprop": of_class(torch.optim.RMSprop, lr=0.01, momentum=0.5),
            "adagrad": of_class(torch.optim.Adagrad, lr=0.05, initial_accumulator_value=0.1),
            "by name": by_name,
            "by position": by_position,
            "clipping": lambda weights: Clipping(weights.parameters(), lr=0.1),
            "hook": with_hook,
        }
    )
    options: dict[str, Any] = {}
    if rng.random() < 0.3:
        options["activation_checkpointing"] = 1
    if rng.random() < 0.03:
        options["bucket_numel"] = 8
    script = Script(
        make,
        loss=loss,
        optimizer=optimizer,
        batches=rows(count=3, seed=seed),
        microbatch=rng.choice([2, 4]),
        between=between,
        options=options,
    )
    return script, ", ".join([*parts, *(f"{name}={value}" for name, value in options.items())])
