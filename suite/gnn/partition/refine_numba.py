"""Compiled loops of the refinement: clustering within parts, and moves between parts.

Both work on m vertices, or clusters of vertices, and N nets. A net is a row of X, or several with the same fate: its
owner holds it, its pins are the other vertices that read it, and it costs its owner's part one row for each other part
that has a pin. All numbers are whole, so that a seed gives the same parts on every machine.

The pins of a net are counted by part in slots: a net with at least k pins has a slot for each part, in order; another
has as many slots as pins, and fills them from the first. In the arguments of all functions

owned, owner, rows    (m + 1), (N), (N): vertex x owns the nets from owned[x] up to owned[x + 1]; rows of X in a net
ptr, nets             (m + 1), (pins): the nets of which vertex x is a pin
slots                 (N + 1): the slots of net j are slots[j] up to slots[j + 1]
where, pins, used     (slots), (slots), (N): the part and number of pins of a slot, and how many slots a net has in use
part, weight          (m): of each vertex
send, load            (k): rows that a part sends, and weight in it

Arrays are passed one by one and without slices: tuples of them double the time to compile and to run.
"""

from __future__ import annotations

from typing import Any

from numba import int32, int64, njit, types, uint8

Array = Any
LONG, SHORT, FLAGS = int64[::1], int32[::1], uint8[::1]


@njit(cache=True)
def _shuffle(order: Array, state: int) -> int:
    """By xorshift (Marsaglia 2003), from a state that is not 0; the state after."""
    for i in range(len(order) - 1, 0, -1):
        state ^= (state << 13) & 0x7FFFFFFFFFFFFFFF
        state ^= state >> 7
        state ^= (state << 17) & 0x7FFFFFFFFFFFFFFF
        j = state % (i + 1)
        order[i], order[j] = order[j], order[i]
    return state


@njit(types.void(LONG, SHORT, LONG, LONG, SHORT, SHORT, LONG, LONG, SHORT, SHORT, int64, int64, int64), cache=True)
def cluster(
    ptr: Array, near: Array, strength: Array, weight: Array, part: Array,
    label: Array, size: Array, score: Array, seen: Array, order: Array,
    limit: int, sweeps: int, state: int,
) -> None:  # fmt: skip
    """Label propagation among vertices of one part, in place; no cluster grows heavier than `limit`.

    ptr, near, strength: an undirected graph. Begins with every vertex alone: label and order 0 .. m - 1, size the
    weights, score zeros
    """
    for _ in range(sweeps):
        state = _shuffle(order, state)
        moved = 0
        for x in order:
            count = 0
            for e in range(ptr[x], ptr[x + 1]):
                y = near[e]
                if part[y] == part[x] and y != x:
                    if score[label[y]] == 0:
                        seen[count] = label[y]
                        count += 1
                    score[label[y]] += strength[e]
            best = label[x]
            most = score[best]
            for i in range(count):
                to = seen[i]
                if score[to] > most and size[to] + weight[x] <= limit:
                    best, most = to, score[to]
            for i in range(count):
                score[seen[i]] = 0
            if best != label[x]:
                size[label[x]] -= weight[x]
                size[best] += weight[x]
                label[x] = best
                moved += 1
        if moved * 50 < len(weight):  # fewer than two of a hundred: the rest is not worth a sweep
            break


@njit(cache=True)
def _slot(j: int, q: int, k: int, slots: Array, where: Array, pins: Array, used: Array) -> int:
    """The slot that counts the pins of net j in part q; -1 if it has none there."""
    start = slots[j]
    if slots[j + 1] - start == k:
        return start + q if pins[start + q] > 0 else -1
    for i in range(start, start + used[j]):
        if where[i] == q:
            return i
    return -1


@njit(cache=True)
def _enter(j: int, q: int, k: int, slots: Array, where: Array, pins: Array, used: Array) -> bool:
    """One more pin of net j in part q; whether it is the first."""
    i = _slot(j, q, k, slots, where, pins, used)
    if i >= 0:
        pins[i] += 1
        return False
    i = slots[j] + (q if slots[j + 1] - slots[j] == k else used[j])
    where[i] = q
    pins[i] = 1
    used[j] += 1
    return True


@njit(cache=True)
def _leave(j: int, q: int, k: int, slots: Array, where: Array, pins: Array, used: Array) -> bool:
    """One pin less of net j in part q; whether it was the last."""
    i = _slot(j, q, k, slots, where, pins, used)
    pins[i] -= 1
    if pins[i] > 0:
        return False
    used[j] -= 1
    if slots[j + 1] - slots[j] != k:
        last = slots[j] + used[j]
        where[i] = where[last]
        pins[i] = pins[last]
        pins[last] = 0
    return True


@njit(cache=True)
def _fill(
    part: Array, send: Array, owner: Array, rows: Array, ptr: Array, nets: Array, slots: Array, where: Array,
    pins: Array, used: Array,
) -> None:  # fmt: skip
    """All pins enter; `send` from zeros."""
    for x in range(len(part)):
        for p in range(ptr[x], ptr[x + 1]):
            j = nets[p]
            if _enter(j, part[x], len(send), slots, where, pins, used) and part[owner[j]] != part[x]:
                send[part[owner[j]]] += rows[j]


@njit(cache=True)
def _move(
    x: int, b: int, part: Array, send: Array, owned: Array, owner: Array, rows: Array, ptr: Array, nets: Array,
    slots: Array, where: Array, pins: Array, used: Array,
) -> None:  # fmt: skip
    """Vertex x goes to part b; `send` follows exactly."""
    a, k = part[x], len(send)
    for j in range(owned[x], owned[x + 1]):
        send[a] -= rows[j] * (used[j] - (_slot(j, a, k, slots, where, pins, used) >= 0))
        send[b] += rows[j] * (used[j] - (_slot(j, b, k, slots, where, pins, used) >= 0))
    for p in range(ptr[x], ptr[x + 1]):
        j = nets[p]
        c = part[owner[j]]
        if _leave(j, a, k, slots, where, pins, used) and c != a:
            send[c] -= rows[j]
        if _enter(j, b, k, slots, where, pins, used) and c != b:
            send[c] += rows[j]
    part[x] = b


@njit(cache=True)
def _price(send: Array, slope: Array, threshold: int, penalty: int) -> int:
    """What all sends cost, and in `slope` what one more row of each part does: more above the threshold."""
    total = 0
    for q in range(len(send)):
        total += send[q] + penalty * max(0, send[q] - threshold)
        slope[q] = 1 + (penalty if send[q] > threshold else 0)
    return total


@njit(cache=True)
def _copy(source: Array, target: Array) -> None:
    for i in range(len(source)):
        target[i] = source[i]


@njit(cache=True)
def _weigh(
    x: int, heavy: bool, part: Array, slope: Array, gain: Array, own: Array, owned: Array, owner: Array, rows: Array,
    ptr: Array, nets: Array, slots: Array, where: Array, pins: Array, used: Array,
) -> tuple[int, int, int]:  # fmt: skip
    """What vertex x costs by where it lies, at the slopes: a move from a to b changes the cost by base - gain[b] +
    slope[b] * (every - own[b]) - slope[a] * (every - own[a]).

    Gives base, every, and how many slots it looked at: 0 for a vertex that is read in its part alone and reads nothing
    of others, which has nothing to gain; of one in a heavy part the move is wanted anyway
    """
    a, k = part[x], len(slope)
    base, every, work, linked = 0, 0, k, heavy
    for j in range(owned[x], owned[x + 1]):  # its own rows, sent to all parts that read them
        every += rows[j] * used[j]
        stop = slots[j + 1] if slots[j + 1] - slots[j] == k else slots[j] + used[j]
        work += stop - slots[j]
        for i in range(slots[j], stop):
            if pins[i] > 0:
                own[where[i]] += rows[j]
                linked = linked or where[i] != a
    if not linked:
        for p in range(ptr[x], ptr[x + 1]):
            if part[owner[nets[p]]] != a:
                linked = True
                break
        if not linked:
            own[a] = 0
            return 0, 0, 0
    for p in range(ptr[x], ptr[x + 1]):  # the rows that it reads, sent to its part perhaps for it alone
        j = nets[p]
        c = part[owner[j]]
        price = rows[j] * slope[c]
        base += price
        home = False
        stop = slots[j + 1] if slots[j + 1] - slots[j] == k else slots[j] + used[j]
        work += stop - slots[j]
        for i in range(slots[j], stop):
            if pins[i] > 0:
                q = where[i]
                gain[q] += price
                if q == c:
                    home = True
                elif q == a and pins[i] == 1:
                    base -= price
        if not home:
            gain[c] += price
    return base, every, work


@njit(cache=True)
def _choose(
    a: int, base: int, every: int, slope: Array, gain: Array, own: Array, load: Array, room: int
) -> tuple[int, int]:  # fmt: skip
    """Of the parts with at most `room` in them, the one to which a vertex of part a goes at the least change of the
    cost, or -1, and that change. Gains are zeros afterwards."""
    here = slope[a] * (every - own[a])
    to, least = -1, 0
    for b in range(len(slope)):
        if b != a and load[b] <= room:
            change = base - gain[b] + slope[b] * (every - own[b]) - here
            if to < 0 or change < least or (change == least and load[b] < load[to]):
                to, least = b, change
        gain[b] = 0
        own[b] = 0
    return to, least


@njit(cache=True)
def _state(send: Array, load: Array, cap: int, ceiling: int) -> tuple[int, int, int, int]:
    """What is to be small, first things first: entries above the cap, rows above the ceiling, the most rows that a part
    sends, and the rows of all."""
    most = total = over = 0
    for q in range(len(send)):
        total += send[q]
        most = max(most, send[q])
        over = max(over, load[q] - cap)
    return over, max(0, total - ceiling), most, total


@njit(
    types.void(
        *(LONG, SHORT, LONG, LONG, SHORT, LONG, SHORT, LONG, SHORT, SHORT, LONG, LONG, SHORT),
        *(LONG, LONG, LONG, LONG, LONG, SHORT, FLAGS, SHORT, LONG, int64, int64, int64, int64, int64, int64),
    ),
    cache=True,
)
def refine(
    owned: Array, owner: Array, rows: Array, ptr: Array, nets: Array, net_ptr: Array, readers: Array,
    slots: Array, where: Array, pins: Array, used: Array, weight: Array, part: Array,
    send: Array, load: Array, slope: Array, gain: Array, own: Array, order: Array, news: Array,
    best: Array, best_send: Array, cap: int, ceiling: int, penalty: int, rounds: int, budget: int, random: int,
) -> None:  # fmt: skip
    """Moves vertices between parts, and leaves in `best` the parts that were best by `_state`, in `best_send` their
    sends.

    net_ptr, readers: the pins of each net. Counts and what is by part begin as zeros, order 0 .. m - 1, news ones

    A sweep prices the rows of parts near the maximum higher, and moves a vertex where the exact price of all falls. The
    first sweep and those after one without much news visit all vertices, the others those next to a move.
    """
    m, k = len(weight), len(send)
    for x in range(m):
        load[part[x]] += weight[x]
    _fill(part, send, owner, rows, ptr, nets, slots, where, pins, used)
    work = stale = moved = 0
    refined = _state(send, load, cap, ceiling)
    for sweep in range(rounds + 1):
        now = _state(send, load, cap, ceiling)
        stale += 1
        if sweep == 0 or now < refined:
            refined = now
            stale = 0
            _copy(send, best_send)
            _copy(part, best)
        full = sweep == 0 or moved * 1000 < m
        done = now[3] == 0 or stale == 4 or (full and stale >= 2)
        if sweep == rounds or work > budget or (done and now[0] == 0):
            break
        threshold = max(now[3] * 21 // (20 * k), now[2] * 97 // 100)
        cost = _price(send, slope, threshold, penalty)
        random = _shuffle(order, random)
        moved = 0
        for x in order:
            if not (full or news[x]) or work > budget:
                continue
            news[x] = 0
            a = part[x]
            heavy = load[a] > cap
            base, every, looked = _weigh(
                x, heavy, part, slope, gain, own, owned, owner, rows, ptr, nets, slots, where, pins, used
            )
            if looked == 0:
                continue
            work += looked
            to, least = _choose(a, base, every, slope, gain, own, load, cap - weight[x])
            lighter = to >= 0 and load[to] + weight[x] < load[a]
            relieves = heavy and least <= sweep * sweep * weight[x]  # at a loss too, the smaller ones first
            if to < 0 or not (relieves or least < 0 or (least == 0 and lighter)):
                continue
            _move(x, to, part, send, owned, owner, rows, ptr, nets, slots, where, pins, used)
            after = _price(send, slope, threshold, penalty)
            if not (relieves or after < cost or (after == cost and lighter)):
                _move(x, a, part, send, owned, owner, rows, ptr, nets, slots, where, pins, used)
                _price(send, slope, threshold, penalty)
                continue
            cost = after
            load[a] -= weight[x]
            load[to] += weight[x]
            moved += 1
            news[x] = 1
            for p in range(ptr[x], ptr[x + 1]):
                news[owner[nets[p]]] = 1
            for p in range(net_ptr[owned[x]], net_ptr[owned[x + 1]]):
                news[readers[p]] = 1
            work += net_ptr[owned[x + 1]] - net_ptr[owned[x]]
