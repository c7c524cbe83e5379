/* What every kernel is and may call. This text goes before the kernels of each translation unit.
 *
 * A kernel runs tiles [tile_begin, tile_end) of its grid. Tiles are independent, and their number
 * depends on shapes only: whoever runs them, in whatever order, the bits are the same.
 *   ints    extents, strides, origins, the step, the seed
 *   floats  scalars
 *   ptrs    registers and scratch, offsets already added
 */
#include <stddef.h>
#include <stdint.h>

typedef struct ab_status {
    int32_t code;   /* 0: fine; 1: an index was out of range */
    int32_t launch; /* which launch of the chain */
    int64_t value;  /* the index */
    int64_t bound;  /* it has to be in [0, bound) */
} ab_status;

/* The BLAS of this process, one thread per call; index_bits is the width of its integers. */
typedef struct ab_blas {
    void *sgemm;
    void *dgemm;
    int64_t index_bits;
} ab_blas;

typedef struct ab_ctx {
    ab_status *status;
    char *scratch; /* as many bytes as the launch asked for, of this thread alone */
    const ab_blas *blas;
    int32_t launch;
} ab_ctx;

typedef void (*ab_kernel)(const int64_t *ints, const double *floats, char *const *ptrs,
                          int64_t tile_begin, int64_t tile_end, ab_ctx *ctx);

/* The first error of a chain is kept; the chain ends after the launch it happened in. */
static inline void ab_index_error(ab_ctx *ctx, int64_t value, int64_t bound) {
    int32_t fine = 0;
    if (__atomic_compare_exchange_n(&ctx->status->code, &fine, 1, 0, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED)) {
        ctx->status->launch = ctx->launch;
        ctx->status->value = value;
        ctx->status->bound = bound;
    }
}
