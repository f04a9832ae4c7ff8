"""Protocols between the packages of the suite.

To add a schedule, weight policy, optimizer, transport, data source or compared system, implement its protocol and name
the class by its path in a YAML file. Nothing else in the suite changes. Tensors appear as `Any`, because this module
loads no torch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from suite.core.op import FlushInterval, Op, Place, Program
from suite.core.record import Metric, Source
from suite.core.trace import Trace

Tensor = Any
Value = tuple[Tensor, ...]
Seconds = float
Bytes = int


class Schedule(Protocol):
    """Order of the ops of a pipeline: one generator per rank, without clock, tensors or I/O."""

    def program(self, place: Place, interval: FlushInterval) -> Program:
        """The program of one rank, from one pipeline drain to the next.

        The generator yields the ops that may run next, the preferred op first, and is sent the op that ran. It
        returns after the last update.
        """

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        """Upper bound on forward passes whose backward pass has not run; every executor asserts it."""


class PlacedSchedule(Schedule, Protocol):
    """A schedule that places several stages on a rank, or splits the backward pass.

    Every other schedule has one chunk per rank and whole backward passes.

    Attributes:
        chunks: Stages per rank.
        fold: Whether every second chunk returns in the opposite direction (`suite.core.op.Place`).
        split: Whether weight gradients are ops of their own.
    """

    @property
    def chunks(self) -> int: ...

    @property
    def fold(self) -> bool: ...

    @property
    def split(self) -> bool: ...


class TabledSchedule(Schedule, Protocol):
    """A schedule with a placement of its own, for example one that was read from a file.

    Attributes:
        homes: Rank of each stage.
        split: Whether weight gradients are ops of their own.
    """

    @property
    def homes(self) -> tuple[int, ...]: ...

    @property
    def split(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Read:
    """Weights that a pass reads, as a weight policy decides.

    Attributes:
        version: Number of updates that the weights include.
        predict_steps: Further updates to predict. Only the newest version can be predicted from.
        backward_mode: How the backward pass runs; decided at the forward pass.
            `keep`: with the forward pass's own graph and weights, which stay in memory. The policy is not called again.
            `recompute`: the forward pass runs again with the weights that the backward pass reads. Random numbers are
            the same, and running statistics stay untouched.
            `swap`: with the saved activations, and the backward pass's own weights for the input gradient.
    """

    version: int
    predict_steps: int = 0
    backward_mode: str = "keep"


@dataclass(frozen=True, slots=True)
class StageVersions:
    """Weight versions of one stage at the time an op requests weights.

    Attributes:
        updates: Number of updates this stage has run.
        update: Number of the update that includes this op's gradient.
        read_by: Reads of the forward passes in flight, by microbatch.
        drained_at: Number of updates at the last time no microbatch was in flight.
        stages: Number of pipeline stages.
        next_forward_update: Number of the update that includes the gradient of the next forward pass. None if no
            forward pass follows before the pipeline drains.
    """

    updates: int
    update: int
    read_by: Mapping[int, Read]
    drained_at: int
    stages: int
    next_forward_update: int | None


class WeightPolicy(Protocol):
    """Weight version that each pass reads.

    A policy is a pure function: suite.engine.versions and suite.weights.ledger call it with equal arguments.
    A subclass inherits the defaults below.

    Attributes:
        predicts: Whether passes may read predicted weights, so that the update rule needs a drift.
        smoothed: Whether the prediction is valid for SGD with momentum only.
        any_placement: Whether the policy also serves several stages per rank and split backward passes.
    """

    predicts: bool = False
    smoothed: bool = False
    any_placement: bool = False

    def check(self, stages: int, update_interval: int | None) -> None:
        """Raises InvalidRequest if the policy cannot serve this pipeline. `update_interval` is None for a flush."""
        return

    @abstractmethod
    def read(self, op: Op, versions: StageVersions) -> Read:
        """The weights that the forward or backward pass `op` reads."""

    @abstractmethod
    def needed(self, versions: StageVersions) -> frozenset[int]:
        """Versions older than the newest that a later forward or backward pass may read.

        All other versions are freed; the newest always stays. The ledger accepts any iterable of integers.
        """


class UpdateRule(Protocol):
    """Optimizer over flat tensors, with the change that it expects of the next update.

    A weight policy without prediction needs `states` and `step` only.
    """

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the flat optimizer states, for example of the two moments of Adam."""

    @property
    def drift_states(self) -> tuple[str, ...]:
        """Names of the flat states that only `drift` needs; allocated where weights are predicted."""
        return ()

    def step(self, state: Any, grad: Tensor) -> None:
        """Update the weights in `state` in place."""

    def drift(self, state: Any) -> Tensor:
        """Expected change per update, so that predicted = w + steps * drift. Writes no weights."""


class MaskMethod(Protocol):
    """Method that draws the mask of a pruned network (suite.pruning). A subclass inherits the defaults below.

    Attributes:
        scope: Scope of a threshold: `layer`, or `global` for all weights.
        searches: Whether the method draws masks during training until one is stable. Checkpoints then hold its state.
            The fields of such a dataclass are settings, which a resumed search shares.
        distances: Distances between successive masks of a search; None without a search.
    """

    scope: str = "layer"
    searches: bool = False
    distances: Sequence[float] | None = None

    @abstractmethod
    def draws_after(self, batches: int) -> bool:
        """Whether a mask is drawn after this number of batches; 0 is before training."""

    @abstractmethod
    def draw(self, view: Any) -> Mapping[tuple[int, str], Tensor] | None:
        """Flat indices of the remaining weights of a stage, by key (suite.pruning.mask.View).

        None if no mask is found yet; every stage then returns None.
        """

    def state_dict(self) -> dict[str, Tensor]:
        """State of a search, for a checkpoint."""
        return {}

    def load_state_dict(self, kept: Mapping[str, Tensor]) -> None:
        """Continue from the state of a search."""
        return


class Transport(Protocol):
    """One-way channels between the ranks of neighbouring stages. A subclass inherits the defaults below.

    A value is named by `suite.core.op.message_of` the op that made it. Values from one stage to the next arrive first
    in, first out. A value for a stage of the same rank is received as soon as it is sent.

    Attributes:
        any_order: Whether values may be received in any order. If not, every stage runs its ops in the checker's order,
            and the record has order=static.
        turns: Whether the ranks share one process and take turns, so that none may poll (suite.comm.p2p.threads).
        polls: Whether a collective can be polled. If not, `wait` blocks without a time limit.
        threaded: Whether threads of this process move messages. A rank that waits leaves its core to them.
    """

    any_order: bool
    turns: bool = False
    polls: bool = True
    threaded: bool = False

    def send(self, op: Op, value: Value) -> None:
        """Send the message `op` to the rank that needs it.

        Does not block in training, where `in_flight` bounds the number of unreceived values. In an evaluation it
        blocks while suite.core.op.EVALUATION_CAPACITY values for the same stage are unreceived.
        """

    def recv_any(self, ops: Sequence[Op], timeout: float | None) -> tuple[Op, Value] | None:
        """The first message of `ops` that has arrived, and its value.

        Args:
            ops: Messages of neighbouring stages, the preferred one first.
            timeout: Seconds to wait; None waits without limit, 0 polls once.

        Returns:
            None if nothing has arrived by then.
        """

    def progress(self) -> None:
        """Advance pending messages. A rank that waits for anything else calls it repeatedly."""

    def close(self) -> None:
        """Wait for all sends to complete and cancel posted receives."""


class Handle(Protocol):
    """Pending collective. A rank polls it with suite.comm.p2p.polling.wait_until, which also advances messages."""

    def done(self) -> bool:
        """Whether the collective has completed on this rank."""

    def wait(self) -> None:
        """Block until the collective has completed on this rank."""


class Group(Protocol):
    """Ranks that take part in the same collectives, in rank order."""

    ranks: tuple[int, ...]

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Handle:
        """Reduce `tensor` in place over the group; `op` is sum or max."""

    def broadcast(self, tensor: Tensor, root: int) -> Handle:
        """Copy `tensor` of rank `root` of the world to every member."""

    def all_to_all(
        self, recv_buffer: Tensor, send_buffer: Tensor, *, recv_counts: Sequence[int], send_counts: Sequence[int]
    ) -> Handle:
        """Exchange rows with every member of the group.

        Args:
            recv_buffer: Receives the rows of all members, in rank order.
            send_buffer: Rows to send, in the rank order of their receivers.
            recv_counts: Number of rows received from each member.
            send_counts: Number of rows sent to each member.
        """

    def pairwise(self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]) -> Handle:
        """Send and receive several tensors at once; each pair is a rank of the world and a tensor.

        Empty tensors are not sent.
        """


class World(Protocol):
    """The ranks of one run, as seen by one rank.

    Attributes:
        rank: Number of this rank.
        size: Number of ranks.
        device: Device this rank computes on.
        staged: Whether device tensors are copied through host memory.
        backend: Library that moves values between stages: threads, mpi, gloo or nccl.
        order: `any`, or `static` if every stage runs its ops in the checker's order.
    """

    rank: int
    size: int
    device: Any
    staged: bool
    backend: str
    order: str

    def transport(self, homes: Sequence[int]) -> Transport:
        """Channels of this rank's pipeline. Collective: every rank of the world creates its transport.

        Args:
            homes: Rank of each stage of the pipeline.
        """

    def group(self, ranks: Sequence[int]) -> Group:
        """The group of these ranks. Collective: every rank of the world creates the same groups in the same order."""

    def all_reduce_numbers(self, numbers: Sequence[float], op: str, progress: Callable[[], None]) -> list[float]:
        """Sums or maxima of a few numbers per rank; the results are the same on every rank.

        Args:
            numbers: Numbers of this rank; none is NaN.
            op: `sum` or `max`.
            progress: Called repeatedly while this rank waits.
        """

    def buffer(self, size: int) -> Tensor:
        """Uninitialized host buffer of `size` bytes that channels and groups accept."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """Piece of an update. Chunks overlap with each other.

    Attributes:
        reduce: Bytes that each rank sends to reduce the gradients.
        step: Seconds of the optimizer step that follows.
    """

    reduce: Bytes
    step: Seconds


class CostModel(Protocol):
    """Costs of ops on a modelled machine. Its methods raise InvalidRequest for an op without a known cost."""

    def compute(self, op: Op) -> Seconds:
        """Seconds of a forward, backward or evaluation pass, an input gradient or a weight gradient."""

    def message(self, op: Op) -> Bytes:
        """Bytes of the value that `op` sends to its neighbour. Two stages of one rank send nothing."""

    def update(self, rank: int) -> Sequence[Chunk]:
        """Chunks of an update of all stages of pipeline rank `rank`, in order.

        The network model times their reductions.
        """

    def parts(self, op: Op) -> Mapping[str, Seconds]:
        """Seconds of `op` by category of suite.core.trace, without its pass or step itself; empty by default."""
        return {}


@dataclass(frozen=True, slots=True)
class Ready:
    """Result of `System.probe`: the system can run on this machine."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Result of `System.probe`: the system cannot run; the report shows the reason."""

    reason: str


class DataSource(Protocol):
    """Data of a run, built from `data.source` on every rank. A subclass inherits the defaults below.

    A batch is a tuple (inputs, targets) of numpy arrays with samples along the first axis. A network with several
    inputs has a tuple of arrays in their place. `shape` is the shape of the network: it gives the length or size of a
    sample. A source may have the attributes `samples` and `held_out`: the number of samples of one epoch, and of the
    validation data.

    Its module may define two functions that run before ranks start: `check_folder(name, folder)`, and
    `check_shape(name, folder, shape)`, which raises InvalidRequest for a network that cannot read the data.
    """

    def batch(self, number: int, *, size: int, seed: int, shape: Any) -> Value:
        """Training batch `number`: depends on (seed, number) only, so that all ranks read the same batch."""

    def validation_batches(self, *, size: int, shape: Any) -> Iterator[Value]:
        """All full batches of the validation data, in order."""

    def provenance(self) -> dict[str, str | int]:
        """Name, size and hash of the data, for the record."""

    def score(self, decoded: Sequence[Any], batches: Sequence[Value]) -> dict[str, float]:
        """Scores by name, such as BLEU, of the token ids decoded from validation batches; empty by default."""
        return {}


@dataclass(frozen=True, slots=True)
class ExecutorResult:
    """Result of a run without ranks, as its record stores it. The other fields of the record follow from the config.

    Attributes:
        source: Kind of evidence of the numbers.
        metrics: Metrics by name.
        memory: Bytes by kind and stage, for each source of evidence.
        series: Values by batch or epoch, by name.
        panels: Panels of figures and maps of winners (suite.config.panels).
        trace: Spans of one batch.
        notes: Sentences for the reader of the report.
        calibrated_on: Ids of the claims that a constant behind these numbers was fitted to.
    """

    source: Source
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    memory: Mapping[str, dict[str, list[int]]] = field(default_factory=dict)
    series: Mapping[str, list[float]] = field(default_factory=dict)
    panels: Sequence[Any] = ()
    trace: Trace = field(default_factory=Trace)
    notes: tuple[str, ...] = ()
    calibrated_on: tuple[str, ...] = ()


Transform = Callable[[Any], Any]
