"""Calibration of AxoNN's and SAMO's efficiency constants.

Each constant is the root of one equation: simulated value = one published number.

    axonn   products, delay, network, host: one number each from the AxoNN paper
    samo    products, compress, sparse, relative.deepspeed_3d: the 256-GPU row of Table II; the other constants
            equal the constants of axonn

The fitted constants are stored in conf/stack, and a test compares both. No other published value is read here. The
simulated pipeline time jumps by up to 2 % where a longer delay changes the order of passes, so `delay` is a root
within 1 %.

    suite claims fit
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from scipy.optimize import brentq

from suite.core.errors import InvalidRequest
from suite.papers.common.cluster_runs import Lab
from suite.simulate.cost.efficiency import Stack

ROUNDS = 4  # the fits of products and delay depend on each other slightly
SHARED = ("launch", "delay", "lane", "network", "host", "hop", "collective", "within", "traffic")


def fit_axonn(lab: Lab, published: Mapping[str, float]) -> Stack:
    """The axonn stack with fitted constants. `published` maps claim ids to published numbers."""
    stack = lab.stacks["axonn"]
    peak = published["axonn.abstract.percent_of_peak"]
    pipeline = published["axonn.fig6.pipeline_time.before"]
    reduction = published["axonn.fig6.data_parallel_time.after"]
    ratio = published["axonn.sec5c.allreduce_over_optimizer"]

    def lab_with(changed: Stack) -> Lab:
        return Lab(lab.machine, {**lab.stacks, "axonn": changed}, lab.systems, lab.shapes)

    def reduction_over_step(s: Stack) -> float:
        study = lab_with(s).study("after")
        return study.reduction / study.step - ratio

    fits: list[tuple[str, float, float, Callable[[Stack], float]]] = [
        ("products", 0.3, 1.0, lambda s: lab_with(s).weak("transformer_12b", "axonn").percent_of_peak - peak),
        ("delay", 0.0, 0.02, lambda s: lab_with(s).study("before").pipeline - pipeline),
        ("network", 0.2, 1.0, lambda s: lab_with(s).study("after").reduction - reduction),
    ]
    for _ in range(ROUNDS):
        for name, low, high, error in fits:
            stack = _fit(stack, name, low, high, error)
    return _fit(stack, "host", 0.05, 1.0, reduction_over_step)


def fit_samo(lab: Lab, published: Mapping[str, float]) -> Stack:
    """The samo stack: message and network constants of axonn, other constants fitted to the 256-GPU row."""
    shared = {name: getattr(lab.stacks["axonn"], name) for name in SHARED}
    stack = replace(lab.stacks["samo"], **shared)

    def percent(s: Stack, system: str) -> float:
        changed_lab = Lab(lab.machine, {**lab.stacks, "samo": s}, lab.systems, lab.shapes)
        name = {"axonn_no_memopt": "axonn"}.get(system, system)
        return changed_lab.samo("gpt3_13b", system, 256).percent_of_peak - published[f"samo.table2.{name}.gpus_256"]

    stack = _fit(stack, "products", 0.3, 1.0, lambda s: percent(s, "axonn_no_memopt"))
    stack = _fit(stack, "compress", 0.0, 1e-10, lambda s: percent(s, "axonn_samo"))
    stack = _fit(stack, "sparse", 0.02, 1.0, lambda s: percent(s, "sputnik"))

    def deepspeed_error(share: float) -> float:
        return percent(replace(stack, relative={"deepspeed_3d": share}), "deepspeed_3d")

    share = find_root("relative.deepspeed_3d", deepspeed_error, 0.3, 1.5)
    return replace(stack, relative={"deepspeed_3d": share})


def _fit(stack: Stack, name: str, low: float, high: float, error: Callable[[Stack], float]) -> Stack:
    def stack_with(value: float) -> Stack:
        return replace(stack, **{name: value})  # type: ignore[arg-type]  # a numeric constant

    return stack_with(find_root(name, lambda value: error(stack_with(value)), low, high))


def find_root(name: str, error: Callable[[float], float], low: float, high: float) -> float:
    """Root of `error` between `low` and `high`. Raises InvalidRequest if both ends have the same sign."""
    ends = error(low), error(high)
    if ends[0] * ends[1] > 0:
        raise InvalidRequest(
            f"no {name} from {low:g} to {high:g} gives the printed value: the error is {ends[0]:g} to {ends[1]:g}"
        )
    return float(brentq(error, low, high, xtol=1e-15, rtol=1e-4))


def fitted_constants(stack: Stack) -> dict[str, float]:
    """Fitted constants of a stack with their values in conf/stack."""
    return {name: getattr(stack, name) for name in stack.fitted}
