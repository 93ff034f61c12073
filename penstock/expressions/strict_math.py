"""exp, ln and their kin, and pow, to the last bit of Java's StrictMath, which Spark computes with.

StrictMath is fdlibm by definition: these are its algorithms over whole columns. Every operation is
one of IEEE 754 and stands in fdlibm's order; where that branches, each branch is computed for all
rows and the right one is chosen. High and low words are the halves of a double's 64 bits.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from penstock.arrays import Doubles, Numbers

_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_INVERSE_LN2 = 1.44269504088896338700e00
_EXP_OVERFLOWS, _EXP_UNDERFLOWS = 7.09782712893383973096e02, -7.45133219101941108420e02
_EXP = (
    1.66666666666666019037e-01, -2.77777777770155933842e-03, 6.61375632143793436117e-05,
    -1.65339022054652515390e-06, 4.13813679705723846039e-08,
)  # fmt: skip
_LN_ODD = (
    6.666666666666735130e-01, 2.857142874366239149e-01, 1.818357216161805012e-01,
    1.479819860511658591e-01,
)  # fmt: skip
_LN_EVEN = (3.999999999940941908e-01, 2.222219843214978396e-01, 1.531383769920937332e-01)
_POW = (
    5.99999999999994648725e-01, 4.28571428578550184252e-01, 3.33333329818377432918e-01,
    2.72728123808534006489e-01, 2.30660745775561754067e-01, 2.06975017800338417784e-01,
)  # fmt: skip
_LG2, _LG2_HIGH, _LG2_LOW = (
    6.93147180559945286227e-01, 6.93147182464599609375e-01, -1.90465429995776804525e-09,
)  # fmt: skip
_CP, _CP_HIGH, _CP_LOW = (
    9.61796693925975554329e-01, 9.61796700954437255859e-01, -7.02846165095275826516e-09,
)  # fmt: skip
_INVERSE_LN2_HIGH, _INVERSE_LN2_LOW = 1.44269502162933349609e00, 1.92596299112661746887e-08
_DP_HIGH, _DP_LOW = 5.84962487220764160156e-01, 1.35003920212974897128e-08
_OVERFLOW_MARGIN = 8.0085662595372944372e-17
_LOW_WORD = 0xFFFFFFFF


def exp(x: Doubles) -> Doubles:
    """e to the power of each number."""
    size = np.abs(x)
    top = _high(size)
    is_far = top > 0x3FD62E42  # beyond half of ln 2
    is_near_one = top < 0x3FF0A2B2  # within one and a half of it
    times = np.where(is_near_one, np.sign(x), np.trunc(_INVERSE_LN2 * x + np.copysign(0.5, x)))
    times = np.where(is_far & np.isfinite(times), times, 0.0)
    high, low = x - times * _LN2_HIGH, times * _LN2_LOW
    rest = np.where(is_far, high - low, x)
    square = rest * rest
    c = rest - square * _polynomial(square, _EXP)
    whole = 1.0 - ((rest * c) / (c - 2.0) - rest)
    scaled = 1.0 - ((low - (rest * c) / (2.0 - c)) - high)
    result = np.where(is_far, _scaled(scaled, times), whole)
    result = np.where(top < 0x3E300000, 1.0 + x, result)  # so small that nothing else is seen
    result = np.where(x > _EXP_OVERFLOWS, np.inf, result)
    result = np.where(x < _EXP_UNDERFLOWS, 0.0, result)
    return np.where(np.isnan(x), x, result)


def ln(x: Doubles) -> Doubles:
    """The natural logarithm of each number."""
    is_tiny = x < 2.0**-1022
    wide = np.where(is_tiny, x * 2.0**54, x)
    top = _high(wide)
    power = (top >> 20) - 1023 - np.where(is_tiny, 54, 0)
    top = top & 0xFFFFF
    carry = (top + 0x95F64) & 0x100000
    power = power + (carry >> 20)
    f = _with_high(wide, top | (carry ^ 0x3FF00000)) - 1.0
    k = power.astype(np.float64)
    is_same = power == 0
    # so near to 1 that two terms are enough
    r = f * f * (0.5 - 0.33333333333333333 * f)
    close = np.where(is_same, f - r, k * _LN2_HIGH - ((r - k * _LN2_LOW) - f))
    close = np.where(f == 0, np.where(is_same, 0.0, k * _LN2_HIGH + k * _LN2_LOW), close)
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    r = z * _polynomial(w, _LN_ODD) + w * _polynomial(w, _LN_EVEN)
    half = 0.5 * f * f
    upper = np.where(
        is_same,
        f - (half - s * (half + r)),
        k * _LN2_HIGH - ((half - (s * (half + r) + k * _LN2_LOW)) - f),
    )
    lower = np.where(is_same, f - s * (f - r), k * _LN2_HIGH - ((s * (f - r) - k * _LN2_LOW) - f))
    far = np.where(((top - 0x6147A) | (0x6B851 - top)) > 0, upper, lower)
    result = np.where((0xFFFFF & (2 + top)) < 3, close, far)
    result = np.where(x == 0, -np.inf, np.where(x < 0, np.nan, result))
    return np.where(np.isnan(x) | (x == np.inf), x, result)


_EXPM1 = (
    1.0, -3.33333333333331316428e-02, 1.58730158725481460165e-03, -7.93650757867487942473e-05,
    4.00821782732936239552e-06, -2.01099218183624371326e-07,
)  # fmt: skip
_EXPM1_FAR = 56  # beyond so many powers of 2 one more or less is not seen


def expm1(x: Doubles) -> Doubles:
    """e to the power of each number, less 1."""
    top = _high(np.abs(x))
    is_far = top > 0x3FD62E42  # beyond half of ln 2
    is_near_one = top < 0x3FF0A2B2  # within one and a half of it
    times = np.where(is_near_one, np.sign(x), np.trunc(_INVERSE_LN2 * x + np.copysign(0.5, x)))
    times = np.where(is_far & (top < 0x40862E43), times, 0.0)
    high, low = x - times * _LN2_HIGH, times * _LN2_LOW
    rest = np.where(is_far, high - low, x)
    lost = np.where(is_far, (high - rest) - low, 0.0)
    half = 0.5 * rest
    square = rest * half
    r = _polynomial(square, _EXPM1)
    t = 3.0 - r * half
    e = square * ((r - t) / (6.0 - rest * t))
    near = rest - (rest * e - square)
    e = (rest * (e - lost) - lost) - square
    power = _scaled(np.ones_like(x), -times)
    few = _scaled((1.0 - power) - (e - rest), times)
    many = _scaled((rest - (e + power)) + 1.0, times)
    most = _scaled(1.0 - (e - rest), times) - 1.0
    result = np.where(times < 20, few, many)
    result = np.where((times <= -2) | (times > _EXPM1_FAR), most, result)
    once = np.where(rest < -0.25, -2.0 * (e - (rest + 0.5)), 1.0 + 2.0 * (rest - e))
    result = np.where(times == 1, once, np.where(times == -1, 0.5 * (rest - e) - 0.5, result))
    result = np.where(times == 0, near, result)
    result = np.where(top < 0x3C900000, x, result)  # so small that it is itself
    result = np.where((top >= 0x4043687A) & (x < 0), -1.0, result)
    result = np.where(x > _EXP_OVERFLOWS, np.inf, result)
    return np.where(np.isnan(x), x, result)


_LN = (*chain.from_iterable(zip(_LN_ODD, _LN_EVEN, strict=False)), _LN_ODD[-1])


def log1p(x: Doubles) -> Doubles:
    """The natural logarithm of each number and 1."""
    signed, size = _high(x), _high(np.abs(x))
    is_itself = (signed < 0x3FDA827A) & ((signed > 0) | (signed <= 0xBFD2BEC3 - (1 << 32)))
    is_wide = signed >= 0x43400000  # one more is not seen
    u = np.where(is_wide, x, 1.0 + x)
    top = _high(u)
    power = (top >> 20) - 1023
    lost = np.where(power > 0, 1.0 - (u - x), x - (u - 1.0)) / u
    lost = np.where(is_wide | is_itself, 0.0, lost)
    top = top & 0xFFFFF
    goes_up = top >= 0x6A09E
    rest = _with_high(u, top | np.where(goes_up, 0x3FE00000, 0x3FF00000))
    power = np.where(is_itself, 0, power + goes_up)
    top = np.where(is_itself, 1, np.where(goes_up, (0x00100000 - top) >> 2, top))
    f = np.where(is_itself, x, rest - 1.0)
    k = power.astype(np.float64)
    half = 0.5 * f * f
    added = k * _LN2_LOW + lost
    # so near to 1 that two terms are enough
    r = half * (1.0 - 0.66666666666666666 * f)
    close = np.where(power == 0, f - r, k * _LN2_HIGH - ((r - added) - f))
    close = np.where(
        f == 0, np.where(power == 0, 0.0, k * _LN2_HIGH + (lost + k * _LN2_LOW)), close
    )
    s = f / (2.0 + f)
    z = s * s
    r = z * _polynomial(z, _LN)
    far = np.where(
        power == 0,
        f - (half - s * (half + r)),
        k * _LN2_HIGH - ((half - (s * (half + r) + added)) - f),
    )
    result = np.where(top == 0, close, far)
    small = np.where(size < 0x3C900000, x, x - x * x * 0.5)
    result = np.where(size < 0x3E200000, small, result)
    result = np.where(x == -1, -np.inf, np.where(x < -1, np.nan, result))
    return np.where(np.isnan(x) | (x == np.inf), x, result)


_INVERSE_LN10 = 4.34294481903251816668e-01
_LOG10_2_HIGH, _LOG10_2_LOW = 3.01029995663611771306e-01, 3.69423907715893078616e-13
_LIFT = 54  # binary digits by which a subnormal is lifted into the normal range


def log10(x: Doubles) -> Doubles:
    """The decimal logarithm of each number."""
    is_small = (x > 0) & (_high(x) < 0x00100000)
    lifted = np.where(is_small, x * 2.0**_LIFT, x)
    top = _high(lifted)
    power = (top >> 20) - 1023 - np.where(is_small, _LIFT, 0)
    below = (power < 0).astype(np.int64)
    times = (power + below).astype(np.float64)
    rest = _with_high(lifted, (top & 0x000FFFFF) | ((0x3FF - below) << 20))
    found = (times * _LOG10_2_LOW + _INVERSE_LN10 * ln(rest)) + times * _LOG10_2_HIGH
    ordinary = (x > 0) & np.isfinite(x)
    return np.where(ordinary, found, ln(x))


def power(x: Doubles, y: Doubles) -> Doubles:
    """Each number of x to the power of that of y."""
    size, reach = np.abs(x), np.abs(y)
    is_whole = np.floor(reach) == reach
    is_odd = is_whole & (reach < 2.0**53) & (np.fmod(reach, 2.0) == 1)
    sign = np.where((x < 0) & is_odd, -1.0, 1.0)
    is_huge = reach > _double(0x41E00000FFFFFFFF)
    high, low = _log2(size)
    near_high, near_low = _log2_near_one(size)
    result = sign * _exp2(y, np.where(is_huge, near_high, high), np.where(is_huge, near_low, low))
    # So large a power of anything but 1 leaves the doubles.
    is_small, is_large = size < _double(0x3FEFFFFF00000000), size > _double(0x3FF00000FFFFFFFF)
    leaves = is_huge & (is_small | is_large)
    result = np.where(leaves, sign * np.where(is_large == (y > 0), np.inf, 0.0), result)
    result = np.where((x < 0) & ~is_whole, np.nan, result)
    # numbers whose powers are themselves, 0 or infinite
    known = np.where(y < 0, 1.0 / size, size)
    is_negative = np.signbit(x)
    known = np.where(is_negative & is_odd, -known, known)
    known = np.where(is_negative & (size == 1) & ~is_whole, np.nan, known)
    result = np.where((size == 0) | np.isinf(size) | (size == 1), known, result)
    # powers that need no computing
    endless = np.where(size == 1, np.nan, np.where((size > 1) == (y > 0), np.inf, 0.0))
    result = np.where(np.isinf(y), endless, result)
    result = np.where(y == 1, x, np.where(y == -1, 1.0 / x, result))
    result = np.where((y == 0.5) & (x >= -np.finfo(np.float64).max), np.sqrt(x + 0.0), result)
    result = np.where(y == 2, x * x, result)
    result = np.where(np.isnan(x) | np.isnan(y), np.nan, result)
    return np.where(y == 0, 1.0, result)


def _log2(size: Doubles) -> tuple[Doubles, Doubles]:
    """log2 in two parts, of which the first has few enough bits to be multiplied exactly."""
    is_tiny = size < 2.0**-1022
    wide = np.where(is_tiny, size * 2.0**53, size)
    top = _high(wide)
    n = (top >> 20) - 0x3FF - np.where(is_tiny, 53, 0)
    below = top & 0xFFFFF
    k = ((below > 0x3988E) & (below < 0xBB67A)).astype(np.int64)
    goes_up = below >= 0xBB67A
    n = n + goes_up
    top = (below | 0x3FF00000) - np.where(goes_up, 0x100000, 0)
    a = _with_high(wide, top)
    base = np.where(k == 1, 1.5, 1.0)
    u, v = a - base, 1.0 / (a + base)
    ss = u * v
    s_high = _cut(ss)
    t_high = ((((top >> 1) | 0x20000000) + 0x00080000 + (k << 18)) << 32).view(np.float64)
    t_low = a - (t_high - base)
    s_low = v * ((u - s_high * t_high) - s_high * t_low)
    square = ss * ss
    r = square * square * _polynomial(square, _POW)
    r = r + s_low * (s_high + ss)
    square = s_high * s_high
    t_high = _cut(3.0 + square + r)
    t_low = r - ((t_high - 3.0) - square)
    u, v = s_high * t_high, s_low * t_high + t_low * ss
    p_high = _cut(u + v)
    p_low = v - (p_high - u)
    z_high = _CP_HIGH * p_high
    z_low = _CP_LOW * p_high + p_low * _CP + np.where(k == 1, _DP_LOW, 0.0)
    t, dp = n.astype(np.float64), np.where(k == 1, _DP_HIGH, 0.0)
    first = _cut(((z_high + z_low) + dp) + t)
    return first, z_low - (((first - t) - dp) - z_high)


def _log2_near_one(size: Doubles) -> tuple[Doubles, Doubles]:
    t = size - 1.0
    w = (t * t) * (0.5 - t * (0.3333333333333333333333 - t * 0.25))
    u, v = _INVERSE_LN2_HIGH * t, t * _INVERSE_LN2_LOW - w * _INVERSE_LN2
    first = _cut(u + v)
    return first, v - (first - u)


def _exp2(y: Doubles, high: Doubles, low: Doubles) -> Doubles:
    """2 to the power of y * (high + low)."""
    y_high = _cut(y)
    p_low = (y - y_high) * high + y * low
    p_high = y_high * high
    z = p_low + p_high
    overflows = (z > 1024) | ((z == 1024) & (p_low + _OVERFLOW_MARGIN > z - p_high))
    underflows = (z < -1075) | ((z == -1075) & (p_low <= z - p_high))
    near = np.abs(_cut(z))  # the nearest whole number is found from the high word alone
    is_scaled = (near > 0.5) & ~overflows & ~underflows
    times = np.where(is_scaled, np.copysign(np.floor(near + 0.5), z), 0.0)
    p_high = p_high - times
    t = _cut(p_low + p_high)
    u, v = t * _LG2_HIGH, (p_low - (t - p_high)) * _LG2 + t * _LG2_LOW
    z = u + v
    w = v - (z - u)
    square = z * z
    c = z - square * _polynomial(square, _EXP)
    r = (z * c) / (c - 2.0) - (w + z * w)
    result = _scaled(1.0 - (r - z), times)
    return np.where(overflows, np.inf, np.where(underflows, 0.0, result))


def _scaled(values: Doubles, powers: Doubles) -> Doubles:
    """values * 2^powers, rounded once."""
    return np.ldexp(values, powers.astype(np.int64))


def _polynomial(x: Doubles, factors: tuple[float, ...]) -> Doubles:
    result: Any = factors[-1]
    for factor in reversed(factors[:-1]):
        result = factor + x * result
    return result  # type: ignore[no-any-return]


def _high(values: Doubles) -> Numbers:
    return values.view(np.int64) >> 32


def _with_high(values: Doubles, high: Numbers) -> Doubles:
    return ((high << 32) | (values.view(np.int64) & _LOW_WORD)).view(np.float64)


def _cut(values: Doubles) -> Doubles:
    """Without the low word."""
    return (values.view(np.int64) & ~_LOW_WORD).view(np.float64)


def _double(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))
