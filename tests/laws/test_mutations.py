"""Law 11: every mutation changes the verdicts that it lists.

Each mutation breaks code that ordinary runs use. A verdict that does not change would depend on no code. `make test`
draws a few mutations and tries one fast answer of each family; the exhaustive run tries all answers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from suite.claims import load, mutate
from suite.claims.claim import Evidence, Mutation
from suite.core.errors import InvalidRequest, UnknownName
from tests.support.drawn import generator
from tests.support.refusals import refused
from tests.support.waiting import patience

ROOT = Path(__file__).resolve().parents[2]
KNOWN = mutate.known_mutations()
FEW = 3  # mutations that a run draws
# families without a quick answer, by the reason; only the exhaustive run tries them
SLOW_FAMILIES = {
    "it trains models": """
        axonn.measured: constant_in_flight lemma_1 lemma_2 loss_curves loss_predivision overlap pipeline_limit
            reduced_bytes
        axonn.measured_memory: footprint memory_ratio saving
        pipeoptim.measured: needs_sgdm pipeoptim_stale spectrain_inconsistent spectrain_stale
        pipeoptim.measured_ranks: gpipe
        samo.measured_messages: send_time
        sparse_gnn.measured: accuracy activation
        sparse_gnn.measured_runs: phases
        sparse_gnn.measured_wire: all_reduce_words bytes_by_system oblivious stages
        """,
    "it searches plans or simulates batches of hundreds of GPUs": """
        axonn.figures: gains memory_ratio reduction_time time_over_depth
        axonn.scaling: fastest
        """,
    "it accounts for the memory of every plan": """
        pipeoptim.memory_account: alike larger
        """,
    "it partitions graphs": """
        sparse_gnn.counts: column_segments nnz_imbalance
        sparse_gnn.figures: faster_above_64 out_of_memory overwhelming_gain times_over_gpus
        sparse_gnn.measured_runs: partitioner_calls
        """,
}
LINE = re.compile(
    r"(?P<mutation>\S+) +(?P<claim>\S+) +(?P<evidence>\w+): (?P<before>.+) -> (?P<after>.+?)(?P<same>  SAME)?"
)


def slow_families() -> Iterator[str]:
    """The families of SLOW_FAMILIES by module and function."""
    for word in " ".join(SLOW_FAMILIES.values()).split():
        if word.endswith(":"):
            module = word.removesuffix(":")
        else:
            yield f"{module}.{word}"


def assert_all_change(tried: dict[str, tuple[load.Answered, ...]], *options: str) -> None:
    """Run `suite claims mutate`. Fail unless it judges exactly the tried answers, and all of their verdicts change."""
    line = [sys.executable, "-m", "suite", "claims", "mutate", *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}  # spinning threads would add CPU time on a loaded machine
    process = subprocess.run(
        line, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=patience(500)
    )
    assert process.returncode in (0, 1), process.stderr
    matches = [LINE.fullmatch(row) for row in process.stdout.splitlines()[:-1]]
    assert all(matches), process.stdout
    changes = {match.group("mutation", "claim", "evidence"): not match["same"] for match in matches if match}
    assert set(changes) == {(name, claim, kind.value) for name, answers in tried.items() for claim, kind in answers}
    assert [name for name, changed in changes.items() if not changed] == []


@pytest.mark.slow("a verdict or two of each drawn mutation is computed again")
def test_verdicts_of_a_few_mutations_change() -> None:
    fast = [mutation for mutation in KNOWN if mutation.quick_answers]
    few = generator("mutations").sample(fast, FEW)
    assert_all_change(mutate.first_of_families(few), "--first", *(mutation.id for mutation in few))


@pytest.mark.exhaustive
@pytest.mark.parametrize("mutation", KNOWN, ids=lambda mutation: mutation.id)
def test_every_listed_verdict_changes(mutation: Mutation) -> None:
    assert_all_change({mutation.id: mutation.answers}, mutation.id)


def test_mutations_list_answers_by_functions_that_name_them() -> None:
    by_function = {answered for members in mutate.answer_families().values() for answered in members}
    for mutation in KNOWN:
        mutate.changed(mutation, (ROOT / mutation.file).read_text(encoding="utf-8"))  # raises for a lost passage
        assert set(mutation.answers) <= by_function, mutation.id
        assert len(set(mutation.answers)) == len(mutation.answers), mutation.id
    rows = {(claim.id, row.evidence): row for claim in load.claims() for row in claim.answers}
    for answered, row in rows.items():
        assert list(row.turned_by) == [mutation.id for mutation in KNOWN if answered in mutation.answers]


@pytest.mark.exhaustive  # a run of a mutation compiles its own file
def test_every_mutation_changes_code_of_functions() -> None:
    assert [mutation.id for mutation in KNOWN if not mutate.new_code(mutation)] == []


def test_short_run_tries_one_fast_answer_of_most_families() -> None:
    """Of all but SLOW_FAMILIES."""
    family_of = {a: function for (_, function), members in mutate.answer_families().items() for a in members}
    fast = {family_of[a] for mutation in KNOWN for a in mutation.quick_answers}
    tried = [family_of[a] for answers in mutate.first_of_families(KNOWN).values() for a in answers]
    assert sorted(tried) == sorted(fast)
    slow = {family_of[a] for mutation in KNOWN for a in mutation.answers} - fast
    assert {name.removeprefix("suite.papers.") for name in slow} == set(slow_families())


MUTATION = Mutation("x", "suite/core/op.py", (), (), "A name changes.", {Evidence.DERIVED: ("samo.eq2.samo_bytes",)})


def mutation_of(was: str, becomes: str) -> Mutation:
    return replace(MUTATION, was=(was,), becomes=(becomes,))


def test_changes_outside_functions_and_unclear_passages_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("class Op; class Op", "nothing"):
        with refused(InvalidRequest, subject="x", rule="each passage occurs once"):
            mutate.changed(mutation_of("class Op", "class Up"), text)
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    (tmp_path / "suite/core").mkdir(parents=True)
    (tmp_path / MUTATION.file).write_text("A = 1\nclass B:\n    c = 2\ndef f(d=3):\n    return lambda: 4\n")
    for was, becomes in [*((digit, "9") for digit in "123"), ("4", "4")]:  # the last changes nothing
        with refused(InvalidRequest, subject="x", rule="a change inside functions"):
            mutate.new_code(mutation_of(was, becomes))
    assert len(mutate.new_code(mutation_of("4", "9"))) == 2  # the function and its lambda
    with refused(UnknownName, "mutation", f"{KNOWN[0].id}x", legal=KNOWN[0].id):
        mutate.select_mutations([f"{KNOWN[0].id}x"], KNOWN)
    claim, _ = KNOWN[-1].answers[0]
    for name in (KNOWN[-1].id, claim, f"{claim[:-1]}?", claim.partition(".")[0]):
        chosen = mutate.select_mutations([name, name], KNOWN)
        assert KNOWN[-1] in chosen
        assert len(chosen) == len({each.id for each in chosen}) < len(KNOWN)


ROW = {"id": "a", "file": "suite/core/op.py", "was": "x", "becomes": "y", "says": "b", "turns": {"derived": ["b"]}}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[dict[str, object]]], Path]:
    """Function that writes rows as the mutations of SAMO, the only paper of its folder."""
    (tmp_path / "samo").mkdir()
    monkeypatch.setattr(load, "FOLDER", tmp_path)

    def written(rows: list[dict[str, object]]) -> Path:
        file = tmp_path / "samo" / load.MUTATIONS
        file.write_text("# head\n" + yaml.safe_dump(rows))
        return file

    return written


INVALID_ROWS: tuple[tuple[dict[str, object], str], ...] = (
    ({"file": "suite/papers/samo/counts.py"}, "a file outside"),
    ({"file": "conf/efficiency/samo.yaml"}, "a file outside"),
    ({"says": 3}, "a valid string"),
    ({"was": ["x", "z"]}, "as many passages"),
    ({"becomes": ""}, "as many passages"),
    ({"more": "x"}, "Unexpected keyword"),
    ({"turns": []}, "an object"),
    ({"turns": {}}, "an answer"),
    ({"turns": {"guessed": ["b"]}}, "'measured', 'derived'"),
)


def test_invalid_rows_are_refused(write: Callable[[list[dict[str, object]]], Path]) -> None:
    write([ROW])
    assert [mutation.answers for mutation in mutate.known_mutations()] == [(("b", Evidence.DERIVED),)]
    invalid = [([ROW, ROW], "one mutation per id"), *(([{**ROW, **change}], rule) for change, rule in INVALID_ROWS)]
    for rows, rule in invalid:
        write(rows)
        with pytest.raises(InvalidRequest) as refusal:
            mutate.known_mutations()
        assert rule in refusal.value.rule, rows
