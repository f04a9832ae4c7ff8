"""Law 11: every mutation changes the verdicts that it lists.

Each mutation breaks code that ordinary runs use. A verdict that does not change would depend on no code. `make test`
tries one fast answer of each family, the exhaustive run tries all answers.
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
# CPU seconds of the short run: it takes 60 on a fast core and 105 on one without AVX-512, more with shared caches
BUDGET = 180.0
# families without a fast answer, by the reason; only the exhaustive run tries them
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
        *("sparse_gnn.probes_wire.bytes_by_system", "sparse_gnn.probes_wire.oblivious"),
        *("sparse_gnn.probes_wire.stages", "sparse_gnn.probes_wire.all_reduce_words"),
    ),
    "it searches plans or simulates batches of hundreds of GPUs": (
        *("axonn.figures.gains", "axonn.figures.memory_ratio", "axonn.figures.reduction_time"),
        *("axonn.figures.time_over_depth", "axonn.scaling.equal_data"),
        "axonn.scaling.fastest",
    ),
    "it accounts for the memory of every plan": (
        *("pipeoptim.memory_account.alike", "pipeoptim.memory_account.larger", "pipeoptim.memory_account.most"),
    ),
    "it partitions graphs": (
        *("sparse_gnn.counts.nnz_imbalance", "sparse_gnn.counts.column_segments", "sparse_gnn.figures.falls_on_amazon"),
        *(
            "sparse_gnn.figures.faster_above_64",
            "sparse_gnn.figures.flat_at_low_counts",
            "sparse_gnn.figures.gain_from_32",
        ),
        *("sparse_gnn.figures.local_seconds", "sparse_gnn.figures.no_gain", "sparse_gnn.figures.out_of_memory"),
        *("sparse_gnn.figures.overwhelming_gain", "sparse_gnn.probes_runs.partitioner_calls"),
    ),
}


def verdict_changes(*options: str) -> dict[Named, bool]:
    """Run `suite claims mutate`. Returns whether each verdict changes, by mutation, claim and evidence."""
    line = [sys.executable, "-m", "suite", "claims", "mutate", *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}  # spinning threads would add CPU time on a loaded machine
    process = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=1500)
    assert process.returncode in (0, 1), process.stderr
    matches = [LINE.fullmatch(row) for row in process.stdout.splitlines()[:-1]]
    assert all(matches), process.stdout
    return {(match["mutation"], match["claim"], match["evidence"]): not match["same"] for match in matches if match}


def assert_all_change(changes: dict[Named, bool], tried: dict[str, tuple[claims.Answered, ...]]) -> None:
    """Fail unless exactly the tried answers were judged, and all of their verdicts changed."""
    expected = {(name, claim, kind.value) for name, answers in tried.items() for claim, kind in answers}
    assert set(changes) == expected
    assert [name for name, changed in changes.items() if not changed] == []


def test_some_verdicts_change() -> None:
    """Every sixth mutation, one quick answer per family; all of them take a minute (test below)."""
    some = KNOWN[::6]
    tried = {name: answers for name, answers in mutations.first_of_families(some).items() if answers}
    assert len({name.partition(".")[0] for name in tried}) >= 3
    assert_all_change(verdict_changes("--first", *(mutation.id for mutation in some)), tried)


@pytest.mark.exhaustive
def test_one_verdict_per_family_changes_within_the_budget() -> None:
    before = getrusage(RUSAGE_CHILDREN)
    changes = verdict_changes("--first")
    after = getrusage(RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < BUDGET
    assert_all_change(changes, mutations.first_of_families(KNOWN))


@pytest.mark.exhaustive
def test_every_listed_verdict_changes() -> None:
    assert_all_change(verdict_changes(), {mutation.id: mutation.turns for mutation in KNOWN})


def test_mutations_change_functions_and_list_answers_by_functions() -> None:
    by_function = {answered for members in mutations.answer_families().values() for answered in members}
    for mutation in KNOWN:
        assert mutation.code(), mutation.id
        assert set(mutation.turns) <= by_function, mutation.id
        assert len(set(mutation.turns)) == len(mutation.turns), mutation.id


def test_mutated_modules_are_used_outside_the_papers() -> None:
    """Code that only answers call is not code of an ordinary run."""
    files = [file for room in ("suite", "baselines") for file in (ROOT / room).rglob("*.py")]
    trees = [ast.parse(file.read_text("utf-8")) for file in files if "papers" not in file.relative_to(ROOT).parts]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import)]
    used = {f"{getattr(node, 'module', '')}.{alias.name}".removeprefix(".") for node in nodes for alias in node.names}
    used |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    configured = "".join(file.read_text("utf-8") for file in (ROOT / "conf").rglob("*.yaml"))
    assert [row.id for row in KNOWN if row.module not in used and f"{row.module}." not in configured] == []


def test_short_run_tries_one_fast_answer_per_family() -> None:
    tried = [answered for answers in mutations.first_of_families(KNOWN).values() for answered in answers]
    fast = {answered for mutation in KNOWN for answered in mutation.turns if answered not in mutation.slowly}
    families = [fast.intersection(members) for members in mutations.answer_families().values()]
    assert [sum(answered in tried for answered in members) for members in families if members] == [1] * len(tried)


def test_families_without_a_fast_answer_are_listed() -> None:
    family_of = {a: function for (_, function), members in mutations.answer_families().items() for a in members}
    fast = {family_of[a] for mutation in KNOWN for a in mutation.turns if a not in mutation.slowly}
    slow = {family_of[a] for mutation in KNOWN for a in mutation.turns} - fast
    assert {name.removeprefix("suite.papers.") for name in slow} == set(chain(*SLOW_FAMILIES.values()))


def test_answers_hold_the_ids_of_their_mutations() -> None:
    rows = {(claim.id, row.evidence): row for claim in claims.load() for row in claim.answers}
    for answered, row in rows.items():
        assert list(row.turned_by) == [mutation.id for mutation in KNOWN if answered in mutation.turns]


MUTATION = Mutation("x", "suite/core/op.py", (), (), "A name changes.", (("samo.eq2.samo_bytes", Evidence.DERIVED),))


def mutation_of(was: str, becomes: str) -> Mutation:
    return replace(MUTATION, was=(was,), becomes=(becomes,))


@pytest.mark.parametrize("text", ["class Op; class Op", "nothing"])
def test_passage_must_occur_once(text: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        mutation_of("class Op", "class Up").changed(text)
    assert error.value.rule == "each passage occurs once"


def test_change_outside_functions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutations, "ROOT", tmp_path)
    (tmp_path / "suite/core").mkdir(parents=True)
    (tmp_path / MUTATION.file).write_text("A = 1\nclass B:\n    c = 2\ndef f(d=3):\n    return lambda: 4\n")
    for was, becomes in [*((digit, "9") for digit in "123"), ("4", "4")]:  # the last changes nothing
        with pytest.raises(InvalidRequest) as error:
            mutation_of(was, becomes).code()
        assert error.value.rule.startswith("a change inside functions")
    assert len(mutation_of("4", "9").code()) == 2  # the function and its lambda


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"file": "suite/papers/samo/counts.py"}, "a file outside"),
        ({"file": "conf/efficiency/samo.yaml"}, "a file outside"),
        ({"says": ""}, "non-empty texts, and as many passages"),
        ({"was": ["x", "z"]}, "non-empty texts, and as many passages"),
        ({"more": "x"}, "the keys"),
        ({"turns": []}, "claims by evidence"),
        ({"turns": {}}, "an answer"),
        ({"slowly": ["b"]}, "claims by evidence"),
        ({"turns": {"guessed": ["b"]}}, "one of derived, emulated, measured"),
    ],
)
def test_invalid_rows_are_refused(tmp_path: Path, change: dict[str, object], rule: str) -> None:
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
    assert [mutation.turns for mutation in mutations.load(tmp_path)] == [(("b", Evidence.DERIVED),)]
    for rows, expected in (([row, row], "one mutation per id"), ([{**row, **change}], rule)):
        file.write_text(yaml.safe_dump(rows))
        with pytest.raises(InvalidRequest) as error:
            mutations.load(tmp_path)
        assert error.value.rule.startswith(expected)


def test_changed_verdicts_are_written_fastest_first(tmp_path: Path) -> None:
    """A failed answer does not count as changed, and entries of other claims stay."""
    for paper in claims.PAPERS:
        (tmp_path / paper).mkdir()
        (tmp_path / paper / claims.MUTATIONS).write_text("# head\n[]\n")
    file = tmp_path / "samo" / claims.MUTATIONS
    row = {"id": "a", "file": "suite/core/op.py", "was": "x", "becomes": "y", "says": "it breaks"}
    file.write_text("# head\n" + yaml.safe_dump([{**row, "turns": {"derived": ["axonn.x", "samo.gone"]}}]))
    outcomes = [
        MutationResult("a", "samo.slow", Evidence.DERIVED, "reproduced", "differs", 2.0),
        MutationResult("a", "samo.quick", Evidence.DERIVED, "reproduced", "differs", 0.5),
        MutationResult("a", "samo.same", Evidence.DERIVED, "differs", "differs", 0.0),
        MutationResult("a", "samo.broken", Evidence.DERIVED, "reproduced", FAILED, 0.0),
    ]
    changed = [outcome for outcome in outcomes if outcome.turns]
    assert mutations.write_turned_answers(changed, "samo.*", tmp_path) == [file]
    assert file.read_text().startswith("# head\n- ")
    (mutation,) = mutations.load(tmp_path)
    assert [name for name, _ in mutation.turns] == ["axonn.x", "samo.quick", "samo.slow"]
    assert mutation.slowly == (("samo.slow", Evidence.DERIVED),)


def test_unknown_mutation_gets_the_nearest_id() -> None:
    with pytest.raises(UnknownName) as error:
        mutations.select_mutations([f"{KNOWN[0].id}x"], KNOWN)
    assert error.value.legal == f"did you mean '{KNOWN[0].id}'?"
