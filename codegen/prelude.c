/* What generated kernels call: arithmetic on every dtype, and mathematics on f32 that is the same on
 * every platform. The f32 functions are branch-free (but for sin and cos of huge arguments), so
 * that loops over lanes become vectors; each is within the ulps that tests/codegen/test_prelude.py
 * states, for all arguments, with the IEEE results at infinities, nan and zero. f64 goes to the
 * platform's libm.
 */
#include <string.h>

#define AB_INLINE static inline __attribute__((always_inline, unused))

AB_INLINE int64_t ab_padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

AB_INLINE int64_t ab_place(int64_t place) { return place < 0 ? 0 : place; }

/* An index that has been checked, or 0 after an error was reported. */
AB_INLINE int64_t ab_checked(ab_ctx *ctx, int64_t value, int64_t bound) {
    if (value >= 0 && value < bound) return value;
    ab_index_error(ctx, value, bound);
    return 0;
}

AB_INLINE float ab_float_of_bits(int32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
AB_INLINE int32_t ab_bits_of_float(float x) { int32_t bits; memcpy(&bits, &x, 4); return bits; }

/* --- narrow floats: memory holds bits, values are f32 ------------------------------------------ */

AB_INLINE float ab_from_f16(uint16_t bits) { _Float16 h; memcpy(&h, &bits, 2); return (float)h; }
AB_INLINE uint16_t ab_to_f16(float x) {
    _Float16 h = (_Float16)x;
    uint16_t bits;
    memcpy(&bits, &h, 2);
    return bits;
}
AB_INLINE float ab_round_f16(float x) { return (float)(_Float16)x; }

AB_INLINE float ab_from_bf16(uint16_t bits) { return ab_float_of_bits((int32_t)((uint32_t)bits << 16)); }
AB_INLINE uint16_t ab_to_bf16(float x) {
    uint32_t bits = (uint32_t)ab_bits_of_float(x);
    uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16; /* to nearest, ties to even */
    return (uint16_t)(x != x ? 0x7FC0u : rounded);
}
AB_INLINE float ab_round_bf16(float x) { return ab_from_bf16(ab_to_bf16(x)); }

/* --- arithmetic -------------------------------------------------------------------------------- */

/* nan if either is, as in NumPy */
#define AB_FLOAT(T, N, F)                                                                           \
    AB_INLINE T ab_max_##N(T a, T b) { return (a >= b) | (a != a) ? a : b; }                        \
    AB_INLINE T ab_min_##N(T a, T b) { return (a <= b) | (a != a) ? a : b; }                        \
    AB_INLINE T ab_sign_##N(T x) { return (T)((x > 0) - (x < 0)); }                                 \
    AB_INLINE T ab_square_##N(T x) { return x * x; }                                                \
    AB_INLINE T ab_cube_##N(T x) { return x * x * x; }                                              \
    AB_INLINE T ab_rsqrt_##N(T x) { return 1 / __builtin_sqrt##F(x); }                              \
    AB_INLINE int32_t ab_isnan_##N(T x) { return x != x; }                                          \
    AB_INLINE int32_t ab_isinf_##N(T x) { return __builtin_fabs##F(x) == (T)__builtin_inf(); }      \
    AB_INLINE T ab_mod_##N(T a, T b) {                                                              \
        T r = __builtin_fmod##F(a, b);                                                              \
        return r != 0 && (r < 0) != (b < 0) ? r + b : r;                                            \
    }                                                                                               \
    AB_INLINE T ab_floordiv_##N(T a, T b) {                                                         \
        T r = __builtin_fmod##F(a, b), q = (a - r) / b;                                             \
        q = r != 0 && (r < 0) != (b < 0) ? q - 1 : q;                                               \
        return b == 0 ? a / b : __builtin_floor##F(q + (T)0.5);                                     \
    }                                                                                               \
    AB_INLINE T ab_pow_##N(T a, T b) { return __builtin_pow##F(a, b); }

#define AB_INTEGER(T, N)                                                                            \
    AB_INLINE T ab_max_##N(T a, T b) { return a > b ? a : b; }                                      \
    AB_INLINE T ab_min_##N(T a, T b) { return a < b ? a : b; }                                      \
    AB_INLINE T ab_abs_##N(T x) { return (T)(x < 0 ? -x : x); }                                     \
    AB_INLINE T ab_sign_##N(T x) { return (T)((x > 0) - (x < 0)); }                                 \
    AB_INLINE int32_t ab_isnan_##N(T x) { (void)x; return 0; }                                      \
    AB_INLINE int32_t ab_isinf_##N(T x) { (void)x; return 0; }                                      \
    AB_INLINE T ab_mod_##N(T a, T b) {                                                              \
        if (b == 0 || ((T)-1 < 0 && b == (T)-1)) return 0; /* what is least by -1 would trap */     \
        T r = (T)(a % b);                                                                           \
        return (T)(r != 0 && (r < 0) != (b < 0) ? r + b : r);                                       \
    }                                                                                               \
    AB_INLINE T ab_floordiv_##N(T a, T b) {                                                         \
        if (b == 0 || ((T)-1 < 0 && b == (T)-1)) return (T)(b * a); /* wraps, and does not trap */  \
        return (T)(a / b - (a % b != 0 && (a < 0) != (b < 0)));                                     \
    }                                                                                               \
    AB_INLINE T ab_shl_##N(T a, T b) {                                                              \
        return b < 0 || b >= (T)(8 * sizeof(T)) ? 0 : (T)((uint64_t)a << b);                        \
    }                                                                                               \
    AB_INLINE T ab_shr_##N(T a, T b) {                                                              \
        return b < 0 || b >= (T)(8 * sizeof(T)) ? (T)(a < 0 ? -1 : 0) : (T)(a >> b);                \
    }                                                                                               \
    AB_INLINE T ab_pow_##N(T a, T b) {                                                              \
        T y = 1;                                                                                    \
        if (b < 0) { if (a != 1 && a != (T)-1) return 0; b = b & 1; }                               \
        for (; b; b = (T)(b / 2), a = (T)(a * a))                                                   \
            if (b % 2) y = (T)(y * a);                                                              \
        return y;                                                                                   \
    }

AB_FLOAT(float, f32, f)
AB_FLOAT(double, f64, )
AB_INTEGER(uint8_t, u8)
AB_INTEGER(int8_t, i8)
AB_INTEGER(uint16_t, u16)
AB_INTEGER(int16_t, i16)
AB_INTEGER(uint32_t, u32)
AB_INTEGER(int32_t, i32)
AB_INTEGER(uint64_t, u64)
AB_INTEGER(int64_t, i64)

/* Numbers below 0 wrap; what does not fit is 0, or what the processor makes of it. */
AB_INLINE uint64_t ab_u64_of(double x) {
    if (!(x >= 9223372036854775808.0)) return (uint64_t)(int64_t)x;
    return x < 18446744073709551616.0 ? (uint64_t)x : 0;
}

AB_INLINE int32_t ab_max_bool(int32_t a, int32_t b) { return a | b; }
AB_INLINE int32_t ab_min_bool(int32_t a, int32_t b) { return a & b; }

/* The extremum of floats over lanes begins at an infinity: OpenMP's own begins at a finite number. */
#pragma omp declare reduction(ab_max : float, double : omp_out = omp_in > omp_out ? omp_in : omp_out) \
    initializer(omp_priv = -__builtin_inf())
#pragma omp declare reduction(ab_min : float, double : omp_out = omp_in < omp_out ? omp_in : omp_out) \
    initializer(omp_priv = __builtin_inf())

/* --- f32 mathematics --------------------------------------------------------------------------- */

/* exp(x) = 2^n exp(r), |r| <= log(2)/2; the scale in two steps, so that it can be denormal or inf. */
AB_INLINE float ab_exp_f32(float x) {
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    float n = __builtin_rintf(x * 1.44269504f);
    float r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.38146130e-3f;
    p = p * r + 8.36870984e-3f;
    p = p * r + 4.16683874e-2f;
    p = p * r + 1.66665205e-1f;
    p = p * r + 4.99999935e-1f;
    p = p * (r * r) + r + 1.0f;
    int32_t k = (int32_t)n, half = k >> 1;
    return p * ab_float_of_bits((half + 127) << 23) * ab_float_of_bits((k - half + 127) << 23);
}

/* log(x) = e log(2) + log(m), sqrt(1/2) <= m < sqrt(2). */
AB_INLINE float ab_log_f32(float x) {
    int32_t tiny = x < 1.17549435e-38f;
    int32_t bits = ab_bits_of_float(tiny ? x * 8388608.0f : x) - 0x3F3504F3;
    int32_t exponent = bits >> 23;
    float f = ab_float_of_bits(bits - exponent * 8388608 + 0x3F3504F3) - 1.0f;
    float e = (float)(tiny ? exponent - 23 : exponent);
    float p = -7.63449303e-2f;
    p = p * f + 1.27615756e-1f;
    p = p * f - 1.31601831e-1f;
    p = p * f + 1.42017582e-1f;
    p = p * f - 1.66233573e-1f;
    p = p * f + 2.00012269e-1f;
    p = p * f - 2.50008210e-1f;
    p = p * f + 3.33333317e-1f;
    float s = f * f;
    float low = s * f * p + e * -2.12194440e-4f;
    float y = (low - 0.5f * s + f) + e * 0.693359375f;
    y = x < __builtin_inff() ? y : x;
    y = x > 0.0f ? y : (x == 0.0f ? -__builtin_inff() : __builtin_nanf(""));
    return y;
}

AB_INLINE float ab_tanh_f32(float x) {
    float a = __builtin_fabsf(x), s = x * x;
    float p = -5.70498742e-3f;
    p = p * s + 2.06390877e-2f;
    p = p * s - 5.37397152e-2f;
    p = p * s + 1.33314422e-1f;
    p = p * s - 3.33332819e-1f;
    float near = p * s * x + x;
    float far = 1.0f - 2.0f / (ab_exp_f32(2.0f * a) + 1.0f);
    return a < 0.625f ? near : __builtin_copysignf(far, x);
}

/* An odd polynomial up to 0.9; beyond, 1 - exp(-q(|x|)), where q is the logarithm of erfc. */
AB_INLINE float ab_erf_f32(float x) {
    float a = __builtin_fabsf(x), s = x * x;
    float p = 7.85389668e-5f;
    p = p * s - 8.01020521e-4f;
    p = p * s + 5.18832915e-3f;
    p = p * s - 2.68538128e-2f;
    p = p * s + 1.12835852e-1f;
    p = p * s - 3.76126258e-1f;
    p = p * s + 1.12837917f;
    float b = a > 4.0f ? 4.0f : a;
    float q = 2.16867632e-5f;
    q = q * b - 4.41335301e-4f;
    q = q * b + 4.20455626e-3f;
    q = q * b - 2.52082408e-2f;
    q = q * b + 1.08418551e-1f;
    q = q * b + 6.33219919e-1f;
    q = q * b + 1.12957841f;
    q = q * b - 1.88037051e-4f;
    float far = 1.0f - ab_exp_f32(-q);
    return a < 0.9f ? p * x : __builtin_copysignf(far, x);
}

/* Quadrant and remainder modulo pi/2, in f64. */
AB_INLINE float ab_sin_quadrant(float x, int32_t turn) {
    double n = __builtin_rint((double)x * 0.63661977236758134);
    float r = (float)(((double)x - n * 1.5707963267341256) - n * 6.0771005065061922e-11);
    int32_t quadrant = (int32_t)(n - 4.0 * __builtin_floor(n * 0.25)) + turn;
    float s = r * r;
    float sine = ((-1.95152833e-4f * s + 8.33216076e-3f) * s - 1.66666546e-1f) * s * r + r;
    float cosine = ((2.44331570e-5f * s - 1.38873163e-3f) * s + 4.16666457e-2f) * s * s - 0.5f * s + 1.0f;
    float y = quadrant & 1 ? cosine : sine;
    return quadrant & 2 ? -y : y;
}

/* Two parts of pi/2 do not suffice beyond some 1e6 turns: infinities and nan go this way too. */
AB_INLINE float ab_sin_f32(float x) {
    return __builtin_fabsf(x) < 1e6f ? ab_sin_quadrant(x, 0) : __builtin_sinf(x);
}
AB_INLINE float ab_cos_f32(float x) {
    return __builtin_fabsf(x) < 1e6f ? ab_sin_quadrant(x, 1) : __builtin_cosf(x);
}

#define AB_BY_F64(NAME) \
    AB_INLINE float ab_##NAME##_f32(float x) { return (float)__builtin_##NAME((double)x); }
AB_BY_F64(expm1) AB_BY_F64(log1p) AB_BY_F64(tan) AB_BY_F64(asin) AB_BY_F64(acos) AB_BY_F64(atan)
AB_BY_F64(sinh) AB_BY_F64(cosh)
AB_INLINE float ab_atan2_f32(float y, float x) { return (float)__builtin_atan2((double)y, (double)x); }
AB_INLINE double ab_atan2_f64(double y, double x) { return __builtin_atan2(y, x); }

#define AB_LIBM(NAME) \
    AB_INLINE double ab_##NAME##_f64(double x) { return __builtin_##NAME(x); }
AB_LIBM(exp) AB_LIBM(expm1) AB_LIBM(log) AB_LIBM(log1p) AB_LIBM(sin) AB_LIBM(cos) AB_LIBM(tan)
AB_LIBM(asin) AB_LIBM(acos) AB_LIBM(atan) AB_LIBM(sinh) AB_LIBM(cosh) AB_LIBM(tanh) AB_LIBM(erf)

/* --- random numbers: Philox4x32-10, bit-equal to ir/philox.py ---------------------------------- */

typedef struct ab_words { uint32_t first, second; } ab_words;

AB_INLINE ab_words ab_philox(int64_t seed, int64_t step, int64_t counter, uint32_t stream) {
    uint32_t a = (uint32_t)counter, b = (uint32_t)((uint64_t)counter >> 32);
    uint32_t c = (uint32_t)step, d = stream;
    uint32_t k = (uint32_t)seed, m = (uint32_t)((uint64_t)seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++) {
        uint64_t low = (uint64_t)0xD2511F53u * a, high = (uint64_t)0xCD9E8D57u * c;
        a = (uint32_t)(high >> 32) ^ b ^ k;
        b = (uint32_t)high;
        c = (uint32_t)(low >> 32) ^ d ^ m;
        d = (uint32_t)low;
        k += 0x9E3779B9u;
        m += 0xBB67AE85u;
    }
    return (ab_words){a, b};
}

AB_INLINE float ab_uniform(int64_t seed, int64_t step, int64_t counter, uint32_t stream) {
    return (float)(int32_t)(ab_philox(seed, step, counter, stream).first >> 8) * 0x1p-24f;
}

AB_INLINE float ab_normal(int64_t seed, int64_t step, int64_t counter, uint32_t stream) {
    ab_words w = ab_philox(seed, step, counter, stream);
    double radius = ((double)(w.first >> 8) + 1.0) * 0x1p-24;
    double angle = (double)(w.second >> 8) * 0x1p-24;
    return (float)(__builtin_sqrt(-2.0 * __builtin_log(radius)) *
                   __builtin_cos(2.0 * 3.141592653589793 * angle));
}

/* --- order -------------------------------------------------------------------------------------- */

typedef struct { uint64_t key; int64_t place; } ab_entry;

#define AB_SHORT 32 /* so few are put in order by insertion */
#define AB_FEW 256  /* and so few of many */

/* Unsigned integers in the order of the values: zeros are equal, nan is the largest. */
AB_INLINE uint64_t ab_key_f64(double x) {
    uint64_t bits;
    memcpy(&bits, &x, 8);
    if (x != x) return UINT64_MAX;
    if (x == 0) return UINT64_C(1) << 63;
    return bits >> 63 ? ~bits : bits | UINT64_C(1) << 63;
}
AB_INLINE uint64_t ab_key_f32(float x) { return ab_key_f64((double)x); }
AB_INLINE uint64_t ab_key_f16(uint16_t x) { return ab_key_f32(ab_from_f16(x)); }
AB_INLINE uint64_t ab_key_bf16(uint16_t x) { return ab_key_f32(ab_from_bf16(x)); }
AB_INLINE uint64_t ab_key_i64(int64_t x) { return (uint64_t)x ^ UINT64_C(1) << 63; }
AB_INLINE uint64_t ab_key_i32(int32_t x) { return ab_key_i64(x); }
AB_INLINE uint64_t ab_key_i16(int16_t x) { return ab_key_i64(x); }
AB_INLINE uint64_t ab_key_i8(int8_t x) { return ab_key_i64(x); }
AB_INLINE uint64_t ab_key_u64(uint64_t x) { return x; }
AB_INLINE uint64_t ab_key_u32(uint32_t x) { return x; }
AB_INLINE uint64_t ab_key_u16(uint16_t x) { return x; }
AB_INLINE uint64_t ab_key_u8(uint8_t x) { return x; }
AB_INLINE uint64_t ab_key_bool(uint8_t x) { return x; }

/* The first `count` of n entries, by insertion; equal keys in the order in which they come. */
AB_INLINE void ab_first(const ab_entry *entries, int64_t n, ab_entry *best, int64_t count) {
    int64_t held = 0;
    for (int64_t p = 0; p < n; p++) {
        const ab_entry here = entries[p];
        if (held == count && here.key >= best[count - 1].key) continue;
        int64_t at = held < count ? held++ : count - 1;
        for (; at > 0 && best[at - 1].key > here.key; at--) best[at] = best[at - 1];
        best[at] = here;
    }
}

/* All n entries in order, by merging; they end up in one of the two, which is returned. */
static __attribute__((unused)) ab_entry *ab_merged(ab_entry *entries, ab_entry *work, int64_t n) {
    for (int64_t low = 0; low < n; low += AB_SHORT) {
        const int64_t length = n - low < AB_SHORT ? n - low : AB_SHORT;
        ab_first(entries + low, length, work + low, length);
    }
    ab_entry *from = work, *to = entries;
    for (int64_t width = AB_SHORT; width < n; width *= 2) {
        for (int64_t low = 0; low < n; low += 2 * width) {
            const int64_t middle = low + width < n ? low + width : n;
            const int64_t high = low + 2 * width < n ? low + 2 * width : n;
            int64_t i = low, j = middle;
            for (int64_t k = low; k < high; k++) {
                const int right = i == middle || (j < high && from[j].key < from[i].key);
                to[k] = from[right ? j : i];
                j += right;
                i += !right;
            }
        }
        ab_entry *other = from;
        from = to;
        to = other;
    }
    return from;
}

#define AB_ORDER(T, N)                                                                              \
    static __attribute__((unused)) void ab_order_##N(                                               \
        const T *x, int64_t stride, int64_t n, int64_t *places, int64_t step, int64_t count,        \
        int descending, int64_t *scratch) {                                                         \
        ab_entry *entries = (ab_entry *)scratch, *best = entries + n;                               \
        for (int64_t p = 0; p < n; p++) {                                                           \
            const uint64_t key = ab_key_##N(x[p * stride]);                                         \
            entries[p] = (ab_entry){descending ? ~key : key, p};                                    \
        }                                                                                           \
        const int few = count <= AB_SHORT || (count <= AB_FEW && count * 16 <= n);                  \
        if (!few) best = ab_merged(entries, best, n);                                               \
        else if (count > 0) ab_first(entries, n, best, count);                                      \
        for (int64_t r = 0; r < count; r++) places[r * step] = best[r].place;                       \
    }

AB_ORDER(float, f32)
AB_ORDER(double, f64)
AB_ORDER(uint16_t, f16)
AB_ORDER(uint16_t, bf16)
AB_ORDER(int64_t, i64)
AB_ORDER(int32_t, i32)
AB_ORDER(int16_t, i16)
AB_ORDER(int8_t, i8)
AB_ORDER(uint64_t, u64)
AB_ORDER(uint32_t, u32)
AB_ORDER(uint16_t, u16)
AB_ORDER(uint8_t, u8)
AB_ORDER(uint8_t, bool)
