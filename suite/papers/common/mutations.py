"""Mutations: small breaks of the code that a verdict rests on, after which it must be another.

Each row of a paper's mutations.yaml changes one passage inside functions that ordinary runs use, outside suite/papers
and conf, and names the answers whose verdicts turn, by evidence. A changed constant, setting or default is no mutation
and is refused. An answer that no mutation turns is `consistent` at most (suite.report.verdict_rules). A forked child
puts the changed code into the functions and answers the claims again; the files themselves are never touched.

    suite claims mutate [ID ...]
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from inspect import CO_OPTIMIZED
from operator import attrgetter
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import yaml

from suite.core.claim import AnswerRow, Evidence
from suite.core.errors import Fault, InvalidRequest, UnknownName
from suite.core.resources import ROOT
from suite.papers.common import claims, verdicts_now
from suite.papers.common.claims import FOLDER, MUTATIONS, PAPERS, Answered, answers_by_evidence, turned_answers

_KEYS = {"id", "file", "was", "becomes", "says", "turns"}
_FORBIDDEN = ("suite/papers/", "conf/")
FAILED = "failed"  # what stands for a verdict where the changed code raises or hangs: no turn
SLOW = 1.0  # CPU seconds of an answer that a short run leaves out
Functions = Mapping[str, list[FunctionType]]  # by module
LONGEST = 600  # seconds that a child may take: broken code can wait for ever


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of code.

    Attributes:
        file: Relative to the repository.
        was: passages, each of which stands in it once.
        becomes: The new code of each.
        says: The effect of the change.
        turns: The claims, with the evidence of the answer, whose verdicts must be others.
        slowly: The claims of `turns` whose answer takes more than a second of a core.
    """

    id: str
    file: str
    was: tuple[str, ...]
    becomes: tuple[str, ...]
    says: str
    turns: tuple[Answered, ...]
    slowly: tuple[Answered, ...] = ()

    @property
    def module(self) -> str:
        return self.file.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")

    def changed(self, text: str) -> str:
        """The file's text with the change. Raises InvalidRequest where a passage does not stand in it once."""
        for was, becomes in zip(self.was, self.becomes, strict=True):
            if (count := text.count(was)) != 1:
                raise InvalidRequest(
                    f"a passage of mutation {self.id} stands {count} times in {self.file}: {was}",
                    rule="a passage that stands once",
                )
            text = text.replace(was, becomes)
        return text

    def code(self) -> dict[CodeType, CodeType]:
        """The new code of each function that the change touches.

        Raises InvalidRequest where code outside of functions changes as well.
        """
        path = ROOT / self.file
        text = path.read_text(encoding="utf-8")
        before, after = (compile(each, str(path), "exec", dont_inherit=True) for each in (text, self.changed(text)))
        codes: dict[CodeType, CodeType] = {}
        if not _pair(before, after, codes) or not codes:
            raise InvalidRequest(
                f"mutation {self.id} changes what {self.file} does when it is imported",
                rule="a change inside functions: a changed constant or default is no mutation",
            )
        return codes


@dataclass(frozen=True, slots=True)
class MutationResult:
    """The verdicts on one answer before and after a mutation. seconds: CPU time of the second answer"""

    mutation: str
    claim: str
    evidence: Evidence
    before: str
    after: str
    seconds: float

    @property
    def turns(self) -> bool:
        return self.after not in (self.before, FAILED)

    def __str__(self) -> str:
        return f"{self.mutation:<40} {self.claim:<52} {self.evidence}: {self.before} -> {self.after}"


def load(folder: Path = FOLDER) -> tuple[Mutation, ...]:
    """Every mutation of the papers. Raises InvalidRequest for a row that breaks a rule."""
    mutations = [_mutation(row, paper) for paper in PAPERS for row in _rows(folder / paper / MUTATIONS)]
    if len({each.id for each in mutations}) < len(mutations):
        raise InvalidRequest("two mutations have the same id", rule="each id once")
    return tuple(mutations)


def select_mutations(names: Iterable[str], known: Sequence[Mutation]) -> list[Mutation]:
    """The mutations of these ids, all where there are none. Raises UnknownName."""
    by_id = {each.id: each for each in known}
    for name in names:
        if name not in by_id:
            raise UnknownName("mutation", name, by_id)
    return [by_id[name] for name in names] or list(known)


def run_mutations(
    mutations: Sequence[Mutation], asked: Callable[[Mutation], Sequence[Answered]]
) -> Iterator[MutationResult]:
    """The verdict on each answer before and after. `asked`: the answers that a mutation is tried on.

    Raises Fault where a child ends without verdicts, or where the unchanged code fails.
    """
    wanted_answers = {each.id: list(asked(each)) for each in mutations}
    everything = list(dict.fromkeys(one for some in wanted_answers.values() for one in some))
    functions = _prepare(set(everything), mutations)
    before = _in_child(None, everything, functions)
    if failed := [f"{name} ({kind})" for (name, kind), (verdict, _) in before.items() if verdict == FAILED]:
        raise Fault(f"the unchanged code does not answer {', '.join(failed)}")
    for each in mutations:
        after = _in_child(each, wanted_answers[each.id], functions)
        for one in wanted_answers[each.id]:
            yield MutationResult(each.id, *one, before[one][0], *after[one])


def answers_matching(pattern: str) -> tuple[Answered, ...]:
    """The answers by a function to the claims whose ids fit a pattern with *. Raises UnknownName where none does."""
    claims_by_id = {claim.id: claim for claim in claims.load()}
    if not (matches := [claim for name, claim in claims_by_id.items() if fnmatchcase(name, pattern)]):
        raise UnknownName("claim", pattern, claims_by_id)
    return tuple((claim.id, row.evidence) for claim in matches for row in claim.answers if _can_turn(row))


def _can_turn(row: AnswerRow) -> bool:
    """Whether a function of ours gives a value that could be another: numbers of a paper and restatements cannot."""
    return bool(row.function) and row.evidence is not Evidence.PRINTED and not row.restates


def answer_families() -> dict[tuple[str, str], list[Answered]]:
    """The answers that can turn, by paper and by the function that gives them."""
    members: dict[tuple[str, str], list[Answered]] = {}
    for claim in claims.load():
        for row in filter(_can_turn, claim.answers):
            members.setdefault((claim.paper, row.function), []).append((claim.id, row.evidence))
    return members


def answers_without_mutation() -> list[tuple[tuple[str, str], list[Answered]]]:
    """The answers that no mutation turns, by family, the largest family first."""
    turned = {(c.id, row.evidence) for c in claims.load() for row in c.answers if row.turned_by}
    unturned_members = {
        family: [one for one in members if one not in turned] for family, members in answer_families().items()
    }
    return sorted(((key, some) for key, some in unturned_members.items() if some), key=lambda each: -len(each[1]))


def first_of_families(mutations: Sequence[Mutation]) -> dict[str, tuple[Answered, ...]]:
    """For each mutation the answers to try in a short run: one of each family, each family once, no slow one."""
    family_of = {one: family for family, members in answer_families().items() for one in members}
    seen: set[tuple[str, str]] = set()
    firsts = {}
    for each in mutations:
        quick = [one for one in each.turns if one not in each.slowly and family_of[one] not in seen]
        chosen = {family_of[one]: one for one in reversed(quick)}
        seen |= chosen.keys()
        firsts[each.id] = tuple(chosen.values())
    return firsts


def write_turned_answers(found: Iterable[MutationResult], among: str, folder: Path = FOLDER) -> list[Path]:
    """Writes to the papers' files which answers turn, the quickest first; those that do not fit `among` stay."""
    turned: dict[str, list[MutationResult]] = {}
    for one in found:
        turned.setdefault(one.mutation, []).append(one)
    changed = []
    for paper in PAPERS:
        file = folder / paper / MUTATIONS
        text, rows = file.read_text(encoding="utf-8"), _rows(file)
        for row in (row for row in rows if row["id"] in turned):
            new = sorted(turned[str(row["id"])], key=attrgetter("seconds"))
            for key, slow in (("turns", False), ("slowly", True)):
                entries = [one for one in answers_by_evidence(row, key) if not fnmatchcase(one[0], among)]
                entries += [(one.claim, one.evidence) for one in new if (one.seconds > SLOW) is slow]
                by_kind = {kind.value: [name for name, each in entries if each is kind] for kind in Evidence}
                row[key] = {kind: names for kind, names in by_kind.items() if names}
            if not row["slowly"]:
                del row["slowly"]
        head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
        body = head + yaml.safe_dump(rows, sort_keys=False, width=118, allow_unicode=True)
        if body != text:
            file.write_text(body, encoding="utf-8")
            changed.append(file)
    return changed


def _rows(file: Path) -> list[dict[str, Any]]:
    return yaml.safe_load(file.read_text(encoding="utf-8")) or []


def _mutation(row: Any, paper: str) -> Mutation:
    if not isinstance(row, dict) or set(row) - {"slowly"} != _KEYS:
        raise InvalidRequest(f"mutation {row} of {paper}", rule=f"the keys {', '.join(sorted(_KEYS))}")
    texts = [row[key] for key in ("id", "file", "says")]
    passages = [row[key] if isinstance(row[key], list) else [row[key]] for key in ("was", "becomes")]
    both = [each for one in (texts, *passages) for each in one]
    if not all(isinstance(each, str) and each for each in both) or len(passages[0]) != len(passages[1]):
        what = f"mutation {row['id']} of {paper}"
        raise InvalidRequest(what, rule="texts, and as many passages in becomes as in was")
    if str(row["file"]).startswith(_FORBIDDEN):
        raise InvalidRequest(
            f"mutation {row['id']} changes {row['file']}", rule=f"a file outside {' and '.join(_FORBIDDEN)}"
        )
    name, file, says = map(str, texts)
    was, becomes = (tuple(map(str, one)) for one in passages)
    return Mutation(name, file, was, becomes, says, turned_answers(row), answers_by_evidence(row, "slowly"))


# -- changed code ----------------------------------------------------------------------------------------------------


def _pair(before: CodeType, after: CodeType, found: dict[CodeType, CodeType]) -> bool:
    """Notes which function's code replaces which. False where code that runs at import differs."""
    inner, changed = _inner(before), _inner(after)
    alike = len(inner) == len(changed) and all(a.co_name == b.co_name for a, b in zip(inner, changed, strict=True))
    if before.co_flags & CO_OPTIMIZED:  # of a function, not of a class or a module
        if before != after:
            found[before] = after
    elif not alike or _statements(before) != _statements(after):
        return False
    pairs = zip(inner, changed, strict=True) if alike else ()
    return all(_pair(one, other, found) for one, other in pairs)


def _inner(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def _statements(code: CodeType) -> tuple[object, ...]:
    """The code itself, without the code of the functions in it."""
    rest = [(type(each), each) for each in code.co_consts if not isinstance(each, CodeType)]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, rest


def _put(mutation: Mutation, functions: Functions) -> None:
    """Gives these functions the changed code. Raises InvalidRequest where none has the old one."""
    replaced, unchanged = mutation.code(), True
    for each in functions[mutation.module]:
        if each.__code__ in replaced:
            each.__code__ = replaced[each.__code__]
            unchanged = False
    if unchanged:
        raise InvalidRequest(f"mutation {mutation.id} changes no function of {mutation.module}", rule="a function")


# -- children --------------------------------------------------------------------------------------------------------


def _prepare(asked: set[Answered], mutations: Sequence[Mutation]) -> Functions:
    """Imports whatever the children need and composes their configs once; answers nothing. The functions of the mutated
    modules: a child that looked for them would copy the memory of every object."""
    functions: dict[str, list[FunctionType]] = {each.module: [] for each in mutations}
    for module in functions:
        importlib.import_module(module)
    verdicts_now.compose_sources(asked)
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__module__ in functions:
            functions[each.__module__].append(each)
    return functions


def _in_child(
    mutation: Mutation | None, asked: Sequence[Answered], functions: Functions
) -> dict[Answered, tuple[str, float]]:
    """The verdicts of a child with the change, if there is one, and the CPU seconds that each answer took."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _answer(mutation, asked, functions, writing)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise Fault(f"mutation {mutation.id if mutation else 'none'} could not be tried")
    outcomes = dict.fromkeys(asked, (FAILED, 0.0))  # of those that a child does not reach
    for line in text.splitlines():
        name, kind, verdict, seconds = json.loads(line)
        outcomes[name, Evidence(kind)] = verdict, seconds
    return outcomes


def _answer(mutation: Mutation | None, asked: Sequence[Answered], functions: Functions, writing: int) -> None:
    """In the child: answers and ends the process."""
    status = 1
    try:
        if mutation is not None:
            signal.alarm(LONGEST)
            _put(mutation, functions)
        with os.fdopen(writing, "w", encoding="utf-8", buffering=1) as stream:
            for one, verdict, seconds in verdicts_now.verdict_of_each(asked, FAILED):
                stream.write(json.dumps((*one, verdict, seconds)) + "\n")
        status = 0
    except BaseException as error:  # nothing leaves a child but by its end
        sys.stderr.write(f"{mutation.id if mutation else 'none'}: {type(error).__name__}: {error}\n")
    finally:
        os._exit(status)
