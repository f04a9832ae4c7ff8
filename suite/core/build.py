"""Decides how a config becomes an object: a mapping with `_target_: package.module.Name` is that class, called.

With `_partial_: true` it is the function with these arguments, to be called later with the rest.

Ranks build from plain frozen data with this, so that they need no Hydra.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from suite.core.errors import MissingDependency, Refused, UnknownName

TARGET, PARTIAL = "_target_", "_partial_"


def locate(path: str) -> Any:
    """The object at a dotted class path.

    Raises UnknownName with the nearest match, MissingDependency where its module needs a package that is not here.
    """
    module_path, _, name = path.rpartition(".")
    if not module_path:
        raise Refused(f"{path!r} is not a class path", rule="package.module.Name", legal="suite.weights.policy.Latest")
    try:
        module = importlib.import_module(module_path)
    except ModuleNotFoundError as error:
        if error.name and not f"{module_path}.".startswith(f"{error.name}."):
            raise MissingDependency(error.name, f"pip install it to use {path}") from error
        raise Refused(f"there is no module {module_path!r}", rule="an importable module and a name in it") from error
    if not hasattr(module, name):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise UnknownName(f"object in {module_path}", name, public)
    return getattr(module, name)


def build(config: Any, **extra: Any) -> Any:
    """Build `config` and everything inside it. `extra` is passed to the outermost target.

    Raises Refused where the arguments do not fit the target, naming those that do.
    """
    if isinstance(config, list | tuple):
        return [build(item) for item in config]
    if not isinstance(config, Mapping):
        return config
    arguments = {str(key): build(value) for key, value in config.items() if key not in (TARGET, PARTIAL)}
    if TARGET not in config:
        return {**arguments, **extra}
    target = locate(str(config[TARGET]))
    if not callable(target):
        raise Refused(f"{config[TARGET]} is {target!r}", rule="a class or a function", legal="suite.core.grid.Grid")
    arguments.update(extra)
    partly = bool(config.get(PARTIAL, False))
    signature = inspect.signature(target)
    try:
        (signature.bind_partial if partly else signature.bind)(**arguments)
    except TypeError as error:
        accepted = ", ".join(signature.parameters)
        raise Refused(f"{config[TARGET]}: {error}", rule=f"its arguments are {accepted or 'none'}") from error
    if partly:
        return partial(target, **arguments)
    try:
        return target(**arguments)
    except (TypeError, ValueError) as error:  # a value of the wrong kind, such as text for a count
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items() if key not in extra)
        raise Refused(f"{config[TARGET]}({given}): {error}", rule="values of the kinds its docstring gives") from error
