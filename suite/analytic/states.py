"""Decides the answers about model states: bytes per parameter, what fits a GPU, what pruning and offload save.

Bytes come from layouts of states (suite.memory), parameters from shapes. A GPU holds `parameters / G_inter` of them, as
both papers count: the larger share of the stage that holds the embedding is told in the notes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from fractions import Fraction
from math import ceil

from suite.analytic.question import Cases, Papers, Question, answers, distinct
from suite.core.errors import Refused
from suite.core.grid import Grid
from suite.core.units import si
from suite.memory import Layout, dense, mixed_precision, offload, samo
from suite.workload import Transformer, convnet, flops
from suite.workload.pipeline import ring_bytes
from suite.workload.split import divide

LayoutOf = Callable[[int], Layout]
MOMENTS = {"adam": ("moment_1", "moment_2"), "sgdm": ("velocity",)}
STATES = {"theta16": "half", "grad16": "half_gradient", "theta32": "master", "grad32": "gradient"}
CONVNETS = {"wideresnet_101": convnet.wide_resnet_101, "vgg_19": convnet.vgg_19}
GPTS = ("gpt3_xl", "gpt3_2_7b", "gpt3_6_7b", "gpt3_13b")
ENTRIES = 1_000_000  # where only bytes per parameter matter: every published sparsity keeps a whole number of these
GIGABYTE = 10**9


def mixed(entries: int, optimizer: str = "adam") -> Layout:
    return mixed_precision(dense(entries, MOMENTS[optimizer]))


def pruned(sparsity: object, optimizer: str = "adam") -> LayoutOf:
    """The layouts of networks without the share `sparsity` of their parameters."""
    density = 1 - Fraction(str(sparsity))  # as printed: 0.9 is nine tenths
    return lambda entries: samo(round(density * entries))(mixed(entries, optimizer))


def offloaded(bucket: int) -> LayoutOf:
    return lambda entries: offload("master", "moments", bucket=bucket)(mixed(entries))


def parameters(model: str, papers: Papers) -> int:
    """Counted from the network's shape."""
    if model in CONVNETS:
        return convnet.parameters(CONVNETS[model]())
    return papers.shape(model).parameters


def fewest_stages(count: int, *, gpus: int, layout: LayoutOf, memory: float) -> int:
    """The smallest G_inter that divides `gpus` and whose GPUs, with `count / G_inter` parameters each, hold the states
    in `memory` gigabytes."""
    for stages in range(1, gpus + 1):
        if gpus % stages == 0 and layout(ceil(count / stages)).bytes() <= memory * GIGABYTE:
            return stages
    raise Refused(f"{si(count)} parameters on {gpus} GPUs of {memory} GB", rule="the states fit", legal="more GPUs")


def held(shape: Transformer, stages: int, stage: int) -> int:
    """Parameters of one stage of an even split, its copies of tied ones included."""
    layers = shape.shapes()
    return sum(layers[i].parameters + layers[i].tied for i in divide(shape, stages, "even")[stage])


def saved(sparsity: object) -> Fraction:
    """Percent of mixed precision's bytes that SAMO saves."""
    before, after = mixed(ENTRIES).bytes(), pruned(sparsity)(ENTRIES).bytes()
    return Fraction(100 * (before - after), before)


# bytes per parameter


@answers(
    *(f"axonn.sec5b.bytes_per_parameter.{name}" for name in (*STATES, "optimizer_state")),
    *(f"samo.sec3d.default_bytes.{name}" for name in (*STATES, "optimizer_state")),
    unit="byte",
)
def bytes_per_parameter(question: Question, papers: Papers) -> tuple[Cases, str]:
    optimizer = question.setting["optimizer"]
    layout, name = mixed(ENTRIES, optimizer), question.id.rpartition(".")[2]
    names = (STATES[name],) if name in STATES else MOMENTS[optimizer]
    states = [layout[state] for state in names]
    told = " and ".join(f"{state.name} in {state.dtype}" for state in states)
    return [[Fraction(sum(state.bytes for state in states), ENTRIES)]], f"mixed precision, {optimizer}: {told}"


@answers("axonn.sec4b.fp16_allreduce", unit="byte")
def reduced_bytes(question: Question, papers: Papers) -> tuple[Cases, str]:
    layout = mixed(ENTRIES)
    sent, full = layout["half_gradient"], layout["gradient"]
    share = Fraction(sent.bytes, full.bytes)
    return [[Fraction(sent.bytes, ENTRIES)]], f"{sent.name} in {sent.dtype}, {share} of the {full.dtype} gradient"


@answers("samo.sec3b.index_width", unit="byte")
def index_bytes(question: Question, papers: Papers) -> tuple[Cases, str]:
    index = pruned("0.9")(ENTRIES)["index"]
    shape = papers.shape("gpt3_175b")
    largest = max(layer.parameters for layer in shape.shapes())
    room = 2 ** (8 * index.bytes // index.entries - 1)
    fits = "fits" if largest < room else "does not fit"
    whole = "fits" if shape.parameters < 2 * room else "does not fit, unsigned either"
    note = f"{index.dtype}: the largest layer of GPT-3 175B ({si(largest)}) {fits}, the whole model {whole}"
    return [[Fraction(index.bytes, index.entries)]], note


@answers("samo.sec3.mixed_precision_overhead", unit="percent")
def overhead(question: Question, papers: Papers) -> tuple[Cases, str]:
    moments = MOMENTS[question.setting["optimizer"]]
    single, both = dense(ENTRIES, moments).bytes(life="always"), mixed(ENTRIES).bytes()
    note = f"{both // ENTRIES} against {single // ENTRIES} bytes per parameter, from the two layouts"
    return [[Fraction(100 * (both - single), single)]], note


@answers("samo.sec3a.compressible_share", unit="percent")
def compressible(question: Question, papers: Papers) -> tuple[Cases, str]:
    layout = mixed(ENTRIES)
    rest = layout.bytes() - layout["half"].bytes
    return [[Fraction(100 * rest, layout.bytes())]], "all states but half, of all states of the layout"


# whole models


@answers("samo.sec3.gpt3_model_state", unit="gigabyte")
def gpt3_states(question: Question, papers: Papers) -> tuple[Cases, str]:
    count = parameters(question.setting["model"], papers)
    return [[mixed(count).bytes() / GIGABYTE]], f"mixed precision and Adam of the {si(count)} parameters of its shape"


@answers("axonn.sec5b.model_state_per_gpu", unit="gigabyte")
def states_per_gpu(question: Question, papers: Papers) -> tuple[Cases, str]:
    count, stages = parameters(question.setting["model"], papers), question.setting["g_inter"]
    size = mixed(ceil(count / stages)).bytes()
    note = f"mixed precision and Adam of {si(count)} / {stages} parameters; {size / 2**30:.1f} in units of 2^30 bytes"
    return [[size / GIGABYTE]], note


@answers("axonn.sec5b.model_state_over_dram", unit="ratio")
def states_over_memory(question: Question, papers: Papers) -> tuple[Cases, str]:
    (case,), _ = states_per_gpu(question, papers)
    memory = papers.machine(question.setting["machine"])["gpu_memory_gigabyte"]
    return [[case[0] / memory]], f"{case[0]:.2f} GB of states over the machine's {memory} GB"


@answers("axonn.sec5b.model_state_saving", unit="ratio")
def offload_saving(question: Question, papers: Papers) -> tuple[Cases, str]:
    reference = papers.setting("axonn.sec5b.model_state_per_gpu")
    entries = ceil(parameters(reference["model"], papers) / reference["g_inter"])
    studies = ("section V studies", "weak scaling")
    buckets = [*(papers.training("axonn", study)["bucket_size"] for study in studies), 1]
    cases = [[Fraction(mixed(entries).bytes(), offloaded(bucket)(entries).bytes())] for bucket in buckets]
    told = ", ".join(si(bucket) for bucket in buckets)
    return cases, f"layouts before and after offload, {si(entries)} parameters a GPU, buckets of {told}"


@answers("axonn.abstract.parameters_per_gpu_increase", unit="ratio")
def parameters_growth(question: Question, papers: Papers) -> tuple[Cases, str]:
    shape = papers.shape(question.setting["model"])
    before, after = question.setting["g_inter_before"], question.setting["g_inter_after"]
    mean = Fraction(shape.parameters, after) / Fraction(shape.parameters, before)
    inside, first = (Fraction(held(shape, after, stage), held(shape, before, stage)) for stage in (1, 0))
    return [[mean], [inside]], f"on average, and on an inner GPU; the first, with the embedding: {float(first):.2f}"


@answers("axonn.sec1.g_inter_reduction", unit="ratio")
def stages_reduction(question: Question, papers: Papers) -> tuple[Cases, str]:
    setting = question.setting
    bucket = papers.training("axonn", "section V studies")["bucket_size"]
    memory = papers.machine(setting["machine"])["gpu_memory_gigabyte"]
    count = parameters(setting["model"], papers)
    kept, moved = (
        fewest_stages(count, gpus=setting["gpus"], layout=layout, memory=memory)
        for layout in (mixed, offloaded(bucket))
    )
    used = Fraction(setting["g_inter_before"], setting["g_inter_after"])
    note = f"G_inter as used; and the fewest GPUs whose {memory} GB hold the states alone: {kept} before, {moved} after"
    return [[used], [Fraction(kept, moved)]], note


@answers("axonn.sec5b.allreduce_data_growth", unit="ratio")
def gradient_growth(question: Question, papers: Papers) -> tuple[Cases, str]:
    shape, setting = papers.shape(question.setting["model"]), question.setting
    gpus, before, after = setting["gpus"], setting["g_inter_before"], setting["g_inter_after"]
    width = Fraction(mixed(ENTRIES)["half_gradient"].bytes, ENTRIES)
    old, new = (width * Fraction(shape.parameters, stages) for stages in (before, after))
    inside = Fraction(held(shape, after, 1), held(shape, before, 1))
    sent = ring_bytes(new, gpus // after) / ring_bytes(old, gpus // before)
    return [[new / old], [inside]], f"float16 gradient, on average and on an inner GPU; bytes sent in a ring: {sent}"


@answers("axonn.sec5b.allreduce_gpu_growth", unit="ratio")
def group_growth(question: Question, papers: Papers) -> tuple[Cases, str]:
    setting, gpus = question.setting, question.setting["gpus"]
    stages = papers.setting("axonn.sec5b.allreduce_data_growth")
    before, after = (
        (
            len(Grid(data=setting[f"g_data_{when}"], inter=gpus // setting[f"g_data_{when}"]).column(0)),
            gpus // stages[f"g_inter_{when}"],
        )
        for when in ("before", "after")
    )
    cases = [[Fraction(new, old)] for old, new in zip(before, after, strict=True)]
    return cases, "ranks of one column of the grid; and GPUs / G_inter"


# pruned networks


@answers("samo.fig2.break_even", unit="fraction")
def break_even(question: Question, papers: Papers) -> tuple[Cases, str]:
    whole = mixed(ENTRIES)
    kept = bisect_right(range(ENTRIES + 1), whole.bytes(), key=lambda kept: samo(kept)(whole).bytes()) - 1
    return [
        [1 - Fraction(kept, ENTRIES)]
    ], f"the most of {si(ENTRIES)} entries that SAMO keeps in no more bytes: {kept}"


@answers("samo.fig2.saving_range", unit="percent")
def saving_range(question: Question, papers: Papers) -> tuple[Cases, str]:
    return [[saved(sparsity) for sparsity in question.terms]], "layouts with and without SAMO at these sparsities"


@answers("samo.fig2.monotone", unit="percent")
def saving_line(question: Question, papers: Papers) -> tuple[Cases, str]:
    return [[saved(point["p"]) for point in question.points]], "layouts with and without SAMO at the points"


@answers("samo.sec4b.lower_g_inter", unit="gpu")
def fewer_stages(question: Question, papers: Papers) -> tuple[Cases, str]:
    """Two cases per model: G_inter with and without SAMO, G_data without and with."""
    sparsity = papers.training("samo", "all")["sparsity"]
    memory = papers.machine("summit")["gpu_memory_gigabyte"]
    cases: list[list[int]] = []
    told = []
    for model in GPTS:
        gpus, count = int(papers.ends(f"samo.table1.gpus.{model}")[0]), parameters(model, papers)
        old, new = (
            fewest_stages(count, gpus=gpus, layout=layout, memory=memory) for layout in (mixed, pruned(sparsity))
        )
        cases += [[new, old], [gpus // old, gpus // new]]
        told.append(f"{model} {old} to {new}")
    return cases, f"fewest GPUs whose {memory} GB hold the states at sparsity {sparsity}: {', '.join(told)}"


@answers("samo.fig5.pure_data_parallel", unit="gpu")
def whole_copies(question: Question, papers: Papers) -> tuple[Cases, str]:
    sparsity = papers.training("samo", "all")["sparsity"]
    memory = papers.machine("summit")["gpu_memory_gigabyte"]
    cases: list[list[int]] = []
    told = []
    for model in question.setting["models"].split(", "):
        gpus, count = int(papers.ends(f"samo.table1.gpus.{model}")[0]), parameters(model, papers)
        for layout in (lambda entries: mixed(entries, "sgdm"), pruned(sparsity, "sgdm")):
            cases.append([fewest_stages(count, gpus=gpus, layout=layout, memory=memory)])
        told.append(f"{model} {si(mixed(count, 'sgdm').bytes(), 'B')}")
    return cases, f"fewest GPUs whose {memory} GB hold the states, with and without SAMO: {', '.join(told)}"


@answers("samo.sec6b.similar_communication", unit="byte")
def gradient_sizes(question: Question, papers: Papers) -> tuple[Cases, str]:
    sparsity = papers.training("samo", "all")["sparsity"]
    counts = [parameters(model, papers) for model in question.terms]
    cases = [
        [layout(count)["half_gradient"].bytes for count in counts]
        for layout in (lambda entries: mixed(entries, "sgdm"), pruned(sparsity, "sgdm"))
    ]
    return cases, f"float16 gradient of {' and '.join(map(si, counts))} parameters, without and with SAMO"


@answers("samo.sec6b.cnn_size_ratio", unit="ratio")
def size_ratios(question: Question, papers: Papers) -> tuple[Cases, str]:
    pairs = [term.split(" / ") for term in question.terms]
    ratios = [Fraction(parameters(large, papers), parameters(small, papers)) for large, small in pairs]
    return [ratios], "parameters counted from the shapes"


@answers("samo.sec5b.sputnik_flops", unit="percent")
def sparse_flops(question: Question, papers: Papers) -> tuple[Cases, str]:
    density = 1 - Fraction(str(question.setting["sparsity"]))
    shapes = [papers.shape(model) for model in GPTS]
    cases = distinct([[100 * flops.weighted(shape, density) / flops.weighted(shape)] for shape in shapes])
    whole = [
        100 * float((flops.weighted(shape, density) + flops.attention(shape)) / flops.forward(shape))
        for shape in shapes
    ]
    note = (
        f"products with weights; of all flops, attention's own included, {min(whole):.0f} to {max(whole):.0f} percent"
    )
    return cases, f"{note} (GPT-3 models)"
