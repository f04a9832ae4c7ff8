"""Compiled loops of the refinement: clustering within parts, and moves between parts.

Both work on m vertices, or clusters of vertices, and N nets. A net is a row of X, or several rows with the same owner
and readers. Its owner stores it, and its pins are the other vertices that read it. A net costs its owner's part one
row for each other part that has a pin. All arithmetic is on integers, so a seed gives equal parts on every machine.

The pins of a net are counted per part in slots. A net with at least k pins has one slot per part, in order. A net with
fewer pins has one slot per pin and uses the first `used` of them. Arguments shared by all functions:

owned, owner, rows    (m + 1), (N), (N): vertex x owns nets owned[x] to owned[x + 1] - 1; rows of X in each net
ptr, nets             (m + 1), (pins): nets of which vertex x is a pin, in CSR form
slots                 (N + 1): net j has slots slots[j] to slots[j + 1] - 1
where, pins, used     (slots), (slots), (N): part and pin count of each slot; slots in use of each net
part, weight          (m): part and weight of each vertex
send, load            (k): rows sent by each part, and its weight

Arrays are passed one by one and without slices, as tuples of arrays double the time to compile and to run.
"""

from __future__ import annotations

from typing import Any

from numba import int32, int64, njit, types, uint8

Array = Any
LONG, SHORT, FLAGS = int64[::1], int32[::1], uint8[::1]


@njit(cache=True)
def _shuffle(order: Array, state: int) -> int:
    """Shuffle `order` in place by xorshift (Marsaglia 2003) from a nonzero state; return the new state."""
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
    """Label propagation among vertices of one part, in place. No cluster grows heavier than `limit`.

    `ptr`, `near` and `strength` are an undirected graph in CSR form. Every vertex starts as its own cluster: `label`
    and `order` are 0 to m - 1, `size` holds the weights, `score` is zero.
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
        if moved * 50 < len(weight):  # fewer than 2 percent of the vertices moved
            break


@njit(cache=True)
def _slot(j: int, q: int, k: int, slots: Array, where: Array, pins: Array, used: Array) -> int:
    """The slot that counts the pins of net j in part q, or -1 if there are none."""
    start = slots[j]
    if slots[j + 1] - start == k:
        return start + q if pins[start + q] > 0 else -1
    for i in range(start, start + used[j]):
        if where[i] == q:
            return i
    return -1


@njit(cache=True)
def _enter(j: int, q: int, k: int, slots: Array, where: Array, pins: Array, used: Array) -> bool:
    """Add a pin of net j in part q; return whether it is the first."""
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
    """Remove a pin of net j in part q; return whether it was the last."""
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
    """Count all pins, and the rows that each part sends, into zeroed arrays."""
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
    """Move vertex x to part b and update the pin counts and `send`."""
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
    """Total price of all sends. Writes the marginal price of a row of each part to `slope`.

    A row of a part that sends more than `threshold` costs 1 + penalty, any other row costs 1.
    """
    total = 0
    for q in range(len(send)):
        total += send[q] + penalty * max(0, send[q] - threshold)
        slope[q] = 1 + (penalty if send[q] > threshold else 0)
    return total


@njit(cache=True)
def _weigh(
    x: int, heavy: bool, part: Array, slope: Array, gain: Array, own: Array, owned: Array, owner: Array, rows: Array,
    ptr: Array, nets: Array, slots: Array, where: Array, pins: Array, used: Array,
) -> tuple[int, int, int]:  # fmt: skip
    """Prices of moving vertex x. A move from part a to part b changes the total price, at the given slopes, by
    base - gain[b] + slope[b] * (every - own[b]) - slope[a] * (every - own[a]).

    Writes `gain` and `own` and returns base, every and the number of slots visited. The number is 0 for a vertex
    whose readers and reads all lie in its own part: it has no move to gain by. In a heavy part every vertex is priced.
    """
    a, k = part[x], len(slope)
    base, every, work, linked = 0, 0, k, heavy
    for j in range(owned[x], owned[x + 1]):  # own rows, sent to every part that reads them
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
    for p in range(ptr[x], ptr[x + 1]):  # rows that x reads; its part may need some of them only for x
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
    """The cheapest target part with load at most `room` for a vertex of part a, or -1, and the change of the price.

    Resets `gain` and `own` to zero. Ties go to the part with the smaller load.
    """
    price_now = slope[a] * (every - own[a])
    to, least = -1, 0
    for b in range(len(slope)):
        if b != a and load[b] <= room:
            change = base - gain[b] + slope[b] * (every - own[b]) - price_now
            if to < 0 or change < least or (change == least and load[b] < load[to]):
                to, least = b, change
        gain[b] = 0
        own[b] = 0
    return to, least


@njit(cache=True)
def _state(send: Array, load: Array, cap: int, ceiling: int) -> tuple[int, int, int, int]:
    """Objectives in order: entries above the cap, rows above the ceiling, rows of the busiest part, total rows."""
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
    """Move vertices between parts. Writes the best parts by `_state` to `best` and their sends to `best_send`.

    `net_ptr` and `readers` list the pins of each net in CSR form. Counts and per-part arrays start at zero, `order`
    at 0 to m - 1, and `news` at one.

    Each sweep prices rows of parts near the maximum higher and accepts a move if the exact total price falls. The first
    sweep, and a sweep after one with few moves, visits all vertices; other sweeps visit only neighbours of moves.
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
            best_send[:] = send
            best[:] = part
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
            base, every, visited = _weigh(
                x, heavy, part, slope, gain, own, owned, owner, rows, ptr, nets, slots, where, pins, used
            )
            if visited == 0:
                continue
            work += visited
            to, least = _choose(a, base, every, slope, gain, own, load, cap - weight[x])
            lighter = to >= 0 and load[to] + weight[x] < load[a]
            relieves = heavy and least <= sweep * sweep * weight[x]  # accept a loss that grows sweep by sweep
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
