"""Split or whole backward passes (`schedule.split`) of orders that are published with only one of them."""

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


def with_split_passes(program: Program) -> Program:
    """A program with whole backward passes, with an input gradient and then its weight gradient in place of each.

    The message to the previous stage leaves before the weight gradient runs.
    """
    ran = None
    try:
        while True:
            accepted = next(program) if ran is None else program.send(ran)
            split = {op._replace(kind=Kind.INPUT) if op.kind is Kind.BACKWARD else op: op for op in accepted}
            done = yield tuple(split)
            if done.kind is Kind.INPUT:
                yield (done._replace(kind=Kind.WEIGHT),)
            ran = split[done]
    except StopIteration:
        return
