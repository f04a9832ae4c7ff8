"""Mutation tests of verdicts.

Each row of mutations.yaml breaks code on which verdicts depend, and lists the answers whose verdicts must change. The
changed passage is inside functions that ordinary runs use, outside suite/claims, suite/papers and conf. A changed
constant, setting or default is not a mutation and is refused. The best verdict of an answer without a mutation is
`consistent`
(suite.claims.verdict_rules). A forked child process replaces the code of the functions and answers the claims again.
The source files stay unchanged.

    suite claims mutate [ID ...]
"""

from __future__ import annotations

import gc
import importlib
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from inspect import CO_OPTIMIZED
from multiprocessing import get_context
from types import CodeType, FunctionType

from suite.claims import load, verdicts_now
from suite.claims.claim import Answered, AnswerRow, Evidence, Mutation
from suite.core.errors import Fault, UnknownName, refuse
from suite.core.resources import ROOT

_FORBIDDEN = ("suite/claims/", "suite/papers/", "conf/")
FAILED = "failed"  # replaces the verdict if the changed code raises or hangs; does not count as a changed verdict
Functions = Mapping[str, list[FunctionType]]  # by module
Outcomes = dict[Answered, tuple[str, float]]  # verdict and CPU seconds
LONGEST = 600  # time limit of a child process in seconds, because broken code can hang


def module_of(mutation: Mutation) -> str:
    return mutation.file.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")


def changed(mutation: Mutation, text: str) -> str:
    """Text of the file with the change. Raises InvalidRequest unless each passage occurs exactly once."""
    for was, becomes in mutation.passages:
        what = f"a passage of mutation {mutation.id} occurs {text.count(was)} times in {mutation.file}: {was}"
        refuse([(text.count(was) != 1, what, "each passage occurs once")])
        text = text.replace(was, becomes)
    return text


def new_code(mutation: Mutation) -> dict[CodeType, CodeType]:
    """New code of each changed function, by its old code.

    Raises:
        InvalidRequest: Code outside of functions changes too, or no code changes.
    """
    path = ROOT / mutation.file
    text = path.read_text(encoding="utf-8")
    before, after = (compile(each, str(path), "exec", dont_inherit=True) for each in (text, changed(mutation, text)))
    codes: dict[CodeType, CodeType] = {}
    inside = _match_functions(before, after, codes) and codes
    what = f"mutation {mutation.id} changes code of {mutation.file} that runs at import"
    refuse([(not inside, what, "a change inside functions; a changed constant or default is not a mutation")])
    return codes


@dataclass(frozen=True, slots=True)
class MutationResult:
    """Verdicts on one answer before and after a mutation."""

    mutation: str
    claim: str
    evidence: Evidence
    before: str
    after: str
    seconds: float  # CPU time of the answer after the mutation

    @property
    def turns(self) -> bool:
        return self.after not in (self.before, FAILED)

    def __str__(self) -> str:
        return f"{self.mutation:<40} {self.claim:<52} {self.evidence}: {self.before} -> {self.after}"


def known_mutations() -> list[Mutation]:
    """All mutations of the papers. Raises InvalidRequest if one breaks a rule."""
    mutations = load.mutations()
    refuse([(len({each.id for each in mutations}) < len(mutations), "two mutations", "one mutation per id")])
    for each in mutations:
        rules = (
            (any("" in pair for pair in each.passages), "as many passages in becomes as in was, none empty"),
            (each.file.startswith(_FORBIDDEN), f"a file outside {' and '.join(_FORBIDDEN)}"),
            (not each.answers, "it changes the verdict of an answer"),
        )
        refuse((broken, f"mutation {each.id}", rule) for broken, rule in rules)
    return mutations


def select_mutations(names: Sequence[str], known: Sequence[Mutation]) -> list[Mutation]:
    """Mutations with these ids, or that change a verdict of these claims or papers; all without names.

    Raises UnknownName for a name that is neither."""
    by_id = {mutation.id: mutation for mutation in known}
    claims_by_id = {claim.id: claim for claim in load.claims()} if {*names} - {*by_id} else {}
    chosen = {}
    for name in names:
        if name in by_id:
            chosen[name] = by_id[name]
            continue
        try:
            turned = {claim.id for claim in load.named(name, claims_by_id)}
        except UnknownName:
            raise UnknownName("mutation", name, {*by_id, *claims_by_id, *load.papers()}) from None
        chosen |= {each.id: each for each in known if turned.intersection(claim for claim, _ in each.answers)}
    return list(chosen.values()) if names else list(known)


def run_mutations(
    mutations: Sequence[Mutation], answers_for: Callable[[Mutation], Sequence[Answered]]
) -> Iterator[MutationResult]:
    """Yield the verdicts on each selected answer before and after each mutation.

    Args:
        mutations: Mutations to apply, one at a time.
        answers_for: Returns the answers to judge under a mutation.

    Raises:
        Fault: A child process ends without verdicts, or an answer fails without a mutation.
    """
    answers = {mutation.id: list(answers_for(mutation)) for mutation in mutations}
    all_answers = list(dict.fromkeys(answered for group in answers.values() for answered in group))
    functions = _prepare(set(all_answers), mutations)
    before = _in_child(None, all_answers, functions)
    if failed := [f"{name} ({kind})" for (name, kind), (verdict, _) in before.items() if verdict == FAILED]:
        raise Fault(f"the unchanged code does not answer {', '.join(failed)}")
    for mutation in mutations:
        after = _in_child(mutation, answers[mutation.id], functions)
        for answered in answers[mutation.id]:
            yield MutationResult(mutation.id, *answered, before[answered][0], *after[answered])


def answers_matching(pattern: str) -> tuple[Answered, ...]:
    """Answers by a function to claims whose ids match a pattern with *. Raises UnknownName if none matches."""
    claims_by_id = {claim.id: claim for claim in load.claims()}
    if not (matches := [claim for name, claim in claims_by_id.items() if fnmatchcase(name, pattern)]):
        raise UnknownName("claim", pattern, claims_by_id)
    return tuple((claim.id, row.evidence) for claim in matches for row in claim.answers if _can_turn(row))


def _can_turn(row: AnswerRow) -> bool:
    """Whether a mutation could change the verdict: not for printed numbers and restatements."""
    return bool(row.function) and not row.restates


def answer_families() -> dict[tuple[str, str], list[Answered]]:
    """Answers whose verdict a mutation could change, by paper and function."""
    members: dict[tuple[str, str], list[Answered]] = {}
    for claim in load.claims():
        for row in filter(_can_turn, claim.answers):
            members.setdefault((claim.paper, row.function), []).append((claim.id, row.evidence))
    return members


def first_of_families(mutations: Sequence[Mutation]) -> dict[str, tuple[Answered, ...]]:
    """Answers for a short run by mutation: one fast answer of each family, each family under one mutation."""
    family_of = {answered: family for family, members in answer_families().items() for answered in members}
    seen: set[tuple[str, str]] = set()
    firsts = {}
    for mutation in mutations:
        fast = [a for a in mutation.quick_answers if family_of[a] not in seen]
        first_by_family = {family_of[answered]: answered for answered in reversed(fast)}
        seen |= first_by_family.keys()
        firsts[mutation.id] = tuple(first_by_family.values())
    return firsts


# -- changed code ----------------------------------------------------------------------------------------------------


def _match_functions(before: CodeType, after: CodeType, codes: dict[CodeType, CodeType]) -> bool:
    """Add the new code of each changed function to `codes`. Returns False if code that runs at import differs."""
    inner, changed = _inner(before), _inner(after)
    alike = len(inner) == len(changed) and all(a.co_name == b.co_name for a, b in zip(inner, changed, strict=True))
    if before.co_flags & CO_OPTIMIZED:  # set for functions, not for classes and modules
        if before != after:
            codes[before] = after
    elif not alike or _statements(before) != _statements(after):
        return False
    pairs = zip(inner, changed, strict=True) if alike else ()
    return all(_match_functions(old, new, codes) for old, new in pairs)


def _inner(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _statements(code: CodeType) -> tuple[object, ...]:
    """Statements of a code object without the code of its inner functions."""
    constants = [(type(value), value) for value in code.co_consts if not isinstance(value, CodeType)]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants


def _changed(mutation: Mutation, functions: Functions) -> list[tuple[FunctionType, CodeType]]:
    """Mutated functions with their new code. Raises InvalidRequest if no function of the module changes."""
    codes, module = new_code(mutation), module_of(mutation)
    found = [(each, codes[each.__code__]) for each in functions[module] if each.__code__ in codes]
    what = f"mutation {mutation.id} changes no function of {module}"
    refuse([(not found, what, "at least one changed function")])
    return found


# -- children --------------------------------------------------------------------------------------------------------


def _prepare(answers: set[Answered], mutations: Sequence[Mutation]) -> Functions:
    """Import modules and compose configs once for all child processes, and return the functions of mutated modules.

    A child process that searched for the functions itself would copy the memory of every object."""
    functions: dict[str, list[FunctionType]] = {module_of(mutation): [] for mutation in mutations}
    for module in functions:
        importlib.import_module(module)
    verdicts_now.compose_sources(answers)
    for candidate in gc.get_objects():
        if type(candidate) is FunctionType and candidate.__module__ in functions:
            functions[candidate.__module__].append(candidate)
    return functions


def _in_child(mutation: Mutation | None, answers: Sequence[Answered], functions: Functions) -> Outcomes:
    """Verdict and CPU seconds of each answer, computed in a child process under a mutation, if any."""
    codes = _changed(mutation, functions) if mutation else []
    outcomes = dict.fromkeys(answers, (FAILED, 0.0))  # default for answers that the child does not reach
    with ProcessPoolExecutor(1, get_context("fork"), _begin, (codes,)) as child, suppress(BrokenProcessPool):
        for answered in answers:
            outcomes[answered] = child.submit(verdicts_now.verdict_alone, answered, FAILED).result()
    return outcomes


def _begin(codes: Sequence[tuple[FunctionType, CodeType]]) -> None:
    """Change the functions of this child process, which broken code may not keep for longer than LONGEST."""
    signal.alarm(LONGEST)
    for function, code in codes:
        function.__code__ = code
