"""Loops compiled by numba: each for a range of rows, and over all rows shared by the threads of numba's pool.

With OpenMP these threads wait awake for a moment, as those of torch do: work of 0.1 ms is worth sharing.
Values are flat, in memory order. Parameters repeat: those of one row of values apply to every row.
Loops run over blocks that stay in the processor's nearest cache, and innermost over slices from their start: only
those does LLVM vectorise. Arithmetic equals torch's to the bit, so nothing here may be reordered or contracted.
"""

import numpy as np
from numba import njit, prange

BLOCK = 1024  # values


@njit(nogil=True, cache=True)
def integrate_and_fire(v, current, stride, theta, bias, steps, signed, passed, total, sent, levels, first, last):
    """`v <- v + I(t)`; a spike where `v >= theta - t bias`, t from 1; `v <- v - theta` there. At the end, `v + T bias`.

    `signed` neurons fire half a theta earlier, and spikes of -1 where v is below that less theta. The next step is
    `stride` values further in `current`, 0 if constant. `passed` gets theta times the levels, and may be `current`
    itself; `levels` those of each step; their sum is added to `total`, that of their magnitudes to `sent`. Empty arrays
    are skipped.
    """
    size, row = v.size, theta.size
    fired_block, level_block = np.empty(BLOCK, v.dtype), np.empty(BLOCK, v.dtype)
    one, zero, part = v.dtype.type(1), v.dtype.type(0), v.dtype.type(0.5 if signed else 1)
    for begin in range(first * row, min(last * row, size), row):
        for place in range(0, min(row, size - begin), BLOCK):
            start = begin + place
            count = min(BLOCK, row - place, size - start)
            potential, height = v[start : start + count], theta[place : place + count]
            own = bias[place : place + count]
            fired, level = fired_block[:count], level_block[:count]
            for i in range(count):
                level[i] = part * height[i]
            for t in range(steps):
                arriving = current[t * stride + start : t * stride + start + count]
                if own.size:
                    passing = v.dtype.type(t + 1)
                    for i in range(count):
                        level[i] = part * height[i] - passing * own[i]
                if signed:
                    for i in range(count):
                        charged = potential[i] + arriving[i]
                        above = one if charged >= level[i] else zero
                        below = one if charged < level[i] - height[i] else zero
                        fired[i] = above - below
                        potential[i] = charged - fired[i] * height[i]
                else:
                    for i in range(count):
                        charged = potential[i] + arriving[i]
                        fires = one if charged >= level[i] else zero
                        fired[i] = fires
                        potential[i] = charged - fires * height[i]
                out = t * size + start
                if total.size:
                    sums = total[start : start + count]
                    for i in range(count):
                        sums[i] += fired[i]
                if sent.size:
                    magnitudes = sent[start : start + count]
                    for i in range(count):
                        magnitudes[i] += abs(fired[i])
                if levels.size:
                    whole = levels[out : out + count]
                    for i in range(count):
                        whole[i] = np.int8(fired[i])
                if passed.size:
                    value = passed[out : out + count]
                    for i in range(count):
                        value[i] = fired[i] * height[i]
            if own.size:
                passing = v.dtype.type(steps)
                for i in range(count):
                    potential[i] += passing * own[i]


@njit(nogil=True, cache=True, parallel=True)
def integrate_and_fire_shared(
    v, current, stride, theta, bias, steps, signed, passed, total, sent, levels, rows, shares
):
    for i in prange(shares):
        first, last = rows * i // shares, rows * (i + 1) // shares
        integrate_and_fire(v, current, stride, theta, bias, steps, signed, passed, total, sent, levels, first, last)


@njit(nogil=True, cache=True)
def unpack(bits, higher, lowest, skip, height, values, first, last):
    """Levels times the heights of one row, from packed bits, highest bit of a byte first, without the first `skip`.

    A level is its bit, or, with the `higher` bits of two, `lowest` plus both.
    """
    size, row = values.size, height.size
    zero = height.dtype.type(0)
    for begin in range(first * row, min(last * row, size), row):
        count = min(row, size - begin)
        out, at = values[begin : begin + count], begin + skip
        if higher.size:
            for i in range(count):
                byte, bit = (at + i) >> 3, 7 - ((at + i) & 7)
                level = (bits[byte] >> bit & 1) + 2 * (higher[byte] >> bit & 1) + lowest
                out[i] = height.dtype.type(level) * height[i]
        elif at % 8 == 0 and count % 8 == 0:
            whole = bits[at // 8 : (at + count) // 8]
            for byte in range(whole.size):
                packed = whole[byte]
                for bit in range(8):
                    out[8 * byte + bit] = height[8 * byte + bit] if packed & (128 >> bit) else zero
        else:
            for i in range(count):
                out[i] = height[i] if bits[(at + i) >> 3] & (128 >> ((at + i) & 7)) else zero


@njit(nogil=True, cache=True, parallel=True)
def unpack_shared(bits, higher, lowest, skip, height, values, rows, shares):
    for i in prange(shares):
        unpack(bits, higher, lowest, skip, height, values, rows * i // shares, rows * (i + 1) // shares)


@njit(nogil=True, cache=True)
def count_into_bins(values, per_unit, counts, first, last):
    """Adds the number of `values` `[n, C]` in each bin `ceil(value * per_unit)` to `counts` `[C, bins]`.

    Returns how many are in none of them: negative values and NaN.
    """
    channels, bins, outside = per_unit.size, counts.shape[1], 0
    index = np.empty(channels, np.int64)
    for n in range(first, last):
        row = values[n]
        for c in range(channels):
            index[c] = np.int64(np.ceil(row[c] * per_unit[c]))
        for c in range(channels):
            if 0 <= index[c] < bins:
                counts[c, index[c]] += 1
            else:
                outside += 1
    return outside


@njit(nogil=True, cache=True, parallel=True)
def count_into_bins_shared(values, per_unit, counts, outside, rows, shares):
    """`counts` `[shares, C, bins]` and `outside` `[shares]` are of each share."""
    for i in prange(shares):
        outside[i] = count_into_bins(values, per_unit, counts[i], rows * i // shares, rows * (i + 1) // shares)


@njit(nogil=True, cache=True)
def tally(values, most, fired, found, first, last):
    """Adds the sum of whole numbers `[N, M]` and how many equal `most` to `found`, for some columns.

    `fired` `[M]` becomes true where any of a column is positive.
    """
    for n in range(len(values)):
        row, any_fired = values[n, first:last], fired[first:last]
        spikes, full = 0, 0
        for i in range(row.size):
            count = int(row[i])
            spikes += count
            full += count == most
            any_fired[i] |= count > 0
        found[0] += spikes
        found[1] += full


@njit(nogil=True, cache=True, parallel=True)
def tally_shared(values, most, fired, found, shares):
    """`found` `[shares, 2]` is of each share."""
    for i in prange(shares):
        size = values.shape[1]
        tally(values, most, fired, found[i], size * i // shares, size * (i + 1) // shares)
