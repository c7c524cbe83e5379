/* Chains of kernels on one pool of threads.
 *
 * `ab_run_chain` runs the launches of an actor one after another. The calling thread always works
 * on its own tiles; workers of the pool help with the tiles of whichever chain has some left, as
 * long as no more than `cores` threads are busy, callers included. A caller that waits for a peer
 * is not in here, so its core is free for others.
 *
 * Tiles are claimed from a word (generation << 32 | next tile). A caller closes the word before it
 * changes what the job is, so a claim that succeeds has read a job that was whole.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#define JOBS 64
#define CLOSED 0xffffffffu
#define SPIN_NANOSECONDS 30000

typedef struct ab_launch {
    ab_kernel kernel;
    const int64_t *ints;
    const double *floats;
    char *const *ptrs;
    int64_t tiles;
    int64_t scratch;
} ab_launch;

typedef struct scratch {
    char *bytes;
    int64_t size;
} scratch;

typedef struct job {
    _Alignas(64) uint64_t state;
    const ab_launch *launch;
    ab_status *status;
    int64_t index;
    int64_t tiles;
    _Alignas(64) int64_t done;
    int32_t taken;
    scratch scratch;
} job;

typedef struct claim {
    const ab_launch *launch;
    ab_status *status;
    int64_t index, begin, end;
} claim;

static job jobs[JOBS];
static ab_blas blas;
static int32_t cores = 1, workers, active, sleepers;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;

#define LOAD(word) __atomic_load_n(&(word), __ATOMIC_SEQ_CST)
#define STORE(word, value) __atomic_store_n(&(word), value, __ATOMIC_SEQ_CST)
#define ADD(word, value) __atomic_add_fetch(&(word), value, __ATOMIC_SEQ_CST)

static void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static char *at_least(scratch *own, int64_t size) {
    if (own->size < size) {
        free(own->bytes);
        own->size = (size + 63) / 64 * 64;
        own->bytes = aligned_alloc(64, (size_t)own->size);
        if (!own->bytes) abort();
    }
    return own->bytes;
}

static int take_tiles(job *source, claim *out) {
    uint64_t state = LOAD(source->state);
    for (;;) {
        int64_t next = (uint32_t)state;
        int64_t tiles = LOAD(source->tiles);
        if (next >= tiles) return 0; /* CLOSED is beyond every number of tiles */
        int64_t count = (tiles - next) / (4 * cores);
        if (count < 1) count = 1;
        *out = (claim){LOAD(source->launch), LOAD(source->status), LOAD(source->index), next,
                       next + count};
        if (__atomic_compare_exchange_n(&source->state, &state, state + (uint64_t)count, 0,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            return 1;
    }
}

static void run_tiles(const claim *work, scratch *own) {
    const ab_launch *launch = work->launch;
    ab_ctx context = {work->status, at_least(own, launch->scratch), &blas, (int32_t)work->index};
    launch->kernel(launch->ints, launch->floats, launch->ptrs, work->begin, work->end, &context);
}

static int has_tiles(job *source) {
    uint64_t state = LOAD(source->state);
    return (int64_t)(uint32_t)state < LOAD(source->tiles);
}

static job *find_work(void) {
    for (int i = 0; i < JOBS; i++)
        if (has_tiles(&jobs[i])) return &jobs[i];
    return NULL;
}

/* A worker may run only while a core is free for it. */
static int enter(void) {
    int32_t busy = LOAD(active);
    while (busy < LOAD(cores))
        if (__atomic_compare_exchange_n(&active, &busy, busy + 1, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
            return 1;
    return 0;
}

static int help(scratch *own) {
    job *source = find_work();
    if (!source || !enter()) return 0;
    claim work;
    while (LOAD(active) <= LOAD(cores) && take_tiles(source, &work)) {
        run_tiles(&work, own);
        ADD(source->done, work.end - work.begin);
    }
    ADD(active, -1);
    return 1;
}

static void sleep_until_woken(void) {
    pthread_mutex_lock(&mutex);
    ADD(sleepers, 1);
    /* Seen from here, a job is either already visible or its owner will see the sleeper. */
    if (!(find_work() && LOAD(active) < LOAD(cores))) pthread_cond_wait(&wake, &mutex);
    ADD(sleepers, -1);
    pthread_mutex_unlock(&mutex);
}

static void *work_forever(void *unused) {
    (void)unused;
    scratch own = {0};
    int64_t idle_since = nanoseconds();
    for (;;) {
        if (help(&own)) {
            idle_since = nanoseconds();
        } else if (nanoseconds() - idle_since < SPIN_NANOSECONDS) {
            for (int i = 0; i < 16; i++) pause_briefly();
        } else {
            sleep_until_woken();
            idle_since = nanoseconds();
        }
    }
    return NULL;
}

static void call_helpers(int64_t tiles) {
    if (!LOAD(sleepers) || LOAD(active) >= LOAD(cores)) return;
    pthread_mutex_lock(&mutex);
    for (int64_t i = 1; i < tiles && i < cores; i++) pthread_cond_signal(&wake);
    pthread_mutex_unlock(&mutex);
}

static job *take_job(void) {
    for (;;) {
        for (int i = 0; i < JOBS; i++) {
            int32_t vacant = 0;
            if (__atomic_compare_exchange_n(&jobs[i].taken, &vacant, 1, 0, __ATOMIC_SEQ_CST,
                                            __ATOMIC_SEQ_CST))
                return &jobs[i];
        }
        sched_yield();
    }
}

static void close_job(job *own) {
    uint64_t generation = (LOAD(own->state) >> 32) + 1;
    STORE(own->state, generation << 32 | CLOSED);
}

static void share(job *own, const ab_launch *launch, int64_t index, ab_status *status) {
    close_job(own);
    STORE(own->launch, launch);
    STORE(own->status, status);
    STORE(own->index, index);
    STORE(own->tiles, launch->tiles);
    STORE(own->done, 0);
    STORE(own->state, LOAD(own->state) & ~(uint64_t)CLOSED);
    call_helpers(launch->tiles);
}

static void wait_for_helpers(job *own, int64_t tiles) {
    for (int spins = 0; LOAD(own->done) != tiles; spins++) {
        if (spins < 2000) pause_briefly();
        else sched_yield();
    }
}

static void run_shared(job *own, const ab_launch *launch, int64_t index, ab_status *status) {
    share(own, launch, index, status);
    claim work;
    while (take_tiles(own, &work)) {
        run_tiles(&work, &own->scratch);
        ADD(own->done, work.end - work.begin);
    }
    wait_for_helpers(own, launch->tiles);
}

static void run_launch(job *own, const ab_launch *launch, int64_t index, ab_status *status) {
    if (launch->tiles > 1 && LOAD(workers)) {
        run_shared(own, launch, index, status);
    } else if (launch->tiles > 0) {
        claim whole = {launch, status, index, 0, launch->tiles};
        run_tiles(&whole, &own->scratch);
    }
}

/* The number of launches that ran; fewer than `count` after an error or when `*abort_flag`. */
int64_t ab_run_chain(const ab_launch *launches, int64_t count, ab_status *status,
                     const int32_t *abort_flag) {
    job *own = take_job();
    ADD(active, 1);
    int64_t i = 0;
    while (i < count && !LOAD(*abort_flag) && !LOAD(status->code)) {
        run_launch(own, &launches[i], i, status);
        i++;
    }
    close_job(own);
    ADD(active, -1);
    STORE(own->taken, 0);
    return i;
}

/* At most `wanted` threads run tiles from now on; threads of the pool are never taken away. */
int32_t ab_use_cores(int32_t wanted) {
    pthread_mutex_lock(&mutex);
    STORE(cores, wanted < 1 ? 1 : wanted);
    while (workers < cores - 1) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work_forever, NULL)) break;
        pthread_detach(thread);
        ADD(workers, 1);
    }
    pthread_mutex_unlock(&mutex);
    return workers + 1;
}

void ab_use_blas(void *sgemm, void *dgemm, int64_t index_bits) {
    blas = (ab_blas){sgemm, dgemm, index_bits};
}
