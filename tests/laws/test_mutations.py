"""Law 11: every mutation changes the verdicts that it names.

Each mutation breaks code that ordinary runs use; a verdict that stays would rest on nothing. `make test` asks one quick
claim of each family of answers, the exhaustive run all of them.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import pytest
import yaml

from suite.core.claim import Evidence
from suite.core.errors import InvalidRequest, UnknownName
from suite.papers.common import claims, mutations
from suite.papers.common.mutations import FAILED, Mutation, MutationResult

ROOT = Path(__file__).resolve().parents[2]
KNOWN = mutations.load()
LINE = re.compile(
    r"(?P<mutation>\S+) +(?P<claim>\S+) +(?P<evidence>\w+): (?P<before>.+) -> (?P<after>.+?)(?P<same>  SAME)?"
)
Named = tuple[str, str, str]
BUDGET = (
    180.0  # CPU seconds of the short run: 60 on a quick core, 105 on one without AVX-512, more where caches are shared
)
# families each of whose turned answers takes more than a second of a core, by the reason: the exhaustive run asks them
SLOW_FAMILIES = {
    "it trains models": (
        *("axonn.probes.constant_in_flight", "axonn.probes.lemma_1", "axonn.probes.lemma_2"),
        *("axonn.probes.loss_curves", "axonn.probes.loss_predivision", "axonn.probes.overlap"),
        *("axonn.probes.pipeline_limit", "axonn.probes.reduced_bytes", "axonn.probes_memory.footprint"),
        *("axonn.probes_memory.memory_ratio", "axonn.probes_memory.offloaded_bytes", "axonn.probes_memory.saving"),
        *("pipeoptim.predictions.needs_sgdm", "pipeoptim.predictions.pipeoptim_stale"),
        *("pipeoptim.predictions.spectrain_inconsistent", "pipeoptim.predictions.spectrain_stale"),
        *("pipeoptim.probes_ranks.gpipe", "samo.probes_messages.send_time"),
        *("sparse_gnn.probes.accuracy", "sparse_gnn.probes.activation", "sparse_gnn.probes_runs.phases"),
        *("sparse_gnn.probes_wire.less", "sparse_gnn.probes_wire.oblivious"),
        *("sparse_gnn.probes_wire.stages", "sparse_gnn.probes_wire.summed"),
    ),
    "it searches plans or simulates batches of hundreds of GPUs": (
        *("axonn.figures.gains", "axonn.figures.memory_ratio", "axonn.figures.reduction_time"),
        *("axonn.figures.time_over_depth", "axonn.scaling.days", "axonn.scaling.equal_data"),
        *("axonn.scaling.fastest", "axonn.scaling.strong_gain", "samo.figures.quickest"),
    ),
    "it accounts for the memory of every plan": (
        *("pipeoptim.memory_account.alike", "pipeoptim.memory_account.larger", "pipeoptim.memory_account.most"),
    ),
    "it partitions graphs": (
        *("sparse_gnn.counts.compute_balance", "sparse_gnn.counts.segments", "sparse_gnn.figures.falls_on_amazon"),
        *("sparse_gnn.figures.faster_above_64", "sparse_gnn.figures.flat", "sparse_gnn.figures.gain_from_32"),
        *("sparse_gnn.figures.local", "sparse_gnn.figures.no_gain", "sparse_gnn.figures.out_of_memory"),
        *("sparse_gnn.figures.overwhelming", "sparse_gnn.probes_runs.once"),
    ),
}


def turned(*more: str) -> dict[Named, bool]:
    """By mutation, claim and evidence, whether the verdict turns; a process of its own forks for each mutation."""
    line = [sys.executable, "-m", "suite", "claims", "mutate", *more]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}  # threads that wait for a core that others have spend another
    done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode in (0, 1), done.stderr
    found = [LINE.fullmatch(each) for each in done.stdout.splitlines()[:-1]]
    assert all(found), done.stdout
    return {(each["mutation"], each["claim"], each["evidence"]): not each["same"] for each in found if each}


def named(mutation: Mutation, answers: tuple[claims.Answered, ...]) -> set[Named]:
    return {(mutation.id, claim, kind.value) for claim, kind in answers}


def test_one_claim_of_every_family_turns_within_the_budget() -> None:
    before = getrusage(RUSAGE_CHILDREN)
    found, asked = turned("--first"), mutations.first_of_families(KNOWN)
    after = getrusage(RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < BUDGET
    assert set(found) == set[Named]().union(*(named(each, asked[each.id]) for each in KNOWN))
    assert [names for names, turns in found.items() if not turns] == []


@pytest.mark.exhaustive
def test_every_claim_of_every_mutation_turns() -> None:
    found = turned()
    assert set(found) == set[Named]().union(*(named(each, each.turns) for each in KNOWN))
    assert [names for names, turns in found.items() if not turns] == []


def test_mutations_change_functions_and_turn_answers_by_functions() -> None:
    by_function = {one for members in mutations.answer_families().values() for one in members}
    for each in KNOWN:
        assert each.code(), each.id
        assert set(each.turns) <= by_function, each.id
        assert len(set(each.turns)) == len(each.turns), each.id


def test_what_a_mutation_breaks_is_used_outside_the_papers() -> None:
    """Code that only answers call is evidence, and no code of an ordinary run."""
    files = [file for room in ("suite", "baselines") for file in (ROOT / room).rglob("*.py")]
    trees = [ast.parse(file.read_text("utf-8")) for file in files if "papers" not in file.relative_to(ROOT).parts]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import)]
    used = {f"{getattr(node, 'module', '')}.{each.name}".removeprefix(".") for node in nodes for each in node.names}
    used |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    configured = "".join(file.read_text("utf-8") for file in (ROOT / "conf").rglob("*.yaml"))
    assert [each.id for each in KNOWN if each.module not in used and f"{each.module}." not in configured] == []


def test_short_run_asks_each_turned_family_once() -> None:
    """Families that are answered slowly alone are left to the exhaustive run."""
    asked = [one for some in mutations.first_of_families(KNOWN).values() for one in some]
    turns = {one for each in KNOWN for one in each.turns if one not in each.slowly}
    families = [[one for one in members if one in turns] for members in mutations.answer_families().values()]
    assert sorted(sum(one in asked for one in members) for members in families if members) == [1] * len(asked)


def test_families_without_a_quick_answer_are_listed() -> None:
    family_of = {one: function for (_, function), some in mutations.answer_families().items() for one in some}
    quick = {family_of[one] for each in KNOWN for one in each.turns if one not in each.slowly}
    slow = {family_of[one] for each in KNOWN for one in each.turns} - quick
    assert {name.removeprefix("suite.papers.") for name in slow} == set(chain(*SLOW_FAMILIES.values()))


def test_answers_know_the_mutations_that_turn_them() -> None:
    rows = {(claim.id, row.evidence): row for claim in claims.load() for row in claim.answers}
    for one, row in rows.items():
        assert list(row.turned_by) == [each.id for each in KNOWN if one in each.turns]


MUTATION = Mutation("x", "suite/core/op.py", (), (), "A name changes.", (("samo.eq2.samo_bytes", Evidence.DERIVED),))


def changed(was: str, becomes: str) -> Mutation:
    return replace(MUTATION, was=(was,), becomes=(becomes,))


def test_passage_stands_once() -> None:
    with pytest.raises(InvalidRequest, match="stands 2 times"):
        changed("class Op", "class Up").changed("class Op; class Op")
    with pytest.raises(InvalidRequest, match="stands 0 times"):
        changed("class Op", "class Up").changed("nothing")


def test_change_outside_of_functions_is_no_mutation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutations, "ROOT", tmp_path)
    (tmp_path / "suite/core").mkdir(parents=True)
    (tmp_path / MUTATION.file).write_text("A = 1\nclass B:\n    c = 2\ndef f(d=3):\n    return lambda: 4\n")
    for was in "123":
        with pytest.raises(InvalidRequest, match="when it is imported"):
            changed(was, "9").code()
    with pytest.raises(InvalidRequest, match="when it is imported"):
        changed("4", "4").code()  # changes nothing
    assert len(changed("4", "9").code()) == 2  # of the function and of the one that it makes


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"file": "suite/papers/samo/counts.py"}, "a file outside"),
        ({"file": "conf/stack/samo.yaml"}, "a file outside"),
        ({"says": ""}, "texts, and as many passages"),
        ({"was": ["x", "z"]}, "texts, and as many passages"),
        ({"more": "x"}, "the keys"),
        ({"turns": []}, "claims by evidence"),
        ({"turns": {}}, "turns nothing"),
        ({"slowly": ["b"]}, "claims by evidence"),
        ({"turns": {"guessed": ["b"]}}, "evidence that mutation a turns"),
    ],
)
def test_rows_that_are_no_mutation_are_refused(tmp_path: Path, change: dict[str, object], rule: str) -> None:
    row = {
        "id": "a",
        "file": "suite/core/op.py",
        "was": "x",
        "becomes": "y",
        "says": "it breaks",
        "turns": {"derived": ["b"]},
    }
    for paper in claims.PAPERS:
        (tmp_path / paper).mkdir()
        (tmp_path / paper / claims.MUTATIONS).write_text("[]")
    file = tmp_path / "samo" / claims.MUTATIONS
    file.write_text(yaml.safe_dump([row]))
    assert [each.turns for each in mutations.load(tmp_path)] == [(("b", Evidence.DERIVED),)]
    file.write_text(yaml.safe_dump([row, row]))
    with pytest.raises(InvalidRequest, match="each id once"):
        mutations.load(tmp_path)
    file.write_text(yaml.safe_dump([{**row, **change}]))
    with pytest.raises((InvalidRequest, UnknownName), match=rule):
        mutations.load(tmp_path)


def test_answers_that_fail_do_not_turn(tmp_path: Path) -> None:
    """Turned verdicts are written, the fastest first, and all other entries stay."""
    for paper in claims.PAPERS:
        (tmp_path / paper).mkdir()
        (tmp_path / paper / claims.MUTATIONS).write_text("# head\n[]\n")
    file = tmp_path / "samo" / claims.MUTATIONS
    row = {"id": "a", "file": "suite/core/op.py", "was": "x", "becomes": "y", "says": "it breaks"}
    file.write_text("# head\n" + yaml.safe_dump([{**row, "turns": {"derived": ["axonn.x", "samo.gone"]}}]))
    made = [
        MutationResult("a", "samo.slow", Evidence.DERIVED, "reproduced", "differs", 2.0),
        MutationResult("a", "samo.quick", Evidence.DERIVED, "reproduced", "differs", 0.5),
        MutationResult("a", "samo.same", Evidence.DERIVED, "differs", "differs", 0.0),
        MutationResult("a", "samo.broken", Evidence.DERIVED, "reproduced", FAILED, 0.0),
    ]
    assert mutations.write_turned_answers([one for one in made if one.turns], "samo.*", tmp_path) == [file]
    assert file.read_text().startswith("# head\n- ")
    (found,) = mutations.load(tmp_path)
    assert [name for name, _ in found.turns] == ["axonn.x", "samo.quick", "samo.slow"]
    assert found.slowly == (("samo.slow", Evidence.DERIVED),)


def test_unknown_mutation_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match=f"did you mean '{KNOWN[0].id}'"):
        mutations.select_mutations([f"{KNOWN[0].id}x"], KNOWN)
