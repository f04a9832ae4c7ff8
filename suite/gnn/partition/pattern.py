"""Input of a partitioner: the symmetric pattern of a matrix, without loops and isolated vertices.

A loop never makes a row travel, and a vertex without an edge to another can lie anywhere: a partitioner would only
balance weights with it, and puts many times the mean number of such vertices into one part of an R-MAT graph. They are
taken out first and even out the numbers of vertices afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from suite.core.errors import InvalidRequest

Rows = Any  # integer array


def check(matrix: csr_array, k: int, seed: int = 0) -> None:
    """Raises InvalidRequest for a matrix that is not square, for fewer than one part, and for a negative seed."""
    rows, columns = matrix.shape
    if rows != columns:
        raise InvalidRequest(f"a matrix of shape {matrix.shape}", rule="square: one row and column per vertex")
    for name, value, least in (("k", k, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise InvalidRequest(f"{name}={value}", rule=f"a whole number, at least {least}", legal=f"{name}={least}")


def directed(matrix: csr_array) -> csr_array:
    """The stored entries off the diagonal, each once, as int8 ones with int32 indices in order."""
    n = matrix.shape[0]
    rows = np.repeat(np.arange(n), np.diff(matrix.indptr))
    off = rows != matrix.indices
    counts = np.bincount(rows[off], minlength=n)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    pattern = csr_array((np.ones(off.sum(), np.int8), matrix.indices[off].astype(np.int32), indptr), shape=(n, n))
    if not pattern.has_canonical_format:
        pattern.sum_duplicates()
        pattern.data[:] = 1
    return pattern


def undirected(matrix: csr_array) -> csr_array:
    """pattern(A + A^T) of what `directed` gives: an edge either way is an edge."""
    one = directed(matrix)
    both = csr_array(one + one.T)
    both.sort_indices()
    both.data[:] = 1
    return both


def entries(matrix: csr_array) -> Rows:
    """(n,) stored entries of each row, those on the diagonal too: the work of its part."""
    return np.diff(matrix.indptr).astype(np.int64)


def connected(matrix: csr_array, k: int, solve: Callable[[csr_array, Rows], Rows], *, room: float = 0.0) -> Rows:
    """(n,) int32 parts: what `solve` says of the vertices with edges, and the others spread.

    Args:
        solve: From the undirected pattern among them, (m, m), and their numbers, (m,) ascending, to (m,) part ids; not
            asked where there is nothing to decide (one part, or no more vertices than parts).
        room: Share by which a part may exceed the mean of entries.
    """
    pattern = undirected(matrix)
    n = pattern.shape[0]
    linked = np.flatnonzero(np.diff(pattern.indptr))
    parts = np.full(n, -1, np.int32)
    if k == 1:
        parts[:] = 0
    elif len(linked) <= k:
        parts[linked] = np.arange(len(linked))
    else:
        parts[linked] = solve(csr_array(pattern[linked][:, linked]) if len(linked) < n else pattern, linked)
    return spread(parts, entries(matrix), k, room=room)


def spread(parts: Rows, weight: Rows, k: int, *, room: float) -> Rows:
    """`parts` with every -1 replaced: the parts with the fewest vertices are filled up to one level.

    weight: (n,) entries of each vertex. Vertices that weigh something, by a loop, come first, and a part takes none
    beyond the entries of the fullest part, or `room` above the mean, unless all parts are at that limit
    """
    parts = parts.copy()
    load = np.bincount(parts[parts >= 0], weights=weight[parts >= 0], minlength=k).astype(np.int64)
    limit = max(int(load.max(initial=0)), int((1 + room) * weight.sum() / k))
    for lonely in (np.flatnonzero((parts < 0) & (weight > 0)), np.flatnonzero((parts < 0) & (weight == 0))):
        number = len(lonely)
        if number:
            count = np.bincount(parts[parts >= 0], minlength=k)
            space = np.maximum(limit - load, 0) // max(int(weight[lonely].max()), 1) if weight[lonely[0]] else number
            shares = _level(count, np.broadcast_to(space, k), number)
            shares += _level(count + shares, np.full(k, number), number - int(shares.sum()))
            parts[lonely] = np.repeat(np.arange(k, dtype=np.int32), shares)
    return parts


def _level(count: Rows, space: Rows, number: int) -> Rows:
    """(k,) how many of `number` each part takes, at most `space`, so that the smallest of count + given is greatest."""
    low, high = int(count.min()), int(count.max()) + number
    while low < high:  # the highest level that needs no more than `number`
        middle = (low + high + 1) // 2
        if int(np.minimum(np.maximum(middle - count, 0), space).sum()) <= number:
            low = middle
        else:
            high = middle - 1
    shares = np.minimum(np.maximum(low - count, 0), space)
    over = np.flatnonzero((count + shares <= low) & (shares < space))[: number - int(shares.sum())]
    shares[over] += 1
    return shares
