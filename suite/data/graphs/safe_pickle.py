"""Read numbers from a published pickle without executing it.

Planetoid's files are pickles, and a pickle is a program. It may call only the few classes below, which store their
arguments; every other name is refused. Neither numpy's nor scipy's unpickling runs, and the content is checked like any
other file. The text form of Cora has no split of the vertices, and PubMed's text form has another split.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from suite.core.errors import InvalidRequest

NUMBERS = "biuf"  # kinds of arrays that are read: no objects, no records


class _Kept:
    """A recorded call, with its arguments and its later state.

    Every class here has its own __setstate__. Otherwise a pickle could set attributes of the class itself.
    """

    given: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *given: Any) -> None:
        self.given = given

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Array(_Kept):
    pass


class _Kind(_Kept):
    pass


class _Matrix(_Kept):
    pass


class _Map(dict[Any, Any]):
    def __init__(self, *given: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a dictionary with a state")


class _Rebuilt(_Kept):
    """Result of copyreg for an old style of object: here only a matrix."""

    def __new__(cls, kind: Any, *given: Any) -> Any:
        if kind is not _Matrix:
            name = kind.__name__ if isinstance(kind, type) else kind
            raise pickle.UnpicklingError(f"copyreg._reconstructor of {name}")
        return _Matrix(*given)


class _Encoded(_Kept):
    """Bytes as a pickle of an older protocol writes them."""

    def __new__(cls, text: Any = "", encoding: Any = "latin1") -> Any:
        if not isinstance(text, str) or encoding != "latin1":
            raise pickle.UnpicklingError(f"_codecs.encode of {type(text).__name__} to {encoding}")
        return text.encode("latin1")


class _Empty(_Kept):
    """Empty bytes as such a pickle writes them."""

    def __new__(cls) -> Any:
        return b""


_NAMES: dict[tuple[str, str], type] = {
    ("collections", "defaultdict"): _Map,
    ("copy_reg", "_reconstructor"): _Rebuilt,
    ("copyreg", "_reconstructor"): _Rebuilt,
    ("_codecs", "encode"): _Encoded,
    **{(module, name): _Kept for module in ("__builtin__", "builtins") for name in ("list", "object")},
    **{(module, "bytes"): _Empty for module in ("__builtin__", "builtins")},
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Array for core in ("core", "_core")},
    **{("numpy", name): kind for name, kind in (("ndarray", _Array), ("dtype", _Kind))},
    **{(f"scipy.sparse.{module}", "csr_matrix"): _Matrix for module in ("csr", "_csr")},
}


class _Reader(pickle.Unpickler):
    def __init__(self, path: Path, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="latin1")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            legal = ", ".join(sorted({".".join(pair) for pair in _NAMES}))
            raise InvalidRequest(f"{self._path}: the pickle calls {module}.{name}", rule=f"it may name {legal}")
        return _NAMES[module, name]


def read(path: Path) -> Any:
    """Content of a pickle of plain values, arrays of numbers, csr matrices and dictionaries. No code of it runs.

    Raises InvalidRequest with the name for a pickle that calls anything else, and for a damaged pickle.
    """
    try:
        return _plain(path, _Reader(path, path.read_bytes()).load())
    except InvalidRequest:
        raise
    except Exception as error:  # a damaged or a hostile file may fail anywhere
        raise InvalidRequest(
            f"{path}: {error or type(error).__name__}", rule="a pickle of arrays and dictionaries"
        ) from error


def _plain(path: Path, value: Any) -> Any:
    if isinstance(value, _Array):
        return _numbers(path, value)
    if isinstance(value, _Matrix):
        return _matrix(path, value)
    if isinstance(value, dict):
        return {_plain(path, key): _plain(path, element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(path, element) for element in value]
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    raise InvalidRequest(
        f"{path}: a {type(value).__name__.strip('_').lower()}", rule="arrays, csr matrices, lists and numbers"
    )


def _numbers(path: Path, value: _Array) -> NDArray[Any]:
    """Array from its state: version, shape, type, whether columns come first, and bytes."""
    _version, shape, kind, columns_first, data = value.state
    order: Any = kind.state[1] if kind.state else "="
    dtype = np.dtype(str(kind.given[0])).newbyteorder("=" if order == "|" else order)
    if dtype.kind not in NUMBERS:
        raise InvalidRequest(f"{path}: an array of {dtype}", rule="arrays of numbers", legal="float32")
    raw = data.encode("latin1") if isinstance(data, str) else bytes(data)
    return np.frombuffer(raw, dtype).reshape(shape, order="F" if columns_first else "C").astype(dtype.newbyteorder("="))


def _matrix(path: Path, value: _Matrix) -> sparse.csr_array:
    state = {str(key).lstrip("_"): element for key, element in value.state.items()}
    data, indices, indptr = (_plain(path, state[name]) for name in ("data", "indices", "indptr"))
    rows, columns = _plain(path, state["shape"])
    matrix = sparse.csr_array((data, indices, indptr), shape=(int(rows), int(columns)))
    matrix.check_format(full_check=True)
    return matrix
