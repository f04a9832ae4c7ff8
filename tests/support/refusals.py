"""Assertions on the attributes of a refusal instead of on the wording of its message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from suite.core.errors import InvalidRequest

_SETTING = re.compile(  # `key=value`, `+key=value`, `name: key=value` or `Class(key=value)`
    r"(?:[+~]{1,2}|[\w.-]+: |\w+(?P<call>\())?(?P<key>[A-Za-z_]\w*(?:\.\w+)*)="
    r"(?P<value>\[[^\]]*\]|(?(call)[^\s;:,)]*|[^\s;:]*))"
)


def setting(error: InvalidRequest) -> tuple[str, object]:
    """Key and value of a refusal; for a phrase those that it begins with, such as `grid.tensor=2 with system=naive`."""
    if error.key:
        return error.key, error.value
    found = _SETTING.match(str(error))
    return (found["key"], found["value"].rstrip(",")) if found else ("", None)


@contextmanager
def refused(
    kind: type[InvalidRequest],
    key: str = "",
    value: object = ...,
    *,
    rule: str = "",
    legal: str = "",
    subject: str = "",
) -> Iterator[pytest.ExceptionInfo[InvalidRequest]]:
    """Expect a refusal of `kind`, and compare its attributes.

        with refused(InvalidRequest, "batch.size", 7, legal="batch.size=8"):
            validate_run(resolve(["batch.size=7"]))

    Args:
        kind: Expected class; a subclass of it passes too.
        key: Exact key. Empty means that the refusal has no key but describes the request by a phrase.
        value: Exact value; by default any.
        rule: Words of the rule, for a key that has several rules and for numbers in the rule.
        legal: Words of the legal value.
        subject: Words of the message before the rule, for names and numbers of a refusal without a key.

    Raises:
        pytest.fail.Exception: An attribute differs. The message lists each difference and the whole refusal.
    """
    __tracebackhide__ = True
    with pytest.raises(kind) as refusal:
        yield refusal
    error = refusal.value
    found, found_value = setting(error)
    wrong = [] if found == key else [f"key is {found!r}, not {key!r}"]
    if value is not ... and (type(found_value), found_value) != (type(value), value):
        wrong.append(f"value is {found_value!r}, not {value!r}")
    parts = {"rule": (error.rule, rule), "legal": (error.legal, legal), "subject": (_subject(error), subject)}
    wrong += [f"{name} is {text!r}, without {part!r}" for name, (text, part) in parts.items() if not _has(text, part)]
    if wrong:
        pytest.fail("\n".join([*wrong, f"in {type(error).__name__}: {error}"]))


def _has(text: str, part: str) -> bool:
    """Whether `part` occurs in `text` as whole words and numbers: 0.5 does not occur in 0.55 or 10.5."""
    before = r"(?<!\w)(?<!\d\.)" if part[:1].isalnum() else ""
    return re.search(before + re.escape(part) + (r"(?!\w|\.\d)" if part[-1:].isalnum() else ""), text) is not None


def _subject(error: InvalidRequest) -> str:
    """First part of the message: the setting with its value, or the phrase."""
    return str(error).partition("; rule: ")[0].partition("; legal: ")[0]


def fault(key: str = "", value: object = ..., **words: str) -> dict[str, object]:
    """Attributes of one row of a parametrised test, for `refused(kind, **expected)`."""
    return {"key": key, "value": value, **words}
