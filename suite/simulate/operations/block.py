"""Kernels of a transformer block, of the language head and of the loss, per microbatch and device.

Forward passes list the kernels one by one. A backward pass has two products for each product of the forward pass and
moves twice the bytes of its element-wise kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, reduce
from math import ceil
from operator import add

from suite.simulate.operations.collectives import SpacedRanks, all_reduce_seconds, gather_seconds
from suite.simulate.operations.kernels import DeviceRates, MatrixProduct
from suite.simulate.operations.setup import FLASH, TrainingSetup

CAUSAL = 0.5  # share of the scores that a flash kernel computes
FLASH_BACKWARD = 2.5  # products of a backward pass of flash attention over those of a forward pass: one is repeated
HALF, FULL = 2, 4  # bytes of an entry in half precision, for which constants of a generation hold, and in single
DROPOUT = 5.0  # bytes per entry: read, write, and a mask
ACCUMULATED = 8.0  # bytes per entry of a single-precision gradient that is added to: read and written
PADDED = 128  # entries of which a vocabulary is a multiple on each rank


@dataclass(frozen=True, slots=True)
class BlockTimes:
    """Seconds of a forward pass, an input gradient and a weight gradient of one microbatch."""

    forward: float
    input: float
    weight: float

    @property
    def backward(self) -> float:
        return self.input + self.weight

    def __add__(self, other: BlockTimes) -> BlockTimes:
        return BlockTimes(self.forward + other.forward, self.input + other.input, self.weight + other.weight)

    def __mul__(self, factor: float) -> BlockTimes:
        return BlockTimes(self.forward * factor, self.input * factor, self.weight * factor)


NOTHING = BlockTimes(0.0, 0.0, 0.0)


class BlockKernels:
    """Kernels of one block, the embedding, the head and the loss of a setup."""

    def __init__(self, setup: TrainingSetup) -> None:
        self.setup, self.device = setup, DeviceRates(setup.machine, setup.generation)
        self.weight_rates = DeviceRates(setup.machine, setup.generation, share=setup.generation.sparse)
        self.tensor = SpacedRanks(setup.tensor)

    # -- products ----------------------------------------------------------------------------------------------------

    @cached_property
    def products(self) -> tuple[MatrixProduct, ...]:
        """Products with weights in the forward pass of a block."""
        model, tensor, tokens = self.setup.model, self.setup.tensor, self.setup.tokens
        h, f = model.hidden, model.ffn
        return (
            MatrixProduct(tokens, (h + 2 * model.key_width) / tensor, h),
            MatrixProduct(tokens, h, h / tensor),
            MatrixProduct(tokens, (2 * f if model.gated else f) / tensor, h),
            MatrixProduct(tokens, h, f / tensor),
        )

    def _gradients(self, product: MatrixProduct) -> tuple[MatrixProduct, MatrixProduct]:
        """The products of the input gradient and of the weight gradient."""
        adds = ACCUMULATED if self.setup.sharding != "parameters" else 2.0
        return (
            MatrixProduct(product.rows, product.depth, product.columns, precision=product.precision),
            MatrixProduct(product.columns, product.depth, product.rows, result_bytes=adds, precision=product.precision),
        )

    def _seconds(self, product: MatrixProduct) -> float:
        return self.device.product(product, self.setup.precision)

    @cached_property
    def weights(self) -> BlockTimes:
        """Products with weights."""
        forward, precision = self.products, self.setup.precision
        groups = (forward, *zip(*map(self._gradients, forward), strict=True))
        # in order: the built-in sum rounds otherwise from Python 3.12 on
        return BlockTimes(
            *(reduce(add, (self.weight_rates.product(each, precision) for each in group)) for group in groups)
        )

    # -- attention ---------------------------------------------------------------------------------------------------

    @property
    def scores(self) -> float:
        """Attention scores of a microbatch on one device."""
        setup = self.setup
        return setup.microbatch * setup.model.sequence**2 * setup.model.heads / setup.tensor / setup.context

    @cached_property
    def attention(self) -> tuple[float, float]:
        """Seconds of attention in a forward pass, and in a backward pass, without recomputation."""
        setup, model = self.setup, self.setup.model
        width = model.hidden / model.heads
        if setup.attention in FLASH:
            flops = 4 * self.scores * width * CAUSAL
            return (
                self.device.attention(flops, setup.attention, backward=False),
                self.device.attention(flops * FLASH_BACKWARD, setup.attention, backward=True),
            )
        count, s = setup.microbatch * model.heads / setup.tensor, model.sequence
        with_keys = self.device.product(MatrixProduct(s / setup.context, s, width, count), setup.half_products)
        with_values = self.device.product(MatrixProduct(s / setup.context, width, s, count), setup.half_products)
        softmax, kernels = self._softmax()
        elementwise = self.device.elementwise(softmax * self.scores, kernels)
        return with_keys + with_values + elementwise, 2 * (with_keys + with_values) + 1.5 * elementwise

    def _softmax(self) -> tuple[float, float]:
        """Bytes per score that scaling, masking, softmax and dropout move, and their number of kernels."""
        each = self.setup.entry_bytes
        passed = 2.0 * each  # read and written
        dropout = passed + 1 if self.setup.drops else 0.0
        if self.setup.attention == "fused_softmax":
            return passed + dropout, 2.0
        casts = 0.0 if each == FULL else 2.0 * (each + FULL)
        # scaled, masked, cast to single precision, normalized, cast back
        return passed + (passed + 1) + 2 * FULL + casts + dropout, 6.0 if casts else 4.0

    # -- element-wise kernels ----------------------------------------------------------------------------------------

    @cached_property
    def elementwise(self) -> float:
        """Seconds of the element-wise kernels of a forward pass."""
        setup, model, generation = self.setup, self.setup.model, self.setup.generation
        h, tensor = model.hidden, setup.tensor
        per_rank = tensor if setup.sequence_parallel else 1
        fused = generation.fused_elementwise
        moved = 2 * h * (generation.norm_bytes if setup.fused_norm else generation.unfused_norm_bytes) / per_rank
        residual = generation.residual_bytes
        if not model.gated:
            residual += 0.0 if fused else 4.0  # a bias of its own
        if setup.drops:
            residual += 1.0 if fused else DROPOUT
        moved += 2 * h * residual / per_rank
        moved += 4 * (h + 2 * model.key_width) / tensor  # queries, keys and values are copied apart
        if model.gated:
            moved += (4 if generation.fused_rotary else 14) * (h + model.key_width) / tensor
            moved += (6 if fused else 10) * model.ffn / tensor
        else:
            moved += (4 if fused else 8) * model.ffn / tensor
        if setup.precision in ("float8", "float4"):
            moved += generation.cast_bytes * (2 * h + h / tensor + model.ffn / tensor)
        return self.device.elementwise(moved * setup.tokens * setup.entry_bytes / HALF, 8.0)

    # -- communication -----------------------------------------------------------------------------------------------

    @property
    def activation(self) -> float:
        """Bytes of the activation of a microbatch."""
        return self.setup.tokens * self.setup.model.hidden * self.setup.entry_bytes

    @cached_property
    def tensor_parallel(self) -> tuple[float, float]:
        """Seconds of tensor-parallel communication that a forward pass and a backward pass wait for.

        Each pass adds the outputs of attention and MLP, or the gradients of their inputs (Shoeybi et al. 2020). With
        sequence parallelism the sums are reduce-scatters and all-gathers of the same bytes (Korthikanti et al. 2022).
        """
        setup = self.setup
        if setup.tensor == 1:
            return 0.0, 0.0
        each = 2 * all_reduce_seconds(self.activation, self.tensor, setup.machine, setup.generation)
        forward, backward = setup.generation.tensor_overlap
        return (
            self._exposed(each, forward * self.weights.forward),
            self._exposed(each, backward * self.weights.backward),
        )

    def _exposed(self, seconds: float, hidden: float) -> float:
        """What remains of a communication in pieces: at least the first of them."""
        return max(seconds - hidden, seconds / self.setup.tensor) if hidden else seconds

    @cached_property
    def context_parallel(self) -> tuple[float, float]:
        """Seconds that attention waits for keys and values of other context-parallel ranks."""
        setup, model = self.setup, self.setup.model
        if setup.context == 1:
            return 0.0, 0.0
        size = 2 * setup.entry_bytes * setup.tokens * setup.context * model.key_width / setup.tensor
        group = SpacedRanks(setup.context, setup.tensor)
        seconds = gather_seconds(size, group, setup.machine, setup.generation)
        forward, backward = self.attention
        first = 1 / setup.context
        return max(seconds - forward, first * seconds), max(2 * seconds - backward, first * seconds)

    # -- passes ------------------------------------------------------------------------------------------------------

    @cached_property
    def computation(self) -> BlockTimes:
        """One block without communication and recomputation.

        A pass takes at least the time in which the host launches its kernels.
        """
        generation, weights = self.setup.generation, self.weights
        launched = generation.kernels * generation.dispatch
        forward = weights.forward + self.attention[0] + self.elementwise
        backward = weights.input + self.attention[1] + 2 * self.elementwise
        return BlockTimes(max(forward, launched), max(backward, 2 * launched - weights.weight), weights.weight)

    @property
    def recomputed(self) -> tuple[float, float]:
        """Seconds of the kernels that a backward pass repeats, and the share of the forward communication."""
        return {
            "none": (0.0, 0.0),
            "selective": (self.attention[0], 0.0),
            "operators": (self.elementwise + self.weights.forward / 2, 0.0),
            "alternate": (self.computation.forward / 2, 0.5),
            "full": (self.computation.forward + self.setup.generation.recompute_host, 1.0),
        }[self.setup.recompute]

    @cached_property
    def block(self) -> BlockTimes:
        """One block with its communication, and with the recomputation of the setup."""
        tensor, context, kernels = self.tensor_parallel, self.context_parallel, self.computation
        again, share = self.recomputed
        return BlockTimes(
            kernels.forward + tensor[0] + context[0],
            kernels.input + tensor[1] + context[1] + (again + share * tensor[0] + share * context[0]),
            kernels.weight,
        )

    @property
    def padded_vocabulary(self) -> int:
        """Vocabulary of one tensor-parallel rank, padded to full tiles."""
        return PADDED * ceil(self.setup.model.vocabulary / self.setup.tensor / PADDED)

    @cached_property
    def head(self) -> BlockTimes:
        """Final norm, language head and loss. Their products are in 16 bits."""
        setup, model, generation = self.setup, self.setup.model, self.setup.generation
        product = MatrixProduct(setup.tokens, self.padded_vocabulary, model.hidden, precision=setup.half_products)
        logits = setup.tokens * self.padded_vocabulary
        gradient, weight = self._gradients(product)
        sums = all_reduce_seconds(self.activation, self.tensor, setup.machine, generation)
        return BlockTimes(
            self._seconds(product) + self.device.elementwise(generation.loss_forward * logits, 8.0),
            self._seconds(gradient) + sums + self.device.elementwise(generation.loss_backward * logits, 4.0),
            self._seconds(weight),
        )

    @cached_property
    def embedding(self) -> BlockTimes:
        """Lookup of the embedding, and the sum of its gradient."""
        setup = self.setup
        sums = all_reduce_seconds(self.activation, self.tensor, setup.machine, setup.generation)
        lookup = self.device.elementwise(2 * self.activation, 2.0)
        return BlockTimes(lookup + sums, 2 * lookup, 0.0)
