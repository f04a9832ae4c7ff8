"""Calibration of AxoNN's and SAMO's efficiency constants.

Each constant is the root of one equation: simulated value = one published number.

    axonn   products, delay, network, host: one number each from the AxoNN paper
    samo    products, compress, sparse, relative.deepspeed_3d: the 256-GPU row of Table II; the other constants
            equal the constants of axonn

The fitted constants are stored in conf/efficiency, and a test compares both. No other published value is read here. The
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
from suite.simulate.cost.efficiency import Efficiency

ROUNDS = 4  # the fits of products and delay depend on each other slightly
SHARED = ("launch", "delay", "lane", "network", "host", "hop", "collective", "within", "traffic")


def fit_axonn(lab: Lab, published: Mapping[str, float]) -> Efficiency:
    """The efficiency `axonn` with fitted constants. `published` maps claim ids to published numbers."""
    efficiency = lab.efficiencies["axonn"]
    peak = published["axonn.abstract.percent_of_peak"]
    pipeline = published["axonn.fig6.pipeline_time.before"]
    reduction = published["axonn.fig6.data_parallel_time.after"]
    ratio = published["axonn.sec5c.allreduce_over_optimizer"]

    def lab_with(changed: Efficiency) -> Lab:
        return Lab(lab.machine, {**lab.efficiencies, "axonn": changed}, lab.systems, lab.shapes)

    def reduction_over_step(s: Efficiency) -> float:
        study = lab_with(s).study("after")
        return study.reduction / study.step - ratio

    fits: list[tuple[str, float, float, Callable[[Efficiency], float]]] = [
        ("products", 0.3, 1.0, lambda s: lab_with(s).weak("transformer_12b", "axonn").percent_of_peak - peak),
        ("delay", 0.0, 0.02, lambda s: lab_with(s).study("before").pipeline - pipeline),
        ("network", 0.2, 1.0, lambda s: lab_with(s).study("after").reduction - reduction),
    ]
    for _ in range(ROUNDS):
        for name, low, high, error in fits:
            efficiency = _fit(efficiency, name, low, high, error)
    return _fit(efficiency, "host", 0.05, 1.0, reduction_over_step)


def fit_samo(lab: Lab, published: Mapping[str, float]) -> Efficiency:
    """The efficiency `samo`: message and network constants of axonn, other constants fitted to the 256-GPU row."""
    shared = {name: getattr(lab.efficiencies["axonn"], name) for name in SHARED}
    efficiency = replace(lab.efficiencies["samo"], **shared)

    def percent(s: Efficiency, system: str) -> float:
        changed_lab = Lab(lab.machine, {**lab.efficiencies, "samo": s}, lab.systems, lab.shapes)
        name = {"axonn_no_memopt": "axonn"}.get(system, system)
        return changed_lab.samo("gpt3_13b", system, 256).percent_of_peak - published[f"samo.table2.{name}.gpus_256"]

    efficiency = _fit(efficiency, "products", 0.3, 1.0, lambda s: percent(s, "axonn_no_memopt"))
    efficiency = _fit(efficiency, "compress", 0.0, 1e-10, lambda s: percent(s, "axonn_samo"))
    efficiency = _fit(efficiency, "sparse", 0.02, 1.0, lambda s: percent(s, "sputnik"))

    def deepspeed_error(share: float) -> float:
        return percent(replace(efficiency, relative={"deepspeed_3d": share}), "deepspeed_3d")

    share = find_root("relative.deepspeed_3d", deepspeed_error, 0.3, 1.5)
    return replace(efficiency, relative={"deepspeed_3d": share})


def _fit(
    efficiency: Efficiency, name: str, low: float, high: float, error: Callable[[Efficiency], float]
) -> Efficiency:
    def efficiency_with(value: float) -> Efficiency:
        return replace(efficiency, **{name: value})  # type: ignore[arg-type]  # a numeric constant

    return efficiency_with(find_root(name, lambda value: error(efficiency_with(value)), low, high))


def find_root(name: str, error: Callable[[float], float], low: float, high: float) -> float:
    """Root of `error` between `low` and `high`. Raises InvalidRequest if both ends have the same sign."""
    ends = error(low), error(high)
    if ends[0] * ends[1] > 0:
        raise InvalidRequest(
            f"no {name} from {low:g} to {high:g} gives the printed value: the error is {ends[0]:g} to {ends[1]:g}"
        )
    return float(brentq(error, low, high, xtol=1e-15, rtol=1e-4))


def fitted_constants(efficiency: Efficiency) -> dict[str, float]:
    """Fitted constants of an efficiency with their values in conf/efficiency."""
    return {name: getattr(efficiency, name) for name in efficiency.fitted}
