"""Plain answers to a claim: five phrases for readers, where verdicts have fifteen for evaluators (docs/verdicts.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum

from suite.claims.claim import Check, Evidence, Judged, Verdict


class PlainAnswer(StrEnum):
    """Whether a claim holds, with the kind of evidence. Kinds of evidence are never pooled."""

    HOLDS_MEASURED = "holds (measured)"
    HOLDS_DERIVED = "holds (derived)"
    MODEL_AGREES = "the model agrees"
    FAILS = "does not hold here"
    OPEN = "open"


TONES = {
    PlainAnswer.HOLDS_MEASURED: "good",
    PlainAnswer.HOLDS_DERIVED: "good",
    PlainAnswer.MODEL_AGREES: "trend",
    PlainAnswer.FAILS: "bad",
    PlainAnswer.OPEN: "faint",
}
# A stand-in, such as a smaller model, can refute a claim here, but only shows a direction of the published number.
# A verdict that is not listed leaves the claim open.
_ANSWERS: Mapping[Verdict, PlainAnswer] = {
    Verdict.MATCHED: PlainAnswer.MODEL_AGREES,
    Verdict.NOT_MATCHED: PlainAnswer.FAILS,
    Verdict.DIFFERS_ON_STAND_IN: PlainAnswer.FAILS,
    Verdict.DIFFERS: PlainAnswer.FAILS,
    Verdict.CONTRADICTED: PlainAnswer.FAILS,
    Verdict.CALIBRATED_MISSED: PlainAnswer.FAILS,
}


OPEN_BECAUSE = {
    Verdict.TREND_ONLY: "only the direction is shown",
    Verdict.CONSISTENT: "could hardly fail",
    Verdict.CALIBRATED: "the model was fitted to this number",
    Verdict.FED: "the model was fitted to a related number",
    Verdict.NO_BETTER: "a model without detail is as near",
    Verdict.UNDECIDED: "repeats undecided",
    Verdict.NOT_RUN: "not run",
}


def because(judged: Judged) -> str:
    """Why a claim is open, or how ours differs from the printed value or order; empty for other answers."""
    if plain_answer(judged.verdict, judged.evidence) is not PlainAnswer.FAILS:
        return OPEN_BECAUSE.get(judged.verdict, "")
    values = [value for case in judged.ours for value in case]
    if judged.claim.check in (Check.EQUAL, Check.FORMULA):
        return "the values differ"
    if isinstance(judged.claim.value, str) or not values:
        return "the order is another" if values else ""
    low, high = judged.claim.ends
    return "ours is higher" if min(values) > high else "ours is lower" if max(values) < low else "outside tolerance"


def plain_answer(verdict: Verdict, evidence: Evidence | None) -> PlainAnswer:
    """The phrase for a verdict. That for a reproduced claim names its evidence."""
    if verdict is Verdict.REPRODUCED:
        return PlainAnswer.HOLDS_MEASURED if evidence is Evidence.MEASURED else PlainAnswer.HOLDS_DERIVED
    return _ANSWERS.get(verdict, PlainAnswer.OPEN)


def in_words(items: Iterable[Judged]) -> str:
    """'Claims: holds (measured) 3, open 2.'; empty without claims."""
    counts = Counter(plain_answer(judged.verdict, judged.evidence) for judged in items)
    text = ", ".join(f"{answer} {counts[answer]}" for answer in PlainAnswer if counts[answer])
    return f"Claims: {text}." if text else ""
