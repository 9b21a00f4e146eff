"""Fused loops for codecs on the CPU, compiled by numba: each touches memory as few times as the arithmetic allows.

Vectors of 32 floats and their comparison masks are spelled out through LLVM, since no loop over single bits becomes
as fast. The torch operations in the codecs are the specification; every kernel here produces the same bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

LANES = 32
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_WORDS = ir.VectorType(ir.IntType(32), LANES)
_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any, vector: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), vector.as_pointer())


def _splat(builder: Any, scalar: Any, vector: Any) -> Any:
    zero = ir.IntType(32)(0)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, zero)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), ir.Constant(_WORDS, [0] * LANES))


def _with_sign(builder: Any, negative: Any, scalar: Any) -> Any:
    plus = _splat(builder, scalar, _FLOATS)
    return builder.select(negative, builder.fsub(ir.Constant(_FLOATS, [-0.0] * LANES), plus), plus)


@intrinsic
def _squeeze_signs(typing: Any, update: Any, residual: Any, index: Any, scale: Any) -> Any:
    """For 32 elements: v = update + residual; residual = v -+ scale; return which v are negative."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        u, e, i, s = arguments
        source = builder.load(_pointer(context, builder, signature.args[0], u, i, _FLOATS), align=4)
        target = _pointer(context, builder, signature.args[1], e, i, _FLOATS)
        value = builder.fadd(source, builder.load(target, align=4))
        negative = builder.fcmp_ordered("<", value, ir.Constant(_FLOATS, [0.0] * LANES))
        step = _with_sign(builder, negative, s)
        builder.store(builder.fsub(value, step), target, align=4)
        return builder.bitcast(negative, ir.IntType(32))

    return types.uint32(update, residual, index, scale), codegen


@intrinsic
def _add_signs(typing: Any, out: Any, index: Any, word: Any, scale: Any) -> Any:
    """Add scale, negated where the word's bit is set, to 32 elements."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, i, word_value, s = arguments
        target = _pointer(context, builder, signature.args[0], array, i, _FLOATS)
        mask = builder.bitcast(word_value, ir.VectorType(ir.IntType(1), LANES))
        step = _with_sign(builder, mask, s)
        builder.store(builder.fadd(builder.load(target, align=4), step), target, align=4)
        return context.get_dummy_value()

    return types.void(out, index, word, scale), codegen


@intrinsic
def _add_at_least(typing: Any, update: Any, residual: Any, index: Any, threshold: Any) -> Any:
    """For 32 elements: residual += update; return whose magnitude, as an integer, is at least `threshold`."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        u, e, i, limit = arguments
        source = builder.load(_pointer(context, builder, signature.args[0], u, i, _FLOATS), align=4)
        target = _pointer(context, builder, signature.args[1], e, i, _FLOATS)
        added = builder.fadd(source, builder.load(target, align=4))
        builder.store(added, target, align=4)
        magnitude = builder.and_(builder.bitcast(added, _WORDS), ir.Constant(_WORDS, [_MAGNITUDE] * LANES))
        return builder.bitcast(builder.icmp_signed(">=", magnitude, _splat(builder, limit, _WORDS)), ir.IntType(32))

    return types.uint32(update, residual, index, threshold), codegen


@intrinsic
def _raise_lanes(typing: Any, update: Any, residual: Any, index: Any, lanes: Any) -> Any:
    """For 32 elements: raise each lane to the magnitude, as an integer, of update + residual."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        u, e, i, tops = arguments
        first, second = (
            builder.load(_pointer(context, builder, kind, array, i, _FLOATS), align=4)
            for kind, array in ((signature.args[0], u), (signature.args[1], e))
        )
        bits = builder.bitcast(builder.fadd(first, second), _WORDS)
        magnitude = builder.and_(bits, ir.Constant(_WORDS, [_MAGNITUDE] * LANES))
        target = _pointer(context, builder, signature.args[3], tops, ir.IntType(64)(0), _WORDS)
        old = builder.load(target, align=4)
        larger = builder.icmp_signed(">", magnitude, old)
        builder.store(builder.select(larger, magnitude, old), target, align=4)
        return context.get_dummy_value()

    return types.void(update, residual, index, lanes), codegen


@intrinsic
def _lowest(typing: Any, word: Any) -> Any:
    """Return the position of the lowest bit that is set."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.uint32(word), codegen


@njit(cache=True, nogil=True)
def chunk_scales(update: Any, residual: Any, chunk: int, mean_abs: bool, scales: Any) -> None:
    """Write each chunk's RMS (or mean magnitude) of update + residual, summed in fp64.

    Lane j adds up elements j, j + 32, j + 64, ...; the lanes are then folded by halves. The torch path adds in the
    same order, so both round alike. A scale that is not finite tells of an element that is not.
    """
    lanes = np.empty(LANES, np.float64)
    for c in range(scales.size):
        u, e = update[c * chunk : (c + 1) * chunk], residual[c * chunk : (c + 1) * chunk]
        lanes[:] = 0.0
        whole = u.size // LANES
        for g in range(whole):
            uu, ee = u[g * LANES : (g + 1) * LANES], e[g * LANES : (g + 1) * LANES]
            if mean_abs:
                for j in range(LANES):
                    lanes[j] += np.float64(abs(uu[j] + ee[j]))
            else:
                for j in range(LANES):
                    v = np.float64(uu[j] + ee[j])
                    lanes[j] += v * v
        for j in range(u.size - whole * LANES):
            v = np.float64(u[whole * LANES + j] + e[whole * LANES + j])
            lanes[j] += abs(v) if mean_abs else v * v
        width = LANES
        while width > 1:
            width //= 2
            for j in range(width):
                lanes[j] += lanes[width + j]
        scales[c] = np.float32(lanes[0] / u.size) if mean_abs else np.float32(math.sqrt(lanes[0] / u.size))


@njit(cache=True, nogil=True)
def onebit_squeeze(update: Any, residual: Any, chunk: int, scales: Any, words: Any) -> None:
    """Write the sign bits of v = update + residual; leave v minus what they decode to in `residual`."""
    for c in range(scales.size):
        start = c * chunk
        u, e, w, scale = (
            update[start : start + chunk],
            residual[start : start + chunk],
            words[start // LANES :],
            scales[c],
        )
        whole = u.size // LANES
        for g in range(whole):
            w[g] = _squeeze_signs(u, e, g * LANES, scale)
        if whole * LANES < u.size:
            word = np.uint32(0)
            for j in range(whole * LANES, u.size):
                v = u[j] + e[j]
                word |= np.uint32(v < 0) << np.uint32(j - whole * LANES)
                e[j] = v + scale if v < 0 else v - scale
            w[whole] = word


@njit(cache=True, nogil=True)
def onebit_add(words: Any, scales: Any, chunk: int, weight: np.float32, out: Any) -> None:
    """Add weight times the decoded values to `out`."""
    for c in range(scales.size):
        start = c * chunk
        o, w, scale = out[start : start + chunk], words[start // LANES :], np.float32(weight * scales[c])
        whole = o.size // LANES
        for g in range(whole):
            _add_signs(o, g * LANES, w[g], scale)
        for j in range(whole * LANES, o.size):
            negative = (w[whole] >> np.uint32(j - whole * LANES)) & np.uint32(1)
            o[j] = o[j] - scale if negative else o[j] + scale


@njit(cache=True, nogil=True)
def add_and_gather(update: Any, residual: Any, threshold: np.int32, indices: Any, values: Any) -> int:
    """Add `update` to `residual`, and write down all elements whose magnitude, as an integer, is then at least
    `threshold`.

    Returns how many there are; what does not fit is counted but not written.
    """
    found, whole, room = 0, update.size // LANES, indices.size
    for g in range(whole):
        word = _add_at_least(update, residual, g * LANES, threshold)
        while word:
            if found < room:
                i = g * LANES + _lowest(word)
                indices[found] = i
                values[found] = residual[i]
            found += 1
            word &= word - np.uint32(1)
    bits = residual.view(np.int32)
    for i in range(whole * LANES, update.size):
        residual[i] += update[i]
        if bits[i] & np.int32(_MAGNITUDE) >= threshold:
            if found < room:
                indices[found] = i
                values[found] = residual[i]
            found += 1
    return found


@njit(cache=True, nogil=True)
def magnitude_histogram(values: Any, shift: int, prefix: int, counts: Any) -> None:
    """Count the 15 (shift 16) or lowest 16 (shift 0) bits of the magnitudes, of those whose upper bits are `prefix`."""
    bits = values.view(np.int32)
    for i in range(bits.size):
        magnitude = bits[i] & np.int32(_MAGNITUDE)
        if shift == 16:
            counts[magnitude >> 16] += 1
        elif magnitude >> 16 == prefix:
            counts[magnitude & 0xFFFF] += 1


@njit(cache=True, nogil=True)
def chunk_largest(update: Any, residual: Any, chunk: int, largest: Any) -> None:
    """Write each chunk's largest magnitude of update + residual; NaN and infinities come out as the largest of all."""
    lanes, tail = np.empty(LANES, np.int32), np.zeros(LANES, np.float32)
    for c in range(largest.size):
        u, e = update[c * chunk : (c + 1) * chunk], residual[c * chunk : (c + 1) * chunk]
        lanes[:] = 0
        whole = u.size // LANES
        for g in range(whole):
            _raise_lanes(u, e, g * LANES, lanes)
        top = np.int32(0)
        for j in range(LANES):
            top = max(top, lanes[j])
        for j in range(whole * LANES, u.size):
            tail[j - whole * LANES] = u[j] + e[j]
            top = max(top, tail.view(np.int32)[j - whole * LANES] & np.int32(_MAGNITUDE))
        lanes[0] = top
        largest[c] = lanes.view(np.float32)[0]


@njit(cache=True, nogil=True)
def sum_is_finite(update: Any, residual: Any) -> bool:
    """Return whether no element of update + residual is NaN or infinite."""
    largest = np.empty(1, np.float32)
    chunk_largest(update, residual, max(1, update.size), largest[: min(1, update.size)])
    return update.size == 0 or largest.view(np.int32)[0] < _INFINITY


@njit(cache=True, nogil=True, fastmath={"nnan", "ninf", "nsz"})
def quantise(
    update: Any,
    residual: Any,
    chunk: int,
    inverses: Any,
    scales: Any,
    limit: np.float32,
    stochastic: bool,
    seed: np.uint32,
    levels: Any,
) -> None:
    """Write v * inverse, rounded, for v = update + residual; leave v - level * scale in `residual`.

    Stochastic rounding adds a number in [0, 1) made of index and seed alone, and rounds down; the torch path makes
    the same.
    """
    for c in range(scales.size):
        start = c * chunk
        u, e, q = update[start : start + chunk], residual[start : start + chunk], levels[start : start + chunk]
        inverse, scale = inverses[c], scales[c]
        if not stochastic:
            for j in range(u.size):
                v = u[j] + e[j]
                level = min(limit, max(-limit, np.rint(v * inverse)))
                q[j] = np.int8(np.int32(level))
                e[j] = v - level * scale
            continue
        base = np.uint32(np.uint32(start) * np.uint32(0x9E3779B9) + seed)
        for j in range(u.size):
            x = np.uint32(base + np.uint32(np.uint32(j) * np.uint32(0x9E3779B9)))
            x = np.uint32(x ^ np.uint32(x >> np.uint32(16)))
            x = np.uint32(x * np.uint32(0x7FEB352D))
            x = np.uint32(x ^ np.uint32(x >> np.uint32(15)))
            x = np.uint32(x * np.uint32(0x846CA68B))
            x = np.uint32(x ^ np.uint32(x >> np.uint32(16)))
            v = u[j] + e[j]
            level = np.floor(v * inverse + np.float32(np.int32(x >> np.uint32(8))) * np.float32(2.0**-24))
            level = min(limit, max(-limit, level))
            q[j] = np.int8(np.int32(level))
            e[j] = v - level * scale


@njit(cache=True, nogil=True)
def levels_add(levels: Any, scales: Any, chunk: int, weight: np.float32, out: Any) -> None:
    """Add weight times the decoded values to `out`."""
    for c in range(scales.size):
        start = c * chunk
        o, q, scale = out[start : start + chunk], levels[start : start + chunk], np.float32(weight * scales[c])
        for j in range(o.size):
            o[j] += np.float32(q[j]) * scale


def num_compiled() -> int:
    """Return how many kernels this process has had to compile, since no process before it had left them."""
    return sum(sum(kernel.stats.cache_misses.values()) for kernel in _kernels())


def num_loaded() -> int:
    """Return how many kernels are ready in this process, one for each kind of arrays."""
    return sum(len(kernel.signatures) for kernel in _kernels())


def _kernels() -> list[Any]:
    return [found for found in globals().values() if hasattr(found, "signatures") and hasattr(found, "stats")]
