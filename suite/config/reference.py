"""Reference of all configuration keys: a page in Markdown and a JSON schema."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from suite.config.base import Settings
from suite.config.experiment import EXPECTATIONS, ExpectationSpec, PanelSpec, StudySpec
from suite.config.refusals import groups_of, kind_of
from suite.config.run import RunConfig
from suite.core.values import format_typed

_HEADER = """# Configuration reference

Every key of a run, with its default and its meaning.
`suite run KEY=VALUE` sets one. A group in `conf/` with several choices is set by `GROUP=CHOICE`; its YAML files
may hold further keys of the classes that they name.
Made by `suite config --docs`.
"""


def schema() -> str:
    """JSON schema of a run's configuration, which editors and other tools read."""
    return json.dumps(RunConfig.model_json_schema(by_alias=True), indent=2) + "\n"


def page() -> str:
    """The reference in Markdown: a table for each group."""
    return "\n".join([_HEADER, *_tables("", RunConfig), *_specifications()])


def _specifications() -> Iterator[str]:
    """Keys of an experiment that are read one by one: the attributes of their models."""
    kinds = {"panels": PanelSpec, "study": StudySpec, "expect": ExpectationSpec}
    kinds |= {f"expect, kind: {kind}": each for kind, each in EXPECTATIONS.items()}
    for name, each in kinds.items():
        yield f"## experiment.{name}\n\n{inspect.getdoc(each)}\n".replace("Attributes:\n", "Keys:\n\n")


def _tables(path: str, group: type[Settings], title: str = "") -> Iterator[str]:
    """The table of a group, and of the groups inside it."""
    yield _table(title or path or "Run", group, f"{path}." if path else "")
    for name, info in group.model_fields.items():
        at = f"{path}.{name}".lstrip(".")
        models = groups_of(info.annotation)
        for model in models:
            title = f"{at}, kind: {kind_of(model)}" if len(models) > 1 else ""
            yield from _tables(at, model, title)  # type: ignore[arg-type]


def _table(title: str, group: type[Settings], at: str) -> str:
    rows = "\n".join(_rows(group, at))
    about = " ".join((group.__doc__ or "").split())
    return f"## {title}\n\n{about}\n\n| key | default | meaning |\n|---|---|---|\n{rows}\n"


def _rows(group: type[Settings], at: str) -> Iterator[str]:
    for name, info in group.model_fields.items():
        if groups_of(info.annotation):
            continue  # a table of its own
        about = " ".join((info.description or "").split()).replace("|", "\\|")
        yield f"| `{at}{info.alias or name}` | {_default(info)} | {about} |"


def _default(info: FieldInfo) -> str:
    options = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
    if len(options) == 1:
        return f"`{options[0]}`"
    if info.is_required() or info.default_factory_takes_validated_data:
        return "by the choice"
    value: Any = info.get_default(call_default_factory=True)
    return f"`{format_typed(value)}`" if value != "" else "empty"
