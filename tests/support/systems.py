"""Every system of conf/system with the overrides that choose it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from suite.config.compose import compose_both
from suite.config.families import groups
from suite.core.errors import InvalidRequest
from suite.runner.runs import freeze


@cache
def every_system() -> Mapping[str, tuple[str, ...]]:
    """The overrides of each system, by its name.

    A system whose name follows from the choice of a group, as ${choices.schedule}, is there once for every choice that
    it runs. A new YAML file is tested without registration.
    """
    return dict(row for choice in groups()["system"] for row in _variants(choice))


def _variants(choice: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    one = compose_both([f"system={choice}"])
    _, follows, rest = str(one[1]["system"]["name"]).partition("${choices.")
    if not follows:
        yield str(one[0]["system"]["name"]), (f"system={choice}",)
        return
    group = rest.partition("}")[0]
    for other in groups()[group]:
        try:
            run = freeze(compose_both([f"system={choice}", f"{group}={other}"])[0], "")
        except InvalidRequest:  # the choice has no default for one of its keys
            continue
        if run.refusal is None:
            yield run.config.system.name, (f"system={choice}", f"{group}={other}")
