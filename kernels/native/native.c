/* What Python calls (kernels/compiled.py): the fastest way that this CPU knows. */
#include "native.h"

#define ALONE 16384 /* numbers of x that one thread quantises before others are awake */
#define TASK_BYTES (256 * 1024) /* of weights a task, about: many enough to share out, long enough to be worth it */

enum { PORTABLE, AVX2, AVX512, AMX };

static int level = -1;

/* The instructions in use: 0 portable, 1 AVX2 and FMA, 2 AVX-512 VNNI, 3 AMX. Lowered to `most`, if that is not negative. */
int es_level(int most) {
  if (level < 0 || most >= 0) {
    level = PORTABLE;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) level = AVX2;
    if (level == AVX2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
      level = AVX512;
#endif
#ifdef HAS_AMX
    if (level == AVX512 && amx_allowed()) level = AMX;
#endif
    if (most >= 0 && level > most) level = most;
  }
  return level;
}

/* The functions of an instruction set. */
typedef struct {
  Rows *rows;
  Dense *dense;
  Activations *quantise;
  Finish *finish;
  void (*arrange)(int format, int64_t supers, int16_t *x, int32_t *offset); /* of each row of x, or NULL */
} Kernels;

static Kernels kernels(int64_t n) {
  (void)n;
#if defined(__x86_64__)
  Rows *rows = avx512_rows;
#ifdef HAS_AMX
  if (es_level(-1) == AMX) rows = amx_rows;
#endif
  if (es_level(-1) >= AVX512)
    return n > FEW ? (Kernels){rows, avx512_dense, avx512_quantise, avx512_finish, NULL}
                   : (Kernels){avx512_few, avx512_dense, avx512_quantise, avx512_finish, avx512_arrange};
  if (level == AVX2) return (Kernels){avx2_rows, avx2_dense, avx2_quantise, avx2_finish, NULL};
#endif
  return (Kernels){portable_rows, portable_dense, portable_quantise, portable_finish, NULL};
}

/* One call's work, and where its intermediate results lie: parts of the caller's room. */
typedef struct {
  Matmul m; /* of terms * n rows of x */
  Kernels kernels;
  const void *x; /* [n][columns], bf16 or fp32 */
  int x_bf16, terms;
  int64_t n, rows; /* rows of weights a task */
  int16_t *numbers;
  int32_t *offset;
  float *step, *sum;
  float *rest; /* [threads][columns] */
  char *sums;  /* [threads][ROOM] */
  float *tile; /* [threads][terms * n][rows] */
  void *out;   /* [n][weights' rows], bf16 or fp32 */
  int out_bf16;
} Linear;

/* Quantises a row of x; its second term is what the first one misses. */
static void prepare_row(void *argument, int64_t r, int worker) {
  const Linear *l = argument;
  const int64_t columns = l->m.columns, groups = l->m.supers * GROUPS;
  float *rest = l->rest + worker * columns;
  if (l->x_bf16)
    for (int64_t j = 0; j < columns; j++) {
      uint32_t bits = (uint32_t)((const uint16_t *)l->x)[r * columns + j] << 16;
      memcpy(rest + j, &bits, 4);
    }
  else
    memcpy(rest, (const float *)l->x + r * columns, (size_t)columns * 4);
  for (int term = 0; term < l->terms; term++) {
    int64_t at = (term * l->n + r) * groups;
    l->kernels.quantise(l->m.format, rest, columns, l->m.supers, l->numbers + at * GROUP, l->step + at, l->sum + at);
    if (l->kernels.arrange)
      l->kernels.arrange(l->m.format, l->m.supers, l->numbers + at * GROUP, l->offset + at * (SUPER / 4 / GROUPS));
  }
}

#ifdef HAS_AMX
static void pack_block(void *argument, int64_t block, int worker) {
  const Linear *l = argument;
  (void)worker;
  amx_pack(&l->m, block, l->m.packed);
}
#endif

static void some_rows(void *argument, int64_t index, int worker) {
  const Linear *l = argument;
  int64_t first = index * l->rows, last = first + l->rows < l->m.rows ? first + l->rows : l->m.rows;
  float *tile = l->tile + worker * l->m.n * l->rows;
  Matmul m = l->m;
  m.weights += first * m.row_bytes, m.scale = m.scale ? m.scale + first : NULL;
  m.out = tile, m.out_stride = l->rows;
  l->kernels.rows(&m, 0, last - first, l->sums + (size_t)worker * ROOM);
  char *out = (char *)l->out + first * (l->out_bf16 ? 2 : 4);
  l->kernels.finish(tile, l->terms, l->n, l->rows, last - first, out, l->m.rows, l->out_bf16);
}

static void some_dense(void *argument, int64_t index, int worker) {
  const Linear *l = argument;
  (void)worker;
  int64_t first = index * l->rows, last = first + l->rows < l->m.rows ? first + l->rows : l->m.rows;
  l->kernels.dense(&l->m, first, last);
}

static int64_t task_rows(int64_t rows, int64_t row_bytes, int threads) { /* at least four tasks a thread */
  int64_t bytes = TASK_BYTES / (row_bytes ? row_bytes : 1), even = rows / (4 * threads);
  int64_t some = (bytes < even ? bytes : even) / TILE_ROWS * TILE_ROWS;
  return some < TILE_ROWS ? TILE_ROWS : some;
}

static void *part(char **room, int64_t bytes) { /* the next part of the room */
  void *at = *room;
  *room += (bytes + 63) / 64 * 64;
  return at;
}

/* Lays out the room, from address `room` on; returns its end. */
static char *lay_out(Linear *l, char *room, int threads) {
  const int64_t groups = l->m.n * l->m.supers * GROUPS;
  l->sums = part(&room, (int64_t)ROOM * threads);
  l->numbers = part(&room, groups * GROUP * 2);
  l->step = part(&room, groups * 4);
  l->sum = part(&room, groups * 4);
  if (l->kernels.arrange) l->offset = part(&room, groups * (SUPER / 4 / GROUPS) * 4);
  l->rest = part(&room, l->m.columns * 4 * threads);
  l->tile = part(&room, l->m.n * l->rows * 4 * threads);
#ifdef HAS_AMX
  if (es_level(-1) == AMX && l->m.n > FEW) l->m.packed = part(&room, amx_room(l->m.n, l->m.supers));
#endif
  return room;
}

/* out [n][rows] = x [n][columns] @ weights^T; x and out are bf16 or fp32. With two terms fp32 keeps its precision.
   Returns the bytes of `room` that this needs, and does nothing when `room` (aligned to 64) has fewer. */
int64_t es_linear(int format, const uint8_t *weights, int64_t row_bytes, int64_t rows, int64_t columns,
                  const float *scale, int64_t supers, const void *x, int x_bf16, int64_t n, int terms, void *out,
                  int out_bf16, int threads, char *room, int64_t room_bytes) {
  Linear l = {.m = {.format = format, .weights = weights, .row_bytes = row_bytes, .rows = rows, .columns = columns,
                    .scale = scale, .n = terms * n, .supers = supers},
              .x = x, .x_bf16 = x_bf16, .terms = terms, .n = n, .out = out, .out_bf16 = out_bf16};
  l.rows = task_rows(rows, row_bytes, threads);
  l.kernels = kernels(l.m.n);
  int64_t needed = lay_out(&l, room, threads) - room;
  if (needed > room_bytes) return needed;
  l.m.x = l.numbers, l.m.offset = l.offset, l.m.step = l.step, l.m.sum = l.sum;
  int helpers = n * columns < ALONE ? 1 : threads;
  run_tasks(prepare_row, &l, n, helpers);
#ifdef HAS_AMX
  if (l.m.packed) run_tasks(pack_block, &l, (l.m.n + X_ROWS - 1) / X_ROWS, helpers);
#endif
  run_tasks(some_rows, &l, (rows + l.rows - 1) / l.rows, threads);
  return needed;
}

/* out [rows][out_stride], bf16 or fp32: the weights as numbers. */
void es_dense(int format, const uint8_t *weights, int64_t row_bytes, int64_t rows, int64_t columns, const float *scale,
              int64_t supers, void *out, int64_t out_stride, int bf16, int threads) {
  Linear l = {.m = {.format = format, .weights = weights, .row_bytes = row_bytes, .rows = rows, .columns = columns,
                    .scale = scale, .supers = supers, .out = out, .out_stride = out_stride, .bf16 = bf16}};
  l.kernels = kernels(FEW + 1);
  l.rows = task_rows(rows, row_bytes, threads);
  run_tasks(some_dense, &l, (rows + l.rows - 1) / l.rows, threads);
}

/* Changes with the meaning of any of these functions. */
int es_version(void) { return 6; }
