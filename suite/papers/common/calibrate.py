"""Calibrated constants of AxoNN's and SAMO's efficiency: each solves one equation, ours = one published number.

    axonn   products, delay, network, host: one number each of the AxoNN paper
    samo    products, compress, sparse, relative.deepspeed_3d: the 256-GPU row of Table II; the rest is of axonn

The results stand in conf/stack; a test keeps both equal. No other published value is read here. The pipeline's time
jumps by up to 2 percent where the delay changes which pass a message finds first, so `delay` is a root to 1 percent.

    suite claims fit
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from scipy.optimize import brentq

from suite.core.errors import InvalidRequest
from suite.papers.common.cluster_runs import Lab
from suite.simulate.cost.efficiency import Stack

ROUNDS = 4  # products and delay move each other a little
SHARED = ("launch", "delay", "lane", "network", "host", "hop", "collective", "within", "traffic")


def fit_axonn(lab: Lab, published: Mapping[str, float]) -> Stack:
    """The axonn stack with its constants fitted; `published`: the numbers by claim."""
    stack = lab.stacks["axonn"]

    def on(changed: Stack) -> Lab:
        return Lab(lab.machine, {**lab.stacks, "axonn": changed}, lab.systems, lab.shapes)

    weak = published["axonn.abstract.percent_of_peak"]
    for _ in range(ROUNDS):
        stack = _fit(
            stack, "products", 0.3, 1.0, lambda s: on(s).weak("transformer_12b", "axonn").percent_of_peak - weak
        )
        stack = _fit(
            stack,
            "delay",
            0.0,
            0.02,
            lambda s: on(s).study("before").pipeline - published["axonn.fig6.pipeline_time.before"],
        )
        stack = _fit(
            stack,
            "network",
            0.2,
            1.0,
            lambda s: on(s).study("after").reduction - published["axonn.fig6.data_parallel_time.after"],
        )
    ratio = published["axonn.sec5c.allreduce_over_optimizer"]

    def reduction_over_step(s: Stack) -> float:
        study = on(s).study("after")
        return study.reduction / study.step - ratio

    return _fit(stack, "host", 0.05, 1.0, reduction_over_step)


def fit_samo(lab: Lab, published: Mapping[str, float]) -> Stack:
    """The samo stack: what the axonn stack says of messages and network, and the 256-GPU row's own constants."""
    shared = {name: getattr(lab.stacks["axonn"], name) for name in SHARED}
    stack = replace(lab.stacks["samo"], **shared)

    def percent(s: Stack, system: str) -> float:
        changed_lab = Lab(lab.machine, {**lab.stacks, "samo": s}, lab.systems, lab.shapes)
        name = {"axonn_no_memopt": "axonn"}.get(system, system)
        return changed_lab.samo("gpt3_13b", system, 256).percent_of_peak - published[f"samo.table2.{name}.gpus_256"]

    stack = _fit(stack, "products", 0.3, 1.0, lambda s: percent(s, "axonn_no_memopt"))
    stack = _fit(stack, "compress", 0.0, 1e-10, lambda s: percent(s, "axonn_samo"))
    stack = _fit(stack, "sparse", 0.02, 1.0, lambda s: percent(s, "sputnik"))

    def slower(share: float) -> float:
        return percent(replace(stack, relative={"deepspeed_3d": share}), "deepspeed_3d")

    share = find_root("relative.deepspeed_3d", slower, 0.3, 1.5)
    return replace(stack, relative={"deepspeed_3d": share})


def _fit(stack: Stack, name: str, low: float, high: float, wrong: Callable[[Stack], float]) -> Stack:
    def on(value: float) -> Stack:
        return replace(stack, **{name: value})  # type: ignore[arg-type]  # `name` names a number

    return on(find_root(name, lambda value: wrong(on(value)), low, high))


def find_root(name: str, wrong: Callable[[float], float], low: float, high: float) -> float:
    """Where `wrong` is zero between the two. Raises InvalidRequest where it has one sign at both."""
    ends = wrong(low), wrong(high)
    if ends[0] * ends[1] > 0:
        raise InvalidRequest(
            f"no {name} from {low:g} to {high:g} gives the printed value: off by {ends[0]:g} to {ends[1]:g}"
        )
    return float(brentq(wrong, low, high, xtol=1e-15, rtol=1e-4))


def fitted_constants(stack: Stack) -> dict[str, float]:
    """The constants that `fitted` names, with their values in conf/stack."""
    return {name: getattr(stack, name) for name in stack.fitted}
