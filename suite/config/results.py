"""Comparison of the results of classes and functions with the type that a place requires."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args, get_origin

from suite.config.annotations import is_callable, is_union, plain, results_of, with_article
from suite.config.locate import PARTIAL, TARGET, locate
from suite.core.errors import InvalidRequest
from suite.core.members import is_protocol, missing_members
from suite.core.protocols import Schedule, WeightPolicy

EXAMPLES: Mapping[Any, str] = {
    Schedule: "suite.schedule.MessageDriven",
    WeightPolicy: "suite.weights.Latest",
}


def mismatch(target: Callable[..., Any], required_type: Any, *, later: bool = False) -> str | None:
    """Why the result of `target` is not of the required type; None if it is, or if annotations do not tell.

    Args:
        target: Class or function.
        required_type: Type that its place requires.
        later: Whether the object is the function itself, which is called later (`_partial_`).
    """
    required_type = plain(required_type)
    inner = get_args(required_type)
    if required_type is Any:
        return None
    if is_union(required_type):
        reasons = [mismatch(target, each, later=later) for each in inner]
        return None if None in reasons else reasons[0]
    if later and is_callable(required_type):
        return mismatch(target, inner[-1]) if inner else None
    if later:
        return f"{with_article(required_type)}, which is built at once, without _partial_"
    kind = type(None) if required_type is None else get_origin(required_type) or required_type
    if not isinstance(kind, type):
        return None
    reasons = [_difference(result_type, kind) for result_type in results_of(target)]
    return None if None in reasons or not reasons else f"{with_article(required_type)}; {reasons[0]}"


def result_refusal(key: str, config: Mapping[str, Any], required_type: Any) -> InvalidRequest | None:
    """Error for a plug-in whose result is not of the type that its place requires; None for a fitting one."""
    path, later = str(config[TARGET]), bool(config.get(PARTIAL, False))
    target = locate(path)
    reason = mismatch(target, required_type, later=later)
    if reason is None:
        return None
    other = mismatch(target, required_type, later=not later) is None
    legal = f"{key}.{PARTIAL}={str(not later).lower()}" if other else _example(key, required_type)
    return InvalidRequest(f"{key}={path}", rule=f"its place requires {reason}", legal=legal)


def _example(key: str, required_type: Any) -> str:
    """A class of the suite that an error message suggests; empty if there is none."""
    path = EXAMPLES.get(plain(required_type))
    return f"{key}.{TARGET}={path}" if path else ""


def object_mismatch(value: Any, required_type: Any) -> str:
    """The required type, and the members of it that an object lacks."""
    required_type = plain(required_type)
    kinds = get_args(required_type) if is_union(required_type) else (required_type,)
    missing = missing_members(value, kinds[0]) if is_protocol(kinds[0]) else []
    return f"{with_article(required_type)}{f'; it has no {_and_no(missing)}' if missing else ''}"


def _and_no(names: Iterable[str]) -> str:
    return " and no ".join(names)


def _difference(result: type, kind: type) -> str | None:
    if is_protocol(kind):
        missing = missing_members(result, kind)
        return f"{result.__name__} has no {_and_no(missing)}" if missing else None
    if issubclass(result, kind) or (kind is float and result is int):
        return None
    return f"the result is {with_article(result)}"


def check_class(key: str, path: str, target: Any, protocol: type, names: Iterable[str]) -> None:
    """Raises InvalidRequest unless `target` is a class with a protocol's methods and takes arguments of these names."""
    if not isinstance(target, type):
        raise InvalidRequest(f"{key}={path}", rule=f"a class that is {with_article(protocol)}")
    if missing := missing_members(target, protocol):
        raise lacking_refusal(f"{key}={path}", missing, protocol)
    check_call(f"{key}={path}", target, names)


def lacking_refusal(what: str, missing: Sequence[str], protocol: type) -> InvalidRequest:
    """Error for a class that lacks members of the protocol that its place requires."""
    rule = f"its place requires {with_article(protocol)}"
    base = f"{protocol.__module__}.{protocol.__name__}"
    return InvalidRequest(
        f"{what}, which has no {_and_no(missing)}", rule=rule, legal=f"a class that inherits from {base}"
    )


def check_call(what: str, target: Callable[..., Any], names: Iterable[str]) -> None:
    """Raises InvalidRequest unless `target` takes arguments of these names and requires no others."""
    names = [*names]
    try:
        inspect.signature(target).bind(**dict.fromkeys(names))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            f"{what}: {error}", rule=f"it is called with {', '.join(sorted({*names} - {'self'}))}"
        ) from error
