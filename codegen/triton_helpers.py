"""Functions that kernels in Triton call: what its language lacks, one text each.

A kernel's file has those it uses, behind the kernel. Float functions take float32 and float64;
where float32 would lose digits they compute in float64 and round once. Results at infinities, nan
and zero are NumPy's.
"""

from __future__ import annotations

import re

HELPERS = {
    "ab_checked": '''
def ab_checked(status_ptr, value, bound, mask):
    """An index in [0, bound), or 0 after it was reported: 1, the index, the bound."""
    value = tl.to_tensor(value).to(tl.int64)
    inside = (value >= 0) & (value < bound)
    wrong = mask & ((value < 0) | (value >= bound))
    here = wrong.to(tl.int64) * 0
    tl.store(status_ptr + 1 + here, value, mask=wrong)
    tl.store(status_ptr + 2 + here, here + bound, mask=wrong)
    tl.store(status_ptr + here, here + 1, mask=wrong)
    return tl.where(inside, value, 0) + here
''',
    "ab_words": '''
def ab_words(seed, step, counter, stream):
    """The first two words of Philox4x32-10 for one logical element."""
    element = tl.to_tensor(counter).to(tl.int64)
    low, high = element.to(tl.uint32), (element >> 32).to(tl.uint32)
    now = tl.to_tensor(step).to(tl.uint32)
    number = tl.full([], stream, tl.uint32)
    first, second, _, _ = tl.philox(seed, low, high, now, number)
    return first, second
''',
    "ab_uniform": '''
def ab_uniform(seed, step, counter, stream):
    """24 random bits as a number in [0, 1)."""
    first, _ = ab_words(seed, step, counter, stream)
    return (first >> 8).to(tl.float32) * 5.9604644775390625e-08
''',
    "ab_normal": '''
def ab_normal(seed, step, counter, stream):
    """Box-Muller over 24 bits each of two words."""
    first, second = ab_words(seed, step, counter, stream)
    radius = ((first >> 8).to(tl.float64) + 1.0) * 5.9604644775390625e-08
    angle = (second >> 8).to(tl.float64) * (6.283185307179586 * 5.9604644775390625e-08)
    return (tl.sqrt(-2.0 * tl.log(radius)) * tl.cos(angle)).to(tl.float32)
''',
    "ab_largest": '''
def ab_largest(x, axis: tl.constexpr, keep_dims: tl.constexpr):
    """The maximum along an axis; nan if there is one."""
    found = tl.max(x, axis, keep_dims=keep_dims)
    nan = tl.max((x != x).to(tl.int32), axis, keep_dims=keep_dims)
    return tl.where(nan > 0, float("nan"), found)
''',
    "ab_smallest": '''
def ab_smallest(x, axis: tl.constexpr, keep_dims: tl.constexpr):
    """The minimum along an axis; nan if there is one."""
    found = tl.min(x, axis, keep_dims=keep_dims)
    nan = tl.max((x != x).to(tl.int32), axis, keep_dims=keep_dims)
    return tl.where(nan > 0, float("nan"), found)
''',
    "ab_first": '''
def ab_first(place, best, extreme, axis: tl.constexpr, keep_dims: tl.constexpr):
    """The first place that has the extreme (or nan, if there is one); 0 if there is no place."""
    hit = (place >= 0) & ((best == extreme) | (best != best))
    none: tl.constexpr = 9223372036854775807
    found = tl.min(tl.where(hit, place, none), axis, keep_dims=keep_dims)
    return tl.where(found == none, 0, found)
''',
    "ab_below": '''
def ab_below(a, b):
    """Whether a comes before b: nan is larger than any number, and equal to itself."""
    return (a < b) | ((b != b) & (a == a))
''',
    "ab_order": '''
def ab_order(x_ptr, stride, length, places_ptr, step, count, down: tl.constexpr,
             dtype: tl.constexpr, side: tl.constexpr):
    """An element's rank is the number of those before it, of equal ones those to its left."""
    for rows in range(0, length, side):
        i = rows + tl.arange(0, side)[:, None]
        own = tl.load(x_ptr + i * stride, mask=i < length, other=0).to(dtype)
        rank = tl.zeros([side, 1], tl.int32)
        for columns in range(0, length, side):
            j = columns + tl.arange(0, side)[None, :]
            other = tl.load(x_ptr + j * stride, mask=j < length, other=0).to(dtype)
            below, above = ab_below(other, own), ab_below(own, other)
            first = above if down else below
            last = below if down else above
            before = (first | ((last == 0) & (j < i))) & (j < length)
            rank += tl.sum(before.to(tl.int32), 1, keep_dims=True)
        tl.store(places_ptr + rank * step, i.to(tl.int64), mask=(i < length) & (rank < count))
''',
    "ab_multiply": '''
def ab_multiply(a, b):
    return a * b
''',
    "ab_sign": '''
def ab_sign(x):
    x = tl.to_tensor(x)
    return tl.where(x > 0.0, 1.0, tl.where(x < 0.0, -1.0, 0.0)).to(x.dtype)
''',
    "ab_int_sign": '''
def ab_int_sign(x):
    x = tl.to_tensor(x)
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)
''',
    "ab_isnan": '''
def ab_isnan(x):
    x = tl.to_tensor(x)
    return x != x
''',
    "ab_isinf": '''
def ab_isinf(x):
    x = tl.to_tensor(x)
    return tl.abs(x) == float("inf")
''',
    "ab_int_isnan": '''
def ab_int_isnan(x):
    x = tl.to_tensor(x)
    return x != x
''',
    "ab_int_isinf": '''
def ab_int_isinf(x):
    x = tl.to_tensor(x)
    return x != x
''',
    "ab_round": '''
def ab_round(x):
    """To the nearest integer, halves to even."""
    x = tl.to_tensor(x)
    low = tl.floor(x)
    odd = low - 2.0 * tl.floor(low * 0.5) != 0.0
    up = (x - low > 0.5) | ((x - low == 0.5) & odd)
    return tl.where(up, low + 1.0, low)
''',
    "ab_trunc": '''
def ab_trunc(x):
    x = tl.to_tensor(x)
    return tl.where(x < 0.0, tl.ceil(x), tl.floor(x))
''',
    "ab_rsqrt": '''
def ab_rsqrt(x):
    x = tl.to_tensor(x)
    return 1.0 / tl.sqrt(x) if x.dtype == tl.float64 else tl.div_rn(1.0, tl.sqrt_rn(x))
''',
    "ab_mod": '''
def ab_mod(a, b):
    """The remainder with the sign of the divisor."""
    a, b = tl.to_tensor(a), tl.to_tensor(b)
    rest = a % b
    return tl.where((rest != 0.0) & ((rest < 0.0) != (b < 0.0)), rest + b, rest)
''',
    "ab_floordiv": '''
def ab_floordiv(a, b):
    a, b = tl.to_tensor(a), tl.to_tensor(b)
    whole = tl.floor((a - ab_mod(a, b)) / b + 0.5)
    far = (tl.abs(b) == float("inf")) & (tl.abs(a) < float("inf"))
    below = (a != 0.0) & ((a < 0.0) != (b < 0.0))
    whole = tl.where(far, 0.0 - below.to(a.dtype), whole)
    return tl.where(b == 0.0, a / b, whole)
''',
    "ab_int_mod": '''
def ab_int_mod(a, b):
    """The remainder with the sign of the divisor; 0 if that is 0."""
    a, b = tl.to_tensor(a), tl.to_tensor(b)
    by = b + (b == 0).to(b.dtype)
    rest = a % by
    rest = tl.where((rest != 0) & ((rest < 0) != (by < 0)), rest + by, rest)
    return tl.where(b == 0, b, rest)
''',
    "ab_int_floordiv": '''
def ab_int_floordiv(a, b):
    """The quotient rounded down; 0 if the divisor is 0."""
    a, b = tl.to_tensor(a), tl.to_tensor(b)
    by = b + (b == 0).to(b.dtype)
    rest = a % by
    whole = a // by - ((rest != 0) & ((rest < 0) != (by < 0))).to(rest.dtype)
    return tl.where(b == 0, b, whole)
''',
    "ab_int_pow": '''
def ab_int_pow(a, b):
    """Repeated squaring; negative powers are 0, but for those of 1 and -1."""
    base, left = tl.to_tensor(a) + tl.to_tensor(b) * 0, tl.to_tensor(b) + tl.to_tensor(a) * 0
    power = (base == base).to(base.dtype)
    negative = (left < 0) & (base != 1) & (base != -1)
    left = tl.where(left < 0, left & 1, left)
    for _ in range(63):
        power = tl.where(left & 1 == 1, power * base, power)
        base = base * base
        left = left >> 1
    return tl.where(negative, power * 0, power)
''',
    "ab_pow": '''
def ab_pow(a, b):
    """exp(b log|a|) in float64, with the sign of an odd power."""
    base, exponent = tl.to_tensor(a), tl.to_tensor(b)
    x, y = base.to(tl.float64), exponent.to(tl.float64)
    power = tl.exp(y * tl.log(tl.abs(x)))
    whole = tl.floor(y) == y
    odd = whole & (tl.floor(y * 0.5) * 2.0 != y)
    power = tl.where(x < 0.0, tl.where(whole, tl.where(odd, -power, power), float("nan")), power)
    settled = (tl.abs(x) == 1.0) & (tl.abs(y) == float("inf"))
    power = tl.where((y == 0.0) | (x == 1.0) | settled, 1.0, power)
    return power.to(base.dtype)
''',
    "ab_expm1": '''
def ab_expm1(x):
    y = tl.to_tensor(x).to(tl.float64)
    e = tl.exp(y)
    small = (e - 1.0) * (y / tl.log(e))
    far = (e == 0.0) | (e == float("inf")) | (tl.abs(y) > 1.0)
    return tl.where(e == 1.0, y, tl.where(far, e - 1.0, small)).to(x.dtype)
''',
    "ab_log1p": '''
def ab_log1p(x):
    y = tl.to_tensor(x).to(tl.float64)
    u = y + 1.0
    near = tl.log(u) * (y / (u - 1.0))
    return tl.where(u == 1.0, y, tl.where(u == float("inf"), u, near)).to(x.dtype)
''',
    "ab_tanh": '''
def ab_tanh(x):
    """An odd series near 0, else by exp(-2|x|)."""
    y = tl.to_tensor(x).to(tl.float64)
    s = y * y
    p = 62.0 / 2835.0 - s * (1382.0 / 155925.0)
    near = y + y * s * (-1.0 / 3.0 + s * (2.0 / 15.0 + s * (-17.0 / 315.0 + s * p)))
    e = tl.exp(-2.0 * tl.abs(y))
    far = (1.0 - e) / (1.0 + e)
    return tl.where(s < 0.0025, near, tl.where(y < 0.0, -far, far)).to(x.dtype)
''',
    "ab_sinh": '''
def ab_sinh(x):
    """By expm1(|x|), which is exact near 0; the halves keep large arguments finite."""
    y = tl.to_tensor(x).to(tl.float64)
    a = tl.abs(y)
    e = ab_expm1(a)
    near = 0.5 * (e + e / (e + 1.0))
    half = tl.exp(0.5 * a)
    size = tl.where(a > 20.0, 0.5 * half * half, near)
    return tl.where(y < 0.0, -size, size).to(x.dtype)
''',
    "ab_cosh": '''
def ab_cosh(x):
    half = tl.exp(0.5 * tl.abs(tl.to_tensor(x).to(tl.float64)))
    return (0.5 * half * half + 0.5 / (half * half)).to(x.dtype)
''',
    "ab_tan": '''
def ab_tan(x):
    y = tl.to_tensor(x).to(tl.float64)
    return (tl.sin(y) / tl.cos(y)).to(x.dtype)
''',
    "ab_arctangent": '''
def ab_arctangent(y):
    """In float64: reduced to |t| <= 1, then twice to half the angle, then a series."""
    large = tl.abs(y) > 1.0
    t = tl.where(large, 1.0 / y, y)
    t = t / (1.0 + tl.sqrt(1.0 + t * t))
    t = t / (1.0 + tl.sqrt(1.0 + t * t))
    s = t * t
    p = 1.0 / 17.0 - s * (1.0 / 19.0)
    p = 1.0 / 13.0 - s * (1.0 / 15.0 - s * p)
    p = 1.0 / 9.0 - s * (1.0 / 11.0 - s * p)
    p = 1.0 / 5.0 - s * (1.0 / 7.0 - s * p)
    angle = 4.0 * t * (1.0 - s * (1.0 / 3.0 - s * p))
    right = tl.full([], 1.5707963267948966, tl.float64)
    return tl.where(large, tl.where(y < 0.0, -right, right) - angle, angle)
''',
    "ab_atan": '''
def ab_atan(x):
    return ab_arctangent(tl.to_tensor(x).to(tl.float64)).to(x.dtype)
''',
    "ab_atan2": '''
def ab_atan2(y, x):
    """The angle of a point, by the slope of its shorter side; the signs are those of y and x."""
    high, wide = tl.abs(tl.to_tensor(y).to(tl.float64)), tl.abs(tl.to_tensor(x).to(tl.float64))
    steep = high > wide
    longer, shorter = tl.where(steep, high, wide), tl.where(steep, wide, high)
    slope = tl.where(longer == 0.0, 0.0, tl.where(shorter == float("inf"), 1.0, shorter / longer))
    angle = ab_arctangent(slope)
    right = tl.full([], 1.5707963267948966, tl.float64)
    angle = tl.where(steep, right - angle, angle)
    bits = tl.to_tensor(x).to(tl.float64).to(tl.int64, bitcast=True)
    angle = tl.where(bits < 0, 2.0 * right - angle, angle)
    bits = tl.to_tensor(y).to(tl.float64).to(tl.int64, bitcast=True)
    angle = tl.where(bits < 0, -angle, angle)
    return tl.where((high != high) | (wide != wide), float("nan"), angle).to(x.dtype)
''',
    "ab_int_shl": '''
def ab_int_shl(a, b):
    """0 for what is shifted by its width or more, or by less than 0."""
    a, b = tl.to_tensor(a), tl.to_tensor(b)
    near = (b >= 0) & (b < a.dtype.primitive_bitwidth)
    return tl.where(near, a << tl.where(near, b, 0), 0).to(a.dtype)
''',
    "ab_int_shr": '''
def ab_int_shr(a, b):
    """The sign for what is shifted by its width or more, or by less than 0."""
    a, b = tl.to_tensor(a), tl.to_tensor(b)
    near = (b >= 0) & (b < a.dtype.primitive_bitwidth)
    return tl.where(near, a >> tl.where(near, b, 0), tl.where(a < 0, -1, 0)).to(a.dtype)
''',
    "ab_asin": '''
def ab_asin(x):
    y = tl.to_tensor(x).to(tl.float64)
    return ab_arctangent(y / tl.sqrt((1.0 - y) * (1.0 + y))).to(x.dtype)
''',
    "ab_acos": '''
def ab_acos(x):
    y = tl.to_tensor(x).to(tl.float64)
    return (2.0 * ab_arctangent(tl.sqrt((1.0 - y) / (1.0 + y)))).to(x.dtype)
''',
}


def used(text: str) -> list[str]:
    """The helpers that a text calls, with those that they call, in the order of the table."""
    found: set[str] = set()
    waiting = [text]
    while waiting:
        called = set(re.findall(r"\bab_\w+", waiting.pop())) & HELPERS.keys() - found
        found |= called
        waiting += [HELPERS[name] for name in called]
    return [name for name in HELPERS if name in found]
