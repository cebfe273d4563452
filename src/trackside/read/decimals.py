"""Millions of decimal numbers in a text, read at once: eight digits to a machine word, without a loop over them.

The result is the number that ``float`` gives, to the last bit: a mantissa below 2**53 over a power of ten that is
exact as well is rounded once. What is longer, or is no plain number (nan, inf), is left unread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
Flags = NDArray[np.bool_]
Words = NDArray[np.uint64]

MARGIN = 16
"""Bytes that must stand before a number's end; one nearer to the buffer's beginning is not read."""
_U = np.uint64
_ALL = 0xFFFF_FFFF_FFFF_FFFF
_ONES = _U(0x0101_0101_0101_0101)
_HIGH = _U(0x8080_8080_8080_8080)
_ASCII_0 = _U(0x3030_3030_3030_3030)
_DOTS = _U(0x1E1E_1E1E_1E1E_1E1E)
"""The dot, once the digits are 0 to 9."""
_OVER_9 = _U(0x7676_7676_7676_7676)
"""Added to a byte, sets its high bit from 10 on."""


def _last_bytes(count: int) -> int:
    """The mask of a word's last ``count`` characters; the last one stands highest."""
    return (_ALL << (64 - 8 * count)) & _ALL if count > 0 else 0


_LOW = np.array([_last_bytes(min(n, 8)) for n in range(17)], dtype=_U)
_UP = np.array([_last_bytes(n - 8) for n in range(17)], dtype=_U)
_POWERS = 10.0 ** np.arange(23)


def decimals(data: bytes, starts: Places, ends: Places) -> tuple[Floats, Flags]:
    """The numbers that stand in ``data[start:end]``, and which of them were read; the others' values mean nothing.

    Read are a sign, up to 16 characters of digits and dot, and an exponent of two digits.
    """
    if not len(starts) or len(data) < MARGIN:
        return np.zeros(len(starts)), np.zeros(len(starts), dtype=np.bool_)
    codes = np.frombuffer(data, dtype=np.uint8)
    first = codes[np.minimum(starts, len(codes) - 1)]
    signed = (first == ord("-")) | (first == ord("+"))
    begins, stops = starts + signed, ends
    powers = None
    tail = np.maximum(ends - 4, 0)
    exponents = (codes[tail] | 0x20) == ord("e")
    if exponents.any():
        stops, powers, exponents = _exponents(codes, tail, exponents, ends)
    mantissa, scale, good = _plain(data, begins, stops)
    values = mantissa / _POWERS[scale]
    if powers is not None:
        values, good = _raised(mantissa, powers - scale, values, good, exponents)
    if signed.any():
        np.negative(values, where=first == ord("-"), out=values)
    return values, good


def _plain(data: bytes, starts: Places, ends: Places) -> tuple[Words, Places, Flags]:
    """Digits with at most one dot: all digits as one integer, how many stand after the dot, and whether it is so."""
    words = np.ndarray((len(data) - 7,), dtype="<u8", buffer=data, strides=(1,))
    length = ends - starts
    good = (length > 0) & (length <= 16) & (ends >= MARGIN)
    length, ends = np.where(good, length, 0), np.where(good, ends, MARGIN)
    low = (words[ends - 8] ^ _ASCII_0) & _LOW[length]
    up = (words[ends - 16] ^ _ASCII_0) & _UP[length]
    dot_low, dot_up = _dot(low), _dot(up)
    in_low, in_up = dot_low != 0, dot_up != 0
    # What stands left of the dot moves one place to the right, over it.
    left = np.where(in_low, dot_low - _U(1), _U(0))
    left_up = np.where(in_low, _U(_ALL), np.where(in_up, dot_up - _U(1), _U(0)))
    carried = np.where(in_low, up >> _U(56), _U(0))
    low = (low & ~(left | dot_low * _U(255))) | ((low & left) << _U(8)) | carried
    up = (up & ~(left_up | dot_up * _U(255))) | ((up & left_up) << _U(8))
    over = ((low + _OVER_9) | low | (up + _OVER_9) | up) & _HIGH
    mantissa = _eight(up) * _U(100_000_000) + _eight(low)
    only_dot = (length == 1) & (in_low | in_up)
    good &= (over == 0) & (mantissa <= _U(1 << 53)) & ~only_dot
    fraction = np.where(in_low, 7 - _byte(dot_low), np.where(in_up, 15 - _byte(dot_up), 0))
    return mantissa, fraction, good


def _dot(word: Words) -> Words:
    """1 in the byte that holds a dot, 0 without one. Of several the first is found; the others then are no digits."""
    off = word ^ _DOTS
    found = (off - _ONES) & ~off & _HIGH
    first: Words = (found & (~found + _U(1))) >> _U(7)
    return first


def _byte(flag: Words) -> Places:
    """Which byte holds the 1, counted from the first character: the exponent of 256**n as a float."""
    place: Places = ((flag.astype(np.float64).view(np.int64) >> 52) - 1023) >> 3
    return place


def _eight(word: Words) -> Words:
    """Eight digits, each in its byte, as a number: pairs, fours, then all of them."""
    pairs = word * _U(10) + (word >> _U(8))
    mask = _U(0x0000_00FF_0000_00FF)
    number: Words = (
        (pairs & mask) * _U(0x000F_4240_0000_0064) + ((pairs >> _U(16)) & mask) * _U(0x0000_2710_0000_0001)
    ) >> _U(32)
    return number


def _exponents(codes: NDArray[np.uint8], tail: Places, exponents: Flags, ends: Places) -> tuple[Places, Places, Flags]:
    """Where the mantissas end, the exponents, and which numbers have one: ``e``, a sign and two digits at the end."""
    sign = codes[np.maximum(ends - 3, 0)]
    tens, units = (codes[np.maximum(ends - back, 0)].astype(np.int64) - ord("0") for back in (2, 1))
    signs = (sign == ord("-")) | (sign == ord("+"))
    exponents = exponents & signs & (tens >= 0) & (tens <= 9) & (units >= 0) & (units <= 9)
    powers = np.where(exponents, (10 * tens + units) * np.where(sign == ord("-"), -1, 1), 0)
    return np.where(exponents, tail, ends), powers, exponents


def _raised(mantissa: Words, power: Places, values: Floats, good: Flags, exponents: Flags) -> tuple[Floats, Flags]:
    """The values with their exponents; beyond 10**22 a power is not exact, and the number is left unread."""
    exact = np.abs(power) <= 22
    factor = _POWERS[np.where(exact, np.abs(power), 0)]
    raised = np.where(power < 0, mantissa / factor, mantissa * factor)
    return np.where(exponents, raised, values), good & (exact | ~exponents)
