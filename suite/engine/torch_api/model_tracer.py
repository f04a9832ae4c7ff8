"""Symbolic trace of a model's forward, in which the blocks of the model are calls.

torch.fx runs the forward of the root, and of each module that holds a split point, with proxies in place of tensors. It
records every other module as one call, so the forwards of these may contain any code. The trace needs no batch and
computes nothing.

This tracer differs from torch.fx.Tracer in these points:

- A proxy of a tensor is an instance of torch.Tensor for isinstance. A proxy of a size is not.
- Functions that make tensors (torch.arange, torch.zeros, torch.rand) are recorded and not run, also without a proxy
  among their arguments. So a constant is made anew in each pass, and random numbers are drawn in each pass.
- `assert` becomes a call of torch._assert.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from suite.core.errors import InvalidRequest
from suite.engine.random_state import HostRandom, same_draws
from suite.engine.torch_api.structure import OutputStructure, flatten

_SIZED = (torch.zeros, torch.ones, torch.empty, torch.rand, torch.randn)  # they take sizes as separate arguments
_MAKERS = frozenset(
    {
        *(*_SIZED, torch.full, torch.eye, torch.tensor, torch.as_tensor),
        *(torch.arange, torch.linspace, torch.logspace, torch.scalar_tensor, torch.tril_indices, torch.triu_indices),
        *(torch.randint, torch.randperm, torch.normal),
    }
)
_PLAIN_METHODS = frozenset(
    {
        *("size", "dim", "ndimension", "numel", "nelement", "get_device", "__len__", "element_size", "stride"),
        *("storage_offset", "is_floating_point", "is_complex", "is_contiguous", "item", "tolist", "numpy"),
    }
)
_PLAIN_ATTRIBUTES = frozenset(
    {
        *("shape", "ndim", "device", "dtype", "layout", "itemsize", "nbytes", "names"),
        *("is_cuda", "is_cpu", "is_meta", "requires_grad", "is_leaf"),
    }
)
_PLAIN_MODULES = ("_operator", "builtins", "math")
_TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True, slots=True)
class ModelTrace:
    """Trace of a model in one mode.

    Attributes:
        nodes: Nodes of the graph in order, without the output.
        outputs: Nodes of the output's tensors.
        structure: Structure of the output.
        tensors: Parameters, buffers and other tensors that the traced forwards use directly, by name.
    """

    nodes: Sequence[fx.Node]
    outputs: Sequence[fx.Node]
    structure: OutputStructure
    tensors: Mapping[str, torch.Tensor]
    code: str


def is_tensor(node: fx.Node) -> bool:
    """Whether the value of a node is a tensor, and no size, dtype, device or number.

    The output of a module counts as a tensor."""
    if "is_tensor" not in node.meta:  # kept, as each node asks for its inputs
        node.meta["is_tensor"] = _makes_tensor(node)
    return bool(node.meta["is_tensor"])


def _makes_tensor(node: fx.Node) -> bool:
    if node.op in ("placeholder", "get_attr", "call_module"):
        return True
    first = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
    of_tensor = first is not None and is_tensor(first)
    if isinstance(node.target, str):
        return of_tensor and node.target not in _PLAIN_METHODS
    if node.target is getattr:
        return of_tensor and node.args[1] not in _PLAIN_ATTRIBUTES
    if node.target.__name__ in _PLAIN_METHODS:  # as torch.numel
        return False
    module = node.target.__module__
    return module not in _PLAIN_MODULES or (module != "math" and any(map(is_tensor, node.all_input_nodes)))


class _TensorProxy(fx.Proxy):
    """Proxy that is an instance of torch.Tensor, and of no subclass."""

    _is_param = _is_buffer = False  # read by isinstance(..., nn.Parameter) and by assignments to attributes

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return torch.Tensor


class _Tracer(fx.Tracer):
    """Tracer of `model`, whose forward gets the arguments `names`.

    Attributes:
        opened: Names of modules whose forwards are traced; the root's is empty.
        contexts: Gradient and autocast modes at the start.
        entered: Names of the modules whose forwards are running.
        structure: Structure of the output.
        branch: Error that a branch on a traced value has raised, which the user's code may have caught.
    """

    proxy_buffer_attributes = True

    def __init__(self, names: Sequence[str], opened: frozenset[str]) -> None:
        super().__init__(autowrap_functions=_SIZED)  # torch takes proxies of sizes in a tuple only
        self._autowrap_search.append(torch)
        self.names, self.opened = names, opened
        self.contexts = _contexts()
        self.entered = [""]
        self.structure = OutputStructure(None)
        self.branch: Exception | None = None

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """A function of the root and its inputs that returns a flat tuple, and its arguments."""

        def forward(root: nn.Module, *inputs: fx.Proxy) -> tuple[Any, ...]:
            leaves: list[Any] = []
            self.structure = flatten(root(**dict(zip(self.names, inputs, strict=True))), leaves)
            return tuple(leaves)

        return forward, [self.root, *(self.create_proxy("placeholder", name, (), {}) for name in self.names)]

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **named: Any) -> fx.Proxy:
        """Raises TraceError within a context such as torch.no_grad, which torch.fx does not record."""
        if _contexts() != self.contexts:
            raise fx.proxy.TraceError("torch.no_grad, torch.autocast and the like are not recorded")
        return super().create_proxy(kind, target, args, kwargs, *more, **named)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name not in self.opened

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        name = self.path_of_module(m)
        if name not in self.opened:
            return super().call_module(m, forward, args, kwargs)
        self.entered.append(name)
        output = super().call_module(m, forward, args, kwargs)
        self.entered.pop()
        return output

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _TensorProxy(node, self) if is_tensor(node) else fx.Proxy(node, self)

    def create_arg(self, a: Any) -> Any:
        return a.node if isinstance(a, fx.Proxy) else super().create_arg(a)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """True in an `assert`, which is recorded. Raises TraceError elsewhere."""
        frame = inspect.currentframe()
        caller = frame.f_back.f_back if frame is not None and frame.f_back is not None else None
        if caller is None or not _is_assert(caller):
            self.branch = fx.proxy.TraceError("symbolically traced variables cannot be used as inputs to control flow")
            raise self.branch
        place = f"assert in {caller.f_code.co_filename}, line {caller.f_lineno}"
        self.create_proxy("call_function", torch._assert, (obj, place), {})
        return True


def _contexts() -> tuple[bool, ...]:
    autocast = (torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *autocast


class _RecordedMakers(TorchFunctionMode):
    """Context in which functions that make tensors are recorded; it applies to this thread."""

    def __init__(self, tracer: _Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _MAKERS:
            return self.tracer.create_proxy("call_function", func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _is_assert(frame: FrameType) -> bool:
    """Whether a frame computes the condition of an assert statement."""
    tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename)))
    conditions = [node.test for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    return any(test.lineno <= frame.f_lineno <= (test.end_lineno or 0) for test in conditions)


@contextmanager
def _restored(model: nn.Module, names: Iterable[str]) -> Iterator[None]:
    """Context of a trace, after which the attributes of the modules `names` are as before, among them their modes.

    Raises InvalidRequest if a forward assigned an attribute: a layer would not repeat that."""
    before = {name: dict(vars(model.get_submodule(name))) for name in names}
    try:
        yield
        for name, attributes in before.items():
            for key, value in vars(model.get_submodule(name)).items():
                if attributes.get(key) is not value and key != "training" and not key.startswith("_tensor_constant"):
                    raise InvalidRequest(
                        f"model={type(model).__name__}(...), whose forward assigns {f'{name}.{key}'.lstrip('.')}",
                        rule="the forwards of the model and of modules that hold a split point assign no attributes",
                        legal="the assignment in the forward of a submodule, or the value in the output",
                    )
    finally:
        for name, attributes in before.items():
            module = model.get_submodule(name)
            vars(module).clear()
            vars(module).update(attributes)


def hooks_of(module: nn.Module) -> list[str]:
    """Kinds of the hooks that a call of the module runs."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [kind for kind in kinds if vars(module)[kind]]


def _check_hooks(model: nn.Module, opened: Iterable[str]) -> None:
    """Raises InvalidRequest for hooks of modules whose forwards are traced, as no layer calls such a module."""
    for name in sorted(opened):
        if kinds := hooks_of(model.get_submodule(name)):
            described = f"the module {name!r}" if name else type(model).__name__
            raise InvalidRequest(
                f"model={type(model).__name__}(...): {described} has {kinds[0].strip('_').replace('_', ' ')}",
                rule="the model and the modules that hold a split point are cut into layers, and no stage calls them",
                legal="the hook on a block, or a grid of one stage",
            )


def trace_model(model: nn.Module, names: Sequence[str], opened: frozenset[str]) -> dict[bool, ModelTrace]:
    """Traces of a model in training and in evaluation mode, by whether it trains.

    Both are one trace if the traced forwards do the same in both modes. The model does not change.

    Args:
        names: Arguments of the forward that get tensors. Other arguments keep their defaults.
        opened: Names of modules whose forwards are traced, with the root's, which is empty.

    Raises:
        InvalidRequest: torch.fx cannot trace a forward, or the output has another structure in evaluation.
    """
    modules = [model.get_submodule(name) for name in opened]
    _check_hooks(model, opened)
    traces = {}
    with _restored(model, opened):
        for training in (True, False):
            for module in modules:
                module.training = training
            traces[training] = _trace(model, names, opened)
    if traces[True].structure != traces[False].structure:
        raise InvalidRequest(
            f"model={type(model).__name__}(...), whose output has another structure in evaluation than in training",
            rule="the output has one structure in both modes",
            legal="a forward that returns the same dict, tuple or dataclass in both modes",
        )
    return {training: traces[True] if traces[True].code == trace.code else trace for training, trace in traces.items()}


def _trace(model: nn.Module, names: Sequence[str], opened: frozenset[str]) -> ModelTrace:
    tracer, random = _Tracer(names, opened), HostRandom(())
    drawn = random.state()
    try:
        with _RecordedMakers(tracer):
            graph = tracer.trace(model)
        if tracer.branch is not None:
            raise tracer.branch
    except Exception as error:
        raise _untraceable(model, tracer.entered[-1], error) from error
    if not same_draws(random.state(), drawn):
        raise InvalidRequest(
            f"model={type(model).__name__}(...), whose forward draws from the module random or numpy.random",
            rule="the forwards of the model and of modules that hold a split point draw from torch, in each pass anew",
            legal="torch.rand, or the draw in the forward of a submodule",
        )
    nodes = list(graph.nodes)
    for node in nodes:
        node.meta.pop("is_wrapped", None)  # code of such a node registers torch.zeros for every later trace, and fails
    outputs = nodes.pop().args[0]
    tensors = {str(n.target): attrgetter(str(n.target))(model) for n in nodes if n.op == "get_attr"}
    return ModelTrace(nodes, outputs, tracer.structure, tensors, str(graph))


def _untraceable(model: nn.Module, entered: str, error: Exception) -> InvalidRequest:
    """The error for a forward that torch.fx cannot trace, with the line of the user's code that failed."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    own = [frame for frame in frames if not frame.filename.startswith((_TORCH, "<"))]
    place = f" at {own[-1].filename}, line {own[-1].lineno}: {own[-1].line}" if own else ""
    module = model.get_submodule(entered)
    name = f"the module {entered!r} ({type(module).__name__})" if entered else type(model).__name__
    first_line = str(error).partition("\n")[0]
    legal = "split_points= at another depth, the line moved into a submodule, or a list of layers"
    if own and own[-1].filename.endswith("masking_utils.py"):  # of transformers
        legal = (
            "attn_implementation= a function under a name of its own, which makes no mask (examples/finetune_gpt2.py)"
        )
    return InvalidRequest(
        f"model={type(model).__name__}(...): the forward of {name} fails{place} ({type(error).__name__}: {first_line})",
        rule="torch.fx traces the forwards of the model and of modules that hold a split point, so their control flow "
        "depends on no values or sizes of tensors, and they enter no contexts such as torch.no_grad",
        legal=legal,
    )
