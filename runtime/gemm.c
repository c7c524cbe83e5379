/* The library kernels: C = alpha * op(A) op(B) + beta * C, row-major, over a batch of up to four
 * dimensions, by the BLAS of this process. With beta 0, C is not read.
 *
 *   ints    m n k | lda ldb ldc | transpose A, B | 4 batch extents | 4 strides each of A, B, C
 *   floats  alpha beta
 *   ptrs    A B C
 *
 * Strides are in elements; an operand that is the same for a whole batch dimension has 0 there.
 * A tile is a block of rows or of columns of one product, or several small products: big enough
 * that packing the other operand again costs little, and a function of the shapes alone.
 */
enum { M, N, K, LDA, LDB, LDC, TRANS_A, TRANS_B, EXTENT, STRIDE_A = 12, STRIDE_B = 16,
       STRIDE_C = 20 };
enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

#define PART_FLOPS (16 << 20)
#define MAX_PARTS 16
#define GROUP_FLOPS (2 << 20)

typedef struct cut {
    int64_t batches, group;     /* how many products, and how many of them a tile takes */
    int64_t parts, rows, columns; /* into how many blocks one product is cut, and their size */
} cut;

static int64_t at_least_1(int64_t x) { return x < 1 ? 1 : x; }
static int64_t up(int64_t x, int64_t y) { return (x + y - 1) / y; }

static cut cut_of(const int64_t *p) {
    int64_t batches = p[EXTENT] * p[EXTENT + 1] * p[EXTENT + 2] * p[EXTENT + 3];
    int64_t flops = at_least_1(2 * p[M] * p[N] * p[K]);
    int64_t parts = flops / PART_FLOPS;
    if (parts > MAX_PARTS) parts = MAX_PARTS;
    if (parts < 2) return (cut){batches, at_least_1(GROUP_FLOPS / flops), 1, p[M], p[N]};
    int by_rows = p[M] >= p[N];
    int64_t block = up(up(by_rows ? p[M] : p[N], parts), 16) * 16;
    parts = up(by_rows ? p[M] : p[N], block);
    return (cut){batches, 1, parts, by_rows ? block : p[M], by_rows ? p[N] : block};
}

int64_t ab_gemm_tiles(const int64_t *ints) {
    if (ints[M] == 0 || ints[N] == 0) return 0;
    cut c = cut_of(ints);
    return up(c.batches, c.group) * c.parts;
}

static int64_t offset_of(const int64_t *extents, const int64_t *strides, int64_t batch) {
    int64_t offset = 0;
    for (int d = 3; d >= 0; d--) {
        offset += batch % extents[d] * strides[d];
        batch /= extents[d];
    }
    return offset;
}

#define GEMM(NAME, T, BLAS)                                                                        \
    typedef void (*NAME##_64)(int, int, int, int64_t, int64_t, int64_t, T, const T *, int64_t,     \
                              const T *, int64_t, T, T *, int64_t);                                \
    typedef void (*NAME##_32)(int, int, int, int, int, int, T, const T *, int, const T *, int, T,  \
                              T *, int);                                                           \
                                                                                                   \
    static void NAME##_call(const ab_blas *blas, const int64_t *p, const double *s, const T *a,    \
                            const T *b, T *c, int64_t m, int64_t n) {                              \
        int ta = p[TRANS_A] ? TRANS : NO_TRANS, tb = p[TRANS_B] ? TRANS : NO_TRANS;                \
        int64_t lda = at_least_1(p[LDA]), ldb = at_least_1(p[LDB]), ldc = at_least_1(p[LDC]);      \
        T alpha = (T)s[0], beta = (T)s[1];                                                         \
        if (blas->index_bits == 64)                                                                \
            ((NAME##_64)blas->BLAS)(ROW_MAJOR, ta, tb, m, n, p[K], alpha, a, lda, b, ldb, beta, c, \
                                    ldc);                                                          \
        else                                                                                       \
            ((NAME##_32)blas->BLAS)(ROW_MAJOR, ta, tb, (int)m, (int)n, (int)p[K], alpha, a,        \
                                    (int)lda, b, (int)ldb, beta, c, (int)ldc);                     \
    }                                                                                              \
                                                                                                   \
    static void NAME##_block(const int64_t *p, const double *s, char *const *ptrs, const cut *c,   \
                             int64_t batch, int64_t part, const ab_blas *blas) {                   \
        int by_rows = c->rows < p[M];                                                              \
        int64_t i = by_rows ? part * c->rows : 0, j = by_rows ? 0 : part * c->columns;             \
        int64_t m = p[M] - i < c->rows ? p[M] - i : c->rows;                                       \
        int64_t n = p[N] - j < c->columns ? p[N] - j : c->columns;                                 \
        const T *a = (const T *)ptrs[0] + offset_of(p + EXTENT, p + STRIDE_A, batch) +             \
                     (p[TRANS_A] ? i : i * p[LDA]);                                                \
        const T *b = (const T *)ptrs[1] + offset_of(p + EXTENT, p + STRIDE_B, batch) +             \
                     (p[TRANS_B] ? j * p[LDB] : j);                                                \
        T *out = (T *)ptrs[2] + offset_of(p + EXTENT, p + STRIDE_C, batch) + i * p[LDC] + j;       \
        NAME##_call(blas, p, s, a, b, out, m, n);                                                  \
    }                                                                                              \
                                                                                                   \
    void NAME(const int64_t *ints, const double *floats, char *const *ptrs, int64_t tile_begin,    \
              int64_t tile_end, ab_ctx *ctx) {                                                     \
        cut c = cut_of(ints);                                                                      \
        for (int64_t tile = tile_begin; tile < tile_end; tile++) {                                 \
            int64_t first = tile / c.parts * c.group;                                              \
            int64_t last = first + c.group < c.batches ? first + c.group : c.batches;              \
            for (int64_t batch = first; batch < last; batch++)                                     \
                NAME##_block(ints, floats, ptrs, &c, batch, tile % c.parts, ctx->blas);            \
        }                                                                                          \
    }

GEMM(ab_gemm_f32, float, sgemm)
GEMM(ab_gemm_f64, double, dgemm)
