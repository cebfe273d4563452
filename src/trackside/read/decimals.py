"""Parses millions of decimal numbers of a text at once: eight digits per machine word, without a Python loop.

The result equals that of ``float`` to the last bit: an exact mantissa below 2**53 divided by an exact power of ten is
rounded once. Longer numbers and anything but plain numbers (nan, inf) are not parsed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Offsets = NDArray[np.int64]
Flags = NDArray[np.bool_]
Words = NDArray[np.uint64]

MARGIN_BYTES = 16
"""A number must end at least this many bytes after the start of the buffer, else it is not parsed."""
_U = np.uint64
_ALL = 0xFFFF_FFFF_FFFF_FFFF
_ONES = _U(0x0101_0101_0101_0101)
_HIGH = _U(0x8080_8080_8080_8080)
_ASCII_0 = _U(0x3030_3030_3030_3030)
_DOTS = _U(0x1E1E_1E1E_1E1E_1E1E)
"""The dot, after subtracting ASCII 0."""
_OVER_9 = _U(0x7676_7676_7676_7676)
"""Added to a byte, sets its high bit if the byte is 10 or more."""


def _last_bytes(count: int) -> int:
    """The mask of a word's last ``count`` characters; the last character is the highest byte."""
    return (_ALL << (64 - 8 * count)) & _ALL if count > 0 else 0


_LOW = np.array([_last_bytes(min(n, 8)) for n in range(17)], dtype=_U)
_UP = np.array([_last_bytes(n - 8) for n in range(17)], dtype=_U)
_POWERS = 10.0 ** np.arange(23)


def decimals(data: bytes, starts: Offsets, ends: Offsets) -> tuple[Floats, Flags]:
    """The numbers in ``data[start:end]``, and a flag for each that was parsed; the values of the others are undefined.

    Supported: a sign, up to 16 characters of digits and dot, and a two-digit exponent.
    """
    if not len(starts) or len(data) < MARGIN_BYTES:
        return np.zeros(len(starts)), np.zeros(len(starts), dtype=np.bool_)
    codes = np.frombuffer(data, dtype=np.uint8)
    first = codes[np.minimum(starts, len(codes) - 1)]
    has_sign = (first == ord("-")) | (first == ord("+"))
    begins, stops = starts + has_sign, ends
    powers = None
    tail = np.maximum(ends - 4, 0)
    exponents = (codes[tail] | 0x20) == ord("e")
    if exponents.any():
        stops, powers, exponents = _exponents(codes, tail, exponents, ends)
    mantissa, scale, valid = _parse_digits(data, begins, stops)
    values = mantissa / _POWERS[scale]
    if powers is not None:
        values, valid = _with_exponents(mantissa, powers - scale, values, valid, exponents)
    if has_sign.any():
        np.negative(values, where=first == ord("-"), out=values)
    return values, valid


def _parse_digits(data: bytes, starts: Offsets, ends: Offsets) -> tuple[Words, Offsets, Flags]:
    """Digits with at most one dot: all digits as one integer, the number of digits after the dot, and a validity
    flag."""
    words = np.ndarray((len(data) - 7,), dtype="<u8", buffer=data, strides=(1,))
    length = ends - starts
    valid = (length > 0) & (length <= 16) & (ends >= MARGIN_BYTES)
    length, ends = np.where(valid, length, 0), np.where(valid, ends, MARGIN_BYTES)
    low = (words[ends - 8] ^ _ASCII_0) & _LOW[length]
    up = (words[ends - 16] ^ _ASCII_0) & _UP[length]
    dot_low, dot_up = _dot_mask(low), _dot_mask(up)
    in_low, in_up = dot_low != 0, dot_up != 0
    # Characters left of the dot move one byte to the right, over the dot.
    left_mask = np.where(in_low, dot_low - _U(1), _U(0))
    left_mask_up = np.where(in_low, _U(_ALL), np.where(in_up, dot_up - _U(1), _U(0)))
    carry = np.where(in_low, up >> _U(56), _U(0))
    low = (low & ~(left_mask | dot_low * _U(255))) | ((low & left_mask) << _U(8)) | carry
    up = (up & ~(left_mask_up | dot_up * _U(255))) | ((up & left_mask_up) << _U(8))
    invalid = ((low + _OVER_9) | low | (up + _OVER_9) | up) & _HIGH
    mantissa = _digits_to_number(up) * _U(100_000_000) + _digits_to_number(low)
    is_only_dot = (length == 1) & (in_low | in_up)
    valid &= (invalid == 0) & (mantissa <= _U(1 << 53)) & ~is_only_dot
    fraction = np.where(in_low, 7 - _byte_index(dot_low), np.where(in_up, 15 - _byte_index(dot_up), 0))
    return mantissa, fraction, valid


def _dot_mask(word: Words) -> Words:
    """1 in the byte of the first dot, 0 without one. Any further dot is later rejected because it is not a digit."""
    difference = word ^ _DOTS
    dots = (difference - _ONES) & ~difference & _HIGH
    first: Words = (dots & (~dots + _U(1))) >> _U(7)
    return first


def _byte_index(flag: Words) -> Offsets:
    """Index of the byte that holds the 1, from the first character: the exponent of 256**n as a float."""
    index: Offsets = ((flag.astype(np.float64).view(np.int64) >> 52) - 1023) >> 3
    return index


def _digits_to_number(word: Words) -> Words:
    """Eight digits, one per byte, as a number: combined in pairs, in fours, then all."""
    pairs = word * _U(10) + (word >> _U(8))
    mask = _U(0x0000_00FF_0000_00FF)
    number: Words = (
        (pairs & mask) * _U(0x000F_4240_0000_0064) + ((pairs >> _U(16)) & mask) * _U(0x0000_2710_0000_0001)
    ) >> _U(32)
    return number


def _exponents(
    codes: NDArray[np.uint8], tail: Offsets, exponents: Flags, ends: Offsets
) -> tuple[Offsets, Offsets, Flags]:
    """Where the mantissas end, the exponents, and which numbers have one (``e``, a sign and two digits at the end)."""
    sign = codes[np.maximum(ends - 3, 0)]
    tens, units = (codes[np.maximum(ends - distance, 0)].astype(np.int64) - ord("0") for distance in (2, 1))
    signs = (sign == ord("-")) | (sign == ord("+"))
    exponents = exponents & signs & (tens >= 0) & (tens <= 9) & (units >= 0) & (units <= 9)
    powers = np.where(exponents, (10 * tens + units) * np.where(sign == ord("-"), -1, 1), 0)
    return np.where(exponents, tail, ends), powers, exponents


def _with_exponents(
    mantissa: Words, power: Offsets, values: Floats, valid: Flags, exponents: Flags
) -> tuple[Floats, Flags]:
    """The values with exponents applied. Powers beyond 10**22 are not exact, so such numbers are marked as not
    parsed."""
    exact = np.abs(power) <= 22
    factor = _POWERS[np.where(exact, np.abs(power), 0)]
    scaled = np.where(power < 0, mantissa / factor, mantissa * factor)
    return np.where(exponents, scaled, values), valid & (exact | ~exponents)
