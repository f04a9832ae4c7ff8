"""Command `suite claims`: answer claims, mutate the code behind verdicts, fit constants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from suite.cli import Arguments, argument, command
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.exit_codes import Exit

if TYPE_CHECKING:
    from suite.claims.mutate import MutationResult


def _sensitivity(arguments: Arguments) -> int:
    from suite.claims import load, sensitivity

    papers = load.papers()
    for paper in arguments.names:
        if paper not in papers:
            raise UnknownName("paper", paper, papers)
    for path, row in sensitivity.rewrite_all(arguments.names or papers):
        print(f"{path}: {len(row)} claims, {sum(bool(one.turns) for one in row)} turn", flush=True)
    return Exit.OK


def _answer(arguments: Arguments) -> int:
    from suite.claims.claim import Verdict
    from suite.claims.claim_text import ours, published
    from suite.claims.verdicts_now import judge_claims

    for name, verdict in judge_claims(_ids(arguments)).items():
        print(f"{name} ({verdict.claim.paper}, {verdict.claim.where})\n  the paper: {verdict.claim.asserts}")
        for each in (verdict, *verdict.others):
            stand_in = f" ({each.stand_in})" if each.stand_in else ""
            basis = f"{each.evidence}, {each.scope}{stand_in}" if each.evidence else ""
            print(f"  {each.verdict}: {each.why}" + (f"; {each.note}" if each.note else ""))
            if each.verdict is not Verdict.NOT_RUN:
                print(f"    printed {published(verdict.claim)}, ours {ours(each)} {verdict.claim.unit}; {basis}")
    return Exit.OK


def _mutate(arguments: Arguments) -> int:
    from suite.claims import mutate

    mutations_by_id = mutate.known_mutations()
    chosen = mutate.select_mutations(arguments.names, mutations_by_id)
    if arguments.among:
        among = mutate.answers_matching(arguments.among)
        return _find(mutate.run_mutations(chosen, lambda _: among))
    selection = mutate.first_of_families(chosen) if arguments.first else {each.id: each.answers for each in chosen}
    selected = [each for each in chosen if selection[each.id]]
    unchanged = 0
    for result in mutate.run_mutations(selected, lambda each: selection[each.id]):
        unchanged += not result.turns
        print(f"{result}{'' if result.turns else '  SAME'}", flush=True)
    print(f"{len(selected)} mutations, {unchanged} unchanged verdicts")
    return Exit.SOME_FAILED if unchanged else Exit.OK


def _find(results: Iterable[MutationResult]) -> int:
    """Print the verdicts that each mutation changes, with their CPU seconds, for `turns` and `slowly` of its row."""
    from suite.claims.mutate import FAILED

    for result in results:
        if result.turns or result.after == FAILED:
            print(f"{result}  {result.seconds:.2f} s", flush=True)
    return Exit.OK


FITTED = {"summit": "samo_clusters", "pipeoptim": "pipeoptim_clusters", "gnn": "gnn_clusters"}  # by efficiency


def _fit(arguments: Arguments) -> int:
    from suite.claims.fit import fitted

    for name, experiment in FITTED.items():
        lab = _lab(experiment)
        found, stored = fitted(lab, name), lab.efficiencies[name]
        for constant in stored.fitted:
            values = getattr(found, constant), getattr(stored, constant)
            print("{:<9} {:<10} {}   in conf/efficiency: {}".format(name, constant, *values))
    return Exit.OK


def _lab(experiment: str) -> Any:
    from suite.config.compose import resolve
    from suite.runner.executors.registry import without_ranks

    executor: Any = without_ranks(resolve([f"experiment={experiment}"]).executor)
    return executor.lab


def _ids(arguments: Arguments) -> Sequence[str]:
    if not arguments.names:
        raise InvalidRequest("no claim is named", rule="at least one id", legal="samo.eq2.samo_bytes")
    names: Sequence[str] = arguments.names
    return names


ACTIONS = {"answer": _answer, "mutate": _mutate, "sensitivity": _sensitivity, "fit": _fit}


@command(
    "Answer claims of the papers, or mutate the code behind their verdicts.",
    "answer samo.eq2.samo_bytes",
    argument(
        "action",
        choices=ACTIONS,
        help="answer: compute and judge our values of claims; mutate: change the code behind verdicts, one change at a "
        "time, and judge again; sensitivity: vary the constants behind simulated verdicts and write each paper's "
        "sensitivity.yaml; fit: fit the constants of the simulated machines and compare them with conf/efficiency",
    ),
    argument(
        "names",
        nargs="*",
        metavar="ID",
        help="ids of claims, patterns of ids ('samo.eq*') or papers; mutate: of mutations too (default: all)",
    ),
    argument("--first", action="store_true", help="mutate: judge one quick claim per family"),
    argument(
        "--among",
        metavar="PATTERN",
        help="mutate: judge all claims that match and print the changed ones",
    ),
)
def main(arguments: Arguments) -> int:
    return ACTIONS[arguments.action](arguments)
