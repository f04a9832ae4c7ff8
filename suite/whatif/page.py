"""Driver of the page: the form of a question, and its answer as JSON and a buffer of numbers.

The web worker and the command `suite whatif KEY=VALUE` call the same functions.
"""

from __future__ import annotations

import gc
import json
import traceback
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from types import ModuleType

from suite.core.errors import InvalidRequest, SuiteError, UnknownName
from suite.core.values import Json, format_typed
from suite.core.words import shell_line
from suite.whatif import cluster_view, evidence, pasted, schedule_view
from suite.whatif.answer import AnswerPart, OpTimeline, PageReply, as_json
from suite.whatif.catalogue import Catalogue, arguments
from suite.whatif.question import Key, ViewQuestion, read

VIEW, FIRST = "view", "schedule"
MANY = 4  # arguments of a choice, from which on the form folds them away
VIEWS: Mapping[str, ModuleType] = {"schedule": schedule_view, "cluster": cluster_view}


class Page:
    """Answers of the page.

    Attributes:
        timelines: Timelines of the last answer, for questions about their ops.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = dict(catalogue)
        self.timelines: Iterable[OpTimeline] = ()

    def question(self, words: Iterable[str]) -> tuple[str, ViewQuestion]:
        """View and question of the words. Raises UnknownName and InvalidRequest as `read`."""
        rest, view = [], FIRST
        for word in words:
            if word.startswith(f"{VIEW}="):
                view = word.removeprefix(f"{VIEW}=")
            else:
                rest.append(word)
        if view not in VIEWS:
            raise UnknownName(VIEW, view, VIEWS)
        return view, read(VIEWS[view].keys(self.catalogue), rest)

    def words(self, words: Iterable[str]) -> list[str]:
        """The shortest words that make the same question."""
        view, question = self.question(words)
        return [*([f"{VIEW}={view}"] if view != FIRST else []), *question.words]

    def answer(self, words: Iterable[str]) -> AnswerPart:
        """The answer, with a command that computes it too. Raises SuiteError for what cannot run."""
        given = [*words]
        view, question = self.question(given)
        try:
            found: AnswerPart = VIEWS[view].answer(question, self.catalogue)
        except ArithmeticError as error:
            raise InvalidRequest(f"these numbers: {error}", rule="a simulation can compute with them") from error
        self.timelines = found.timelines
        return replace(found, command=found.command or shell_line("whatif", self.words(given) or [f"{VIEW}={FIRST}"]))

    def more(self, words: Iterable[str]) -> Iterator[AnswerPart]:
        """Further parts of the answer, which take longer."""
        view, question = self.question(words)
        yield from VIEWS[view].more(question, self.catalogue)
        yield evidence.near(VIEWS[view].point(question, self.catalogue), self.catalogue.get("evidence", {}))

    # What the worker calls

    def reply(self, words: Iterable[str], *, run: bool = False) -> tuple[str, array[float]]:
        """Answer, shortest words and form as JSON, in which {from, to} is a range of the buffer. An error is an
        answer too.

        Args:
            run: Whether the reader allows pasted Python to run.
        """
        given, numbers = [*words], array("d")

        def put(values: array[float]) -> Mapping[str, int]:
            numbers.extend(values)
            return {"from": len(numbers) - len(values), "to": len(numbers)}

        form = self.form(given)
        try:
            text = self.question(given)[1].values.get(pasted.NAME, "")
            self.catalogue[pasted.NAME] = pasted.run(text) if run and pasted.is_python(text) else None
            return as_json(PageReply(form, self.answer(given), self.words(given)), put), numbers
        except BaseException as error:  # pasted Python may raise anything
            self.timelines = ()
            key = error.key if isinstance(error, InvalidRequest) else ""
            return as_json(PageReply(form, error=message(error), key=key)), array("d")

    def parts(self, words: Iterable[str]) -> Iterator[str]:
        """The further parts as JSON."""
        try:
            yield from map(as_json, self.more([*words]))
        except Exception as error:
            yield as_json(AnswerPart("refused", words=[message(error)]))
        gc.collect()

    def explain(self, number: int, index: int) -> str:
        """Sentences about op number `index` of timeline `number`."""
        return "".join(each.explain(index) for place, each in enumerate(self.timelines) if place == number)

    def form(self, words: Iterable[str]) -> Mapping[str, Json]:
        """Fields of the form with their values. Illegal words keep their text, so that a person can mend them."""
        values = {name: text for name, _, text in (word.partition("=") for word in words)}
        view = values.get(VIEW, FIRST) if values.get(VIEW, FIRST) in VIEWS else FIRST
        keys = VIEWS[view].keys(self.catalogue)
        return {"views": [*VIEWS], "view": view, "fields": [each for key in keys for each in self._fields(key, values)]}

    def _fields(self, key: Key, values: Mapping[str, str]) -> Iterator[Mapping[str, Json]]:
        """A key as a field, followed by the arguments of its choice."""
        value, nothing = values.get(key.name, key.default), [""] if key.optional else []
        yield {**asdict(key), "value": value, "choices": [*nothing, *key.choices]}
        own = arguments(self.catalogue, key.group, value) if key.group else {}
        for name, default in own.items():
            full, text = f"{key.name}.{name}", format_typed(default)
            shown = {"name": full, "value": values.get(full, text), "default": text, "help": f"{name} of {value}"}
            yield {**shown, "kind": "text", "choices": [], "rare": len(own) > MANY}


def message(error: BaseException) -> str:
    """Text of an error. One of pasted Python has its type and the line of the text."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == pasted.NAME]
    where = f" (line {lines[-1]} of the pasted text)" if lines else ""
    return (str(error) if isinstance(error, SuiteError) else f"{type(error).__name__}: {error}") + where


def load(choices: str, found: str) -> Page:
    """The page with the texts of `choices.json` and `evidence.json`."""
    return Page(json.loads(choices) | {"evidence": json.loads(found)})
