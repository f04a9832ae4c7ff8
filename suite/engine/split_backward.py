"""Split backward pass: input gradients first, gradients of linear layers and convolutions later.

Zero Bubble Pipeline Parallelism (arXiv 2401.10241, Section 2) splits a backward pass into two ops. Op I makes the
gradient of the stage's input, which the previous stage waits for. Op W makes the gradients of the weights, which only
the update waits for.

The split works on the graph that autograd has recorded. Modules, forward passes and whole backward passes stay as they
are. Op I runs the graph without the weight gradients of the deferred products, and keeps the input of each product and
the gradient of its output. Op W multiplies the two with torch's own formulas, and hands the results to the nodes
between the product and the weight. Autograd itself then sums, calls hooks on weights and accumulates, as in a whole
backward pass, and `.grad` has the same bits.

A product is deferred only under these conditions. Op I makes all other gradients.

  * Its node is `addmm`, `mm` (both of torch.nn.functional.linear) or a convolution. Its weight and bias are leaves, or
    transposes of leaves, and its input requires a gradient.
  * The pass uses the weight and the bias in such products only, and at most twice: two terms have one sum in either
    order, three do not.
  * No saved-tensor hook would recompute or move the saved input (torch.utils.checkpoint).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from suite.core.errors import InvalidRequest, Unsupported

_MOST_USES = 2  # of a deferred weight in one pass
_CALL_BYTES = 1 << 20  # of dense gradients per call of autograd, which costs some 10 us; a larger one has its own call
_LEAF, _TRANSPOSE, _REENTRANT_CHECKPOINT = "AccumulateGrad", "TBackward0", "CheckpointFunctionBackward"
# Packages and classes that take or make weight gradients within the backward pass: wrappers of torch, layers of
# Megatron-LM and its descendants, and weights that may need messages for each gradient.
_WITHIN_BACKWARD = {
    *(("torch", name) for name in ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DTensor")),
    *((package, f"{by}ParallelLinear") for package in ("megatron", "apex", "fairscale") for by in ("Column", "Row")),
}

Edge = tuple[Node | None, int]  # an entry of Node.next_functions


class _Target(NamedTuple):
    """Edge along which the gradient of a parameter leaves a product, and the node that adds it to `.grad`."""

    edge: GradientEdge
    leaf: Node


class _Product:
    """Owed gradients of the weight, and of the bias, of one product.

    Attributes:
        targets: Target of the weight, and of the bias if it is trained.
        input: Input of the product.
        output_gradient: Gradient of the product's output, from op I; None if the graph gives it none.
        ran: Whether op I has run the node of the product.
    """

    def __init__(self, targets: Sequence[_Target], saved: torch.Tensor) -> None:
        self.targets, self.input = targets, saved.detach()  # without the graph that leads to the input
        self.output_gradient: torch.Tensor | None = None
        self.ran = False
        self._versions = [self.input._version]

    def receive(self, output_gradients: Sequence[torch.Tensor | None]) -> None:
        """Prehook of the product's node."""
        self.ran, self.output_gradient = True, output_gradients[0]
        if self.output_gradient is not None:
            self._versions.append(self.output_gradient._version)

    def held(self) -> list[torch.Tensor]:
        """Tensors that live until op W."""
        return [self.input, *([] if self.output_gradient is None else [self.output_gradient])]

    def gradients(self) -> Sequence[torch.Tensor | None]:
        """Gradients for `targets`. Raises InvalidRequest if a held tensor was changed in place."""
        if self.output_gradient is None:
            return [None] * len(self.targets)
        if [tensor._version for tensor in self.held()] != self._versions:
            raise InvalidRequest(
                f"an in-place change of the input {tuple(self.input.shape)} of a layer, or of its output's gradient",
                rule="op W still reads both after op I",
                legal="an operation that returns a new tensor, or a schedule with whole backward passes",
            )
        return self._multiply(self.output_gradient)

    def _multiply(self, output_gradient: torch.Tensor) -> Sequence[torch.Tensor]:
        raise NotImplementedError


class _MatrixProduct(_Product):
    """`input @ matrix`, and an added bias. The formula is `mm_mat2_grad` of torch/csrc/autograd/FunctionsManual.cpp."""

    def __init__(self, node: Any, targets: Sequence[_Target], saved: torch.Tensor) -> None:
        super().__init__(targets, saved)
        (rows, _), strides = node._saved_mat2_sym_sizes, node._saved_mat2_sym_strides
        self.column_major = strides[0] == 1 and strides[1] == rows

    def _multiply(self, output_gradient: torch.Tensor) -> Sequence[torch.Tensor]:
        if self.column_major:
            matrix = output_gradient.t().mm(self.input).t()
        else:
            matrix = self.input.t().mm(output_gradient)
        return [matrix, *(output_gradient.sum_to_size(_variable(bias.leaf).shape) for bias in self.targets[1:])]


class _ConvolutionProduct(_Product):
    """A convolution, transposed or not, of any number of dimensions."""

    def __init__(self, node: Any, targets: Sequence[_Target], saved: torch.Tensor) -> None:
        super().__init__(targets, saved)
        self.arguments = (
            node._saved_bias_sym_sizes_opt,
            node._saved_stride,
            node._saved_padding,
            node._saved_dilation,
            node._saved_transposed,
            node._saved_output_padding,
            node._saved_groups,
        )

    def _multiply(self, output_gradient: torch.Tensor) -> Sequence[torch.Tensor]:
        weight = _variable(self.targets[0].leaf)  # its values are not read
        mask = [False, True, len(self.targets) == 2]
        made = torch.ops.aten.convolution_backward(output_gradient, self.input, weight, *self.arguments, mask)
        return [gradient for gradient in made if gradient is not None]


class _ProductNode(NamedTuple):
    """Form of the nodes of one kind of product.

    Attributes:
        saved: Name of the saved input.
        input, weight, bias: Positions in `next_functions`; None for a product without bias.
    """

    product: type[_MatrixProduct | _ConvolutionProduct]
    saved: str
    input: int
    weight: int
    bias: int | None


_PRODUCT_NODES = {
    "AddmmBackward0": _ProductNode(_MatrixProduct, "mat1", 1, 2, 0),
    "MmBackward0": _ProductNode(_MatrixProduct, "self", 0, 1, None),
    "ConvolutionBackward0": _ProductNode(_ConvolutionProduct, "input", 0, 1, 2),
}


def _product(node: Any, form: _ProductNode) -> _Product | None:
    """The product of a node; None if its own form excludes deferral."""
    edges = node.next_functions
    if edges[form.input][0] is None or edges[form.weight][0] is None:
        return None
    if form.saved == "mat1" and (node._saved_alpha != 1 or node._saved_beta != 1):
        return None
    targets = [_target(edges[form.weight])]
    if form.bias is not None and edges[form.bias][0] is not None:
        targets.append(_target(edges[form.bias]))
    known = [target for target in targets if target is not None]
    if len(known) < len(targets) or getattr(node, f"_raw_saved_{form.saved}").unpack_hook is not None:
        return None
    saved = getattr(node, f"_saved_{form.saved}")
    return form.product(node, known, saved) if _is_plain(saved) else None


def _target(edge: Edge) -> _Target | None:
    """The target at the end of an edge; None unless the edge leads to a leaf or to the transpose of one."""
    node, number = edge
    assert node is not None
    leaf = node.next_functions[0][0] if _name(node) == _TRANSPOSE else node
    if leaf is None or _name(leaf) != _LEAF or not _is_plain(_variable(leaf)):
        return None
    return _Target(GradientEdge(node, number), leaf)


def _name(node: Node) -> str:
    return type(node).__name__  # as node.name(), in half the time


def _variable(leaf: Any) -> torch.Tensor:
    """The tensor to whose `.grad` the node `leaf` adds."""
    variable: torch.Tensor = leaf.variable
    return variable


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether torch's formulas for dense real tensors apply; a subclass may have others."""
    known = type(tensor) is torch.Tensor or type(tensor) is nn.Parameter
    return known and tensor.layout is torch.strided and tensor.is_floating_point()


def _edges_into(roots: Sequence[Node]) -> dict[Node, int]:
    """Number of edges into each node of a graph, counting one for each root."""
    edges: dict[Node, int] = {}
    ends: list[Node | None] = list(roots)
    while ends:
        node = ends.pop()
        if node is None:
            continue
        count = edges.get(node, 0)
        edges[node] = count + 1
        if not count:
            ends += [end for end, _ in node.next_functions]
    return edges


class _Plan(NamedTuple):
    """Division of a graph's gradients between ops I and W.

    Attributes:
        deferred: Products of op W and their nodes, in the order in which a backward pass runs them.
        leaves: Leaves whose gradients op I makes; None if the graph hides some.
    """

    deferred: list[tuple[Node, _Product]]
    leaves: list[Node] | None


def _plan(roots: Sequence[Node]) -> _Plan:
    edges = _edges_into(roots)
    products: dict[Node, _Product] = {}
    leaves: list[Node] = []
    for node in edges:
        name = _name(node)
        if name == _LEAF:
            leaves.append(node)
        elif (form := _PRODUCT_NODES.get(name)) is not None:
            product = _product(node, form)
            if product is not None:
                products[node] = product
        elif name == _REENTRANT_CHECKPOINT:  # its own backward pass refuses to be part of op I
            return _Plan([], None)
    deferred_leaves = _drop_mixed(products, edges)
    order = sorted(products.items(), key=lambda item: item[0]._sequence_nr(), reverse=True)
    return _Plan(order, [leaf for leaf in leaves if leaf not in deferred_leaves])


def _drop_mixed(products: dict[Node, _Product], edges: Mapping[Node, int]) -> set[Node]:
    """Drop products until each remaining leaf is used by remaining products alone. Returns these leaves.

    Args:
        edges: Number of edges into each node of the graph.
    """
    while True:
        terms: dict[Node, int] = {}  # products of each leaf
        known: dict[Node, int] = {}  # edges into leaves and transposes that come from products
        for product in products.values():
            for edge, leaf in product.targets:
                terms[leaf] = terms.get(leaf, 0) + 1
                if edge.node is not leaf and edge.node not in known:
                    known[leaf] = known.get(leaf, 0) + 1
                known[edge.node] = known.get(edge.node, 0) + 1
        mixed = {node for node, count in known.items() if count != edges[node]}
        mixed |= {leaf for leaf, count in terms.items() if count > _MOST_USES}
        if not mixed:
            return set(terms)
        for node, product in list(products.items()):
            if any(edge.node in mixed or leaf in mixed for edge, leaf in product.targets):
                del products[node]


class OwedGradients:
    """Weight gradients that the microbatches of a stage owe between their ops I and W.

    Attributes:
        products: Products of each microbatch, by its index: those of one graph after another.
        leaves: Owed gradients of each leaf.
    """

    def __init__(self) -> None:
        self.products: dict[int, deque[deque[_Product]]] = {}
        self.leaves: Counter[Node] = Counter()

    def open(self, index: int) -> None:
        """Begin op I of a microbatch, which may have several graphs or none."""
        self.products[index] = deque()

    def backward(self, index: int, outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
        """Add the gradients of op I of a graph to `.grad`, and owe the others.

        Owed gradients are paid first if op I adds to one of their leaves, because sums keep the order of passes."""
        deferred, leaves = _plan([get_gradient_edge(output).node for output in outputs])
        if leaves is None or not self.leaves.keys().isdisjoint(leaves):
            for passes in self.products.values():
                self._pay(passes)
        if not deferred:
            torch.autograd.backward(outputs, gradients)
            return
        assert leaves, "the input of a deferred product has a gradient, which leads to a leaf"
        for node, product in deferred:
            node.register_prehook(product.receive)
        torch.autograd.backward(outputs, gradients, inputs=[GradientEdge(leaf, 0) for leaf in leaves])
        products = deque(product for _, product in deferred)
        assert all(product.ran for product in products)
        self.products[index].append(products)
        self.leaves.update(_leaves(products))

    def pay(self, index: int) -> None:
        """Add what a microbatch owes to `.grad`: op W. The check of a schedule puts it after op I."""
        self._pay(self.products[index])
        del self.products[index]

    def _pay(self, passes: deque[deque[_Product]]) -> None:
        """Add the owed gradients of graphs to `.grad`, and free the tensors of each product once it is multiplied."""
        while passes:
            products = passes.popleft()
            self.leaves -= Counter(_leaves(products))  # drops leaves without a gradient that is owed
            _accumulate(products)


def _leaves(products: Iterable[_Product]) -> list[Node]:
    """Leaf of each owed gradient."""
    return [target.leaf for product in products for target in product.targets]


@torch.no_grad()
def _accumulate(products: deque[_Product]) -> None:
    """Multiply the products of one graph, and add the gradients to `.grad`. Empties `products`."""
    missing = Counter(_leaves(products))
    waiting: dict[Node, list[tuple[GradientEdge, torch.Tensor]]] = {}  # one call adds all terms of a leaf
    ready: list[tuple[GradientEdge, torch.Tensor]] = []
    size = 0
    while products:
        product = products.popleft()
        for (edge, leaf), gradient in zip(product.targets, product.gradients(), strict=True):
            missing[leaf] -= 1
            if gradient is not None:
                waiting.setdefault(leaf, []).append((edge, gradient))
                size += gradient.nbytes
            if not missing[leaf]:
                ready += waiting.pop(leaf, ())
        if ready and (size >= _CALL_BYTES or not products):
            torch.autograd.backward([edge for edge, _ in ready], [gradient for _, gradient in ready])
            ready, size = [], 0


def check_splittable(modules: Iterable[nn.Module]) -> None:
    """Raises Unsupported for modules whose weight gradients cannot be deferred to op W: see _WITHIN_BACKWARD."""
    for module in modules:
        for each in (module, *module.parameters(recurse=False)):
            for kind in type(each).__mro__:
                if (kind.__module__.partition(".")[0], kind.__name__) in _WITHIN_BACKWARD:
                    raise Unsupported(
                        f"a split backward pass of {type(module).__name__}, with a {kind.__module__}.{kind.__name__}",
                        rule="it makes or reduces weight gradients within the backward pass, before op W",
                        legal="torch.nn.Linear with weights that one rank holds whole, the module without its "
                        "wrapper, or a schedule with whole backward passes",
                    )
