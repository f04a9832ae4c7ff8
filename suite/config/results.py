"""Results of classes and functions, compared with the type that a place requires."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args, get_origin

from suite.config.annotations import is_callable, is_union, plain, results_of, with_article
from suite.config.locate import PARTIAL, TARGET, locate
from suite.core.errors import InvalidRequest
from suite.core.members import is_protocol, lacking
from suite.core.protocols import Schedule, WeightPolicy

EXAMPLES: Mapping[Any, str] = {
    Schedule: "suite.schedule.MessageDriven",
    WeightPolicy: "suite.weights.Latest",
}


def mismatch(target: Callable[..., Any], wanted: Any, *, later: bool = False) -> str | None:
    """Why what `target` returns is not of the type `wanted`; None where it is, or where annotations do not say.

    later: whether the object is the function itself, which is called later (`_partial_`)
    """
    wanted = plain(wanted)
    inner = get_args(wanted)
    if wanted is Any:
        return None
    if is_union(wanted):
        reasons = [mismatch(target, each, later=later) for each in inner]
        return None if None in reasons else reasons[0]
    if later and is_callable(wanted):
        return mismatch(target, inner[-1]) if inner else None
    if later:
        return f"{with_article(wanted)}, which is built at once, without _partial_"
    kind = type(None) if wanted is None else get_origin(wanted) or wanted
    if not isinstance(kind, type):
        return None
    reasons = [_difference(result_type, kind) for result_type in results_of(target)]
    return None if None in reasons or not reasons else f"{with_article(wanted)}; {reasons[0]}"


def result_refusal(key: str, config: Mapping[str, Any], wanted: Any) -> InvalidRequest | None:
    """The refusal of a plug-in whose result is not of the type that its place requires; None where it is."""
    path, later = str(config[TARGET]), bool(config.get(PARTIAL, False))
    target = locate(path)
    reason = mismatch(target, wanted, later=later)
    if reason is None:
        return None
    other = mismatch(target, wanted, later=not later) is None
    legal = f"{key}.{PARTIAL}={str(not later).lower()}" if other else _example(key, wanted)
    return InvalidRequest(f"{key}={path}", rule=f"its place requires {reason}", legal=legal)


def _example(key: str, wanted: Any) -> str:
    """The class of the suite that a refusal suggests; empty where it suggests none."""
    path = EXAMPLES.get(plain(wanted))
    return f"{key}.{TARGET}={path}" if path else ""


def object_mismatch(value: Any, wanted: Any) -> str:
    """Members that an object lacks for the type `wanted`."""
    wanted = plain(wanted)
    kinds = get_args(wanted) if is_union(wanted) else (wanted,)
    missing = lacking(value, kinds[0]) if is_protocol(kinds[0]) else []
    return f"{with_article(wanted)}{f'; it has no {_and_no(missing)}' if missing else ''}"


def _and_no(names: Iterable[str]) -> str:
    return " and no ".join(names)


def _difference(result: type, kind: type) -> str | None:
    if is_protocol(kind):
        missing = lacking(result, kind)
        return f"{result.__name__} has no {_and_no(missing)}" if missing else None
    if issubclass(result, kind) or (kind is float and result is int):
        return None
    return f"the result is {with_article(result)}"


def check_class(key: str, path: str, target: Any, protocol: type, names: Iterable[str]) -> None:
    """Raises InvalidRequest unless `target`, which is used before it is built, is a class with the methods of a
    protocol.

    names: of the arguments that it is built with
    """
    if not isinstance(target, type):
        raise InvalidRequest(f"{key}={path}", rule=f"a class that is {with_article(protocol)}")
    if missing := lacking(target, protocol):
        raise lacking_refusal(f"{key}={path}", missing, protocol)
    check_call(f"{key}={path}", target, names)


def lacking_refusal(what: str, missing: Sequence[str], protocol: type) -> InvalidRequest:
    """The refusal of a class without some members of the protocol that its place requires."""
    rule = f"its place requires {with_article(protocol)}"
    base = f"{protocol.__module__}.{protocol.__name__}"
    return InvalidRequest(
        f"{what}, which has no {_and_no(missing)}", rule=rule, legal=f"a class that inherits from {base}"
    )


def check_call(what: str, target: Callable[..., Any], names: Iterable[str]) -> None:
    """Raises InvalidRequest unless `target` takes arguments of these names and requires no other."""
    names = [*names]
    try:
        inspect.signature(target).bind(**dict.fromkeys(names))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            f"{what}: {error}", rule=f"it is called with {', '.join(sorted({*names} - {'self'}))}"
        ) from error
