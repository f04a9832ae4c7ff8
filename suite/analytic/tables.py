"""Decides the answers about the papers' tables: each entry from the others, so that a table is held against itself."""

from __future__ import annotations

from fractions import Fraction

from suite.analytic.question import Cases, Papers, Question, answers, distinct
from suite.core.errors import Refused
from suite.core.grid import Grid

TABLE_1 = ("wideresnet_101", "vgg_19", "gpt3_xl", "gpt3_2_7b", "gpt3_6_7b", "gpt3_13b")  # SAMO
TABLE_2 = ("12b", "24b", "50b", "100b")  # AxoNN
# tokens per batch of the models in the table that SAMO cites for their settings (Brown et al., Table 2.1)
CITED_TOKENS = {"gpt3_xl": 1e6, "gpt3_2_7b": 1e6, "gpt3_6_7b": 2e6, "gpt3_13b": 2e6}


@answers("axonn.fig2.grid_example", unit="gpu")
def grid_example(question: Question, papers: Papers) -> tuple[Cases, str]:
    grid = Grid(data=question.setting["g_data"], inter=question.setting["g_inter"])
    ranks = {grid.rank(data=replica, inter=stage) for replica in range(grid.data) for stage in range(grid.inter)}
    return [[len(ranks)]], f"distinct ranks of the grid {grid}, counted"


@answers(*(f"axonn.table1.nodes.{model}" for model in TABLE_2), unit="node")
def nodes(question: Question, papers: Papers) -> tuple[Cases, str]:
    each = papers.machine(question.setting["machine"])["gpus_per_node"]
    return [[Fraction(question.setting["gpus"], each)]], f"GPUs over the machine's {each} per node"


def replicas(model: str, system: str, papers: Papers) -> int:
    """G_data that the GPUs, G_inter and G_intra of AxoNN's Table II leave."""
    row = f"axonn.table2.{model}.{system}"
    gpus = papers.setting(f"{row}.g_inter")["gpus"]
    inter = int(papers.value(f"{row}.g_inter"))
    intra = 1 if system == "axonn" else int(papers.value(f"{row}.g_intra"))
    grid = Grid(data=gpus // (inter * intra), inter=inter, tensor=intra)
    if grid.size != gpus:
        raise Refused(f"{row}: {gpus} GPUs on {inter} x {intra}", rule="G_inter G_intra divides the GPUs")
    return grid.data


@answers(
    "axonn.table2.g_data_over_megatron",
    *(f"axonn.table2.g_data_over_deepspeed.{model}" for model in TABLE_2),
    unit="ratio",
)
def replica_ratios(question: Question, papers: Papers) -> tuple[Cases, str]:
    last = question.id.rpartition(".")[2]
    models, other = (TABLE_2, "megatron_lm") if last == "g_data_over_megatron" else ((last,), "deepspeed_3d")
    pairs = [(replicas(model, "axonn", papers), replicas(model, other, papers)) for model in models]
    told = ", ".join(f"{ours} and {theirs}" for ours, theirs in pairs)
    return [[Fraction(*pair) for pair in pairs]], f"G_data = GPUs / (G_inter G_intra) of both systems: {told}"


def per_gpu(model: str, papers: Papers) -> tuple[Fraction, Fraction]:
    """Batch per GPU of one row of SAMO's Table I, at the fewest and at the most GPUs."""
    batch = Fraction(papers.value(f"samo.table1.batch_size.{model}"))
    fewest, most = papers.ends(f"samo.table1.gpus.{model}")
    return batch / Fraction(fewest), batch / Fraction(most)


def _agreement(cases: Cases, rows: int) -> str:
    return f"{rows} rows agree" if len(cases) == 1 else f"{rows} rows give {len(cases)} answers"


def _others(model: str) -> list[str]:
    return [other for other in TABLE_1 if other != model]


@answers(*(f"samo.table1.gpus.{model}" for model in TABLE_1), unit="gpu")
def gpus(question: Question, papers: Papers) -> tuple[Cases, str]:
    """This row's batch, over every other row's batch per GPU: a case for each answer."""
    batch = Fraction(question.setting["batch_size"])
    shares = [per_gpu(other, papers) for other in _others(question.setting["model"])]
    cases = distinct([[batch / share for share in pair] for pair in shares])
    return cases, f"the row's batch over the other rows' batch per GPU: {_agreement(cases, len(shares))}"


@answers(*(f"samo.table1.batch_size.{model}" for model in TABLE_1), unit="sample")
def batch_size(question: Question, papers: Papers) -> tuple[Cases, str]:
    """This row's fewest and most GPUs, times every other row's batch per GPU there: a case for each answer."""
    model = question.setting["model"]
    ends = papers.ends(f"samo.table1.gpus.{model}")
    others = _others(model)
    cases = distinct(
        [[Fraction(end) * share] for other in others for end, share in zip(ends, per_gpu(other, papers), strict=True)]
    )
    note = f"the row's GPUs times the other rows' batch per GPU: {_agreement(cases, len(others))}"
    if model in CITED_TOKENS:
        tokens = float(cases[0][0]) * papers.shape(model).sequence / 1e6
        note += f"; {tokens:.1f} million tokens, where the cited GPT-3 table has {CITED_TOKENS[model] / 1e6:g}"
    return cases, note


@answers("samo.table1.batch_per_gpu", unit="sample")
def batch_per_gpu(question: Question, papers: Papers) -> tuple[Cases, str]:
    cases = distinct([per_gpu(model, papers) for model in TABLE_1])
    told = _agreement(cases, len(TABLE_1))
    return cases, f"the table's own batch sizes over its fewest and most GPUs: {told}"
