"""Message-driven pipeline schedule (AxoNN, Algorithm 2).

A stage runs the pass whose message has arrived. The paper leaves two choices open. Here the first stage injects only
while microbatches are left (Algorithm 2 pops without a guard, inconsistency A8). A pipeline of one stage alternates
forward and backward passes.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.core.errors import InvalidRequest
from suite.core.op import FlushInterval, Kind, Op, Place, Program


@dataclass(frozen=True, slots=True)
class MessageDriven:
    """Forward and backward passes in the order in which their messages arrive.

    Attributes:
        pipeline_limit: Most microbatches in the pipeline; None for the number of stages (AxoNN IV-A). One or two more
            hide the latency of messages.
        cap: Most live activations on a stage; None for `pipeline_limit` alone. The bound of 1F1B is `stages - stage`.
        prefer: Pass to run when both are ready. 'backward' has the makespan of 1F1B at unit cost. 'forward', the choice
            of the authors' code, takes up to 16 % longer on deep pipelines with few microbatches.
    """

    pipeline_limit: int | None = None
    cap: int | None = None
    prefer: str = "backward"

    def __post_init__(self) -> None:
        for name in ("pipeline_limit", "cap"):
            value = getattr(self, name)
            if value is not None and value < 1:
                legal = f"{name}=None (the number of stages)"
                raise InvalidRequest(f"{name}={value}", rule="at least 1 microbatch", legal=legal)
        if self.prefer not in ("backward", "forward"):
            raise InvalidRequest(f"prefer={self.prefer!r}", rule="backward or forward", legal="backward")

    def program(self, place: Place, interval: FlushInterval) -> Program:
        forward = backward = interval.first
        alive = self.in_flight(place, interval)
        while backward < interval.end:
            accepted = []
            if backward < forward:
                accepted.append(Op(place.stage, Kind.BACKWARD, backward))
            # the last stage turns a forward into its backward at once (lines 15-17)
            if forward < interval.end and forward - backward < alive:
                accepted.append(Op(place.stage, Kind.FORWARD, forward))
            if self.prefer == "forward":
                accepted.reverse()
            ran = yield tuple(accepted)
            if ran.kind is Kind.FORWARD:
                forward += 1
                continue
            backward += 1
            if interval.completes_update(ran.index):
                yield (Op(place.stage, Kind.UPDATE, interval.update_of(ran.index)),)

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        limit = 1 if place.last else self.pipeline_limit or place.stages
        return min(limit, self.cap or limit, interval.microbatches)
