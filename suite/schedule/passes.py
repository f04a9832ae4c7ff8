"""Whole backward passes (`schedule.split=false`) of message-driven orders, which are published with split ones."""

from __future__ import annotations

from suite.core.op import Kind, Program


def with_whole_passes(program: Program) -> Program:
    """A program with split backward passes, with a whole backward pass in place of each input gradient.

    Activations are freed at the backward pass, so the program holds at most as many as before.
    """
    ran = None
    try:
        while True:
            accepted = next(program) if ran is None else program.send(ran)
            ran = next((op for op in accepted if op.kind is Kind.WEIGHT), None)
            if ran is None:
                whole = {op._replace(kind=Kind.BACKWARD) if op.kind is Kind.INPUT else op: op for op in accepted}
                ran = whole[(yield tuple(whole))]
    except StopIteration:
        return
