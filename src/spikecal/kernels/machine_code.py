"""Loops compiled by numba. They release Python's lock, so that threads can share the work by rows.

Values are flat, in memory order. Parameters repeat: those of one row of values apply to every row.
Loops run over blocks that stay in the processor's nearest cache, and innermost over slices from their start: only
those does LLVM vectorise. Arithmetic equals torch's to the bit, so nothing here may be reordered or contracted.
"""

import numpy as np
from numba import njit

BLOCK = 1024  # values


@njit(nogil=True, cache=True)
def integrate_and_fire(v, current, stride, theta, reached, border, steps, passed, total, levels, first, last):
    """`v <- v + I(t)`; a spike where `v >= reached(t)`; `v <- v - theta` there.

    The next step is `stride` values further in `current` and `border` in `reached`, 0 if constant. `passed`
    gets theta times the spikes and `levels` the spikes of each step, `total` their sum; empty arrays are skipped.
    """
    size, row = v.size, theta.size
    fired_block = np.empty(BLOCK, v.dtype)
    one, zero = v.dtype.type(1), v.dtype.type(0)
    for begin in range(first * row, min(last * row, size), row):
        for place in range(0, min(row, size - begin), BLOCK):
            start = begin + place
            count = min(BLOCK, row - place, size - start)
            potential, height, fired = v[start : start + count], theta[place : place + count], fired_block[:count]
            for t in range(steps):
                arriving = current[t * stride + start : t * stride + start + count]
                level = reached[t * border + place : t * border + place + count]
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
                if levels.size:
                    whole = levels[out : out + count]
                    for i in range(count):
                        whole[i] = np.uint8(fired[i])
                if passed.size:
                    value = passed[out : out + count]
                    for i in range(count):
                        value[i] = fired[i] * height[i]


@njit(nogil=True, cache=True)
def unpack(bits, skip, height, values, first, last):
    """Spikes times the heights of one row, from packed bits, highest bit of a byte first, without the first `skip`."""
    size, row = values.size, height.size
    zero = height.dtype.type(0)
    for begin in range(first * row, min(last * row, size), row):
        count = min(row, size - begin)
        out, at = values[begin : begin + count], begin + skip
        if at % 8 == 0 and count % 8 == 0:
            whole = bits[at // 8 : (at + count) // 8]
            for byte in range(whole.size):
                packed = whole[byte]
                for bit in range(8):
                    out[8 * byte + bit] = height[8 * byte + bit] if packed & (128 >> bit) else zero
        else:
            for i in range(count):
                out[i] = height[i] if bits[(at + i) >> 3] & (128 >> ((at + i) & 7)) else zero


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
