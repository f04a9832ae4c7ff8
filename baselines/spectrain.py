"""SpecTrain (Chen, Yang and Cheng, arXiv 1809.02839): 1F1B without a flush, with weights predicted in both passes.

Its difference is the prediction distance of each pass, and it is implemented here and nowhere else. All stages predict
the same moment: on stage k of N a forward pass predicts floor(k / 2) + N - k - 1 updates ahead and a backward pass
floor(k / 2), which are the numbers of the SpecTrain authors' own code (ntueclab/SpecTrain-PyTorch). Between the two
passes lie N - k - 1 updates, so both predict the same version; from the third stage on it lies beyond the update that
the gradient enters. The predicted change per update is the smoothed gradient of SGD with momentum, so `smoothed`
refuses every other optimizer, as PipeOptim does (Sections II-C2 and V-C)."""

from __future__ import annotations

from dataclasses import dataclass

from suite.core.op import Kind, Op
from suite.core.protocols import Read, StageVersions, WeightPolicy
from suite.weights.policy import GRAPHS, check_choice, require_update_per_microbatch


@dataclass(frozen=True, slots=True)
class SpecTrain(WeightPolicy):
    """Both passes read the newest weights, predicted to one future version."""

    graph: str = "recompute"
    predicts = True
    smoothed = True

    def __post_init__(self) -> None:
        check_choice("backward graph", self.graph, GRAPHS)

    def check(self, stages: int, update_interval: int | None) -> None:
        """Raises InvalidRequest for a flush and for fewer than one update per mini-batch."""
        require_update_per_microbatch("SpecTrain", update_interval, legal="update_interval=1")

    def read(self, op: Op, versions: StageVersions) -> Read:
        between = versions.stages - op.stage - 1 if op.kind is Kind.FORWARD else 0
        return Read(versions.updates, op.stage // 2 + between, self.graph)

    def needed(self, versions: StageVersions) -> frozenset[int]:
        return frozenset()
