/* What Python calls (kernels/compiled.py). */
#include "choice.h"

#define ALONE 16384 /* numbers of x that one thread quantises before others are awake */
#define TASK_BYTES (256 * 1024) /* of weights a task, about: many enough to share out, long enough to be worth it */

/* One matrix of a call. */
typedef struct {
  Matmul m;     /* of terms * n rows of x */
  int terms;
  int64_t rows; /* of weights a task */
  int64_t before; /* tasks of the matrices before it */
  char *out; /* [n][out_stride] */
  int64_t out_stride;
} Part;

/* One call's work, and where its intermediate results lie: parts of the caller's room. */
typedef struct {
  Part parts[MOST_PARTS];
  int count, encodings, first[FORMATS + 2]; /* the first matrix of each encoding: for each x is prepared once */
  Kernels kernels[FORMATS + 2]; /* by format */
  const void *x; /* [n][columns] */
  int x_type, out_type, terms; /* types: floats.h's */
  int64_t n, columns, rows, tasks; /* rows: of weights a task, at most */
  float *rest; /* [threads][columns] */
  char *sums;  /* [threads][room] */
  int64_t room;
  int64_t tall; /* terms * n, or more */
  float *tile;  /* [threads][tall][rows] */
} Linear;

/* A row of x in fp32 for plain formats, or quantised for another encoding; its second term is what the first one misses. */
static void prepare_row(void *argument, int64_t index, int worker) {
  const Linear *l = argument;
  const Matmul *m = &l->parts[l->first[index / l->n]].m;
  const Kernels *k = &l->kernels[m->format];
  const int64_t r = index % l->n, columns = l->columns, groups = m->supers * GROUPS;
  if (m->packed && (is_plain(m->format) || k->prompt)) return;
  if (is_plain(m->format)) {
    const int64_t block = wide_block(l->n, columns);
    float *to = m->wide + r * block;
    for (int64_t c = 0; c < columns; c += block, to += l->n * block) {
      const int64_t some = columns - c < block ? columns - c : block;
      load(es_level(-1), l->x_type, l->x, r * columns + c, some, to);
      for (int64_t j = some; j % PLACES; j++) to[j] = 0;
    }
    return;
  }
  float *rest = l->rest + worker * columns;
  load(es_level(-1), l->x_type, l->x, r * columns, columns, rest);
  for (int term = 0; term < l->terms; term++) {
    const int64_t at = (term * l->n + r) * groups;
    k->quantise(m->format, rest, columns, m->supers, m->x + at * GROUP, m->step + at, m->sum + at);
    if (k->arrange)
      k->arrange(m->format, m->supers, m->x + at * GROUP, m->offset + at * (SUPER / 4 / GROUPS), m->step + at, m->sum + at);
  }
}

static void pack_block(void *argument, int64_t index, int worker) {
  const Linear *l = argument;
  (void)worker;
  const int64_t blocks = (l->terms * l->n + X_ROWS - 1) / X_ROWS;
  const Matmul *m = &l->parts[l->first[index / blocks]].m;
  if (m->packed) l->kernels[m->format].way.pack(m, l->x, index % blocks, m->packed);
}

static void some_rows(void *argument, int64_t index, int worker) {
  const Linear *l = argument;
  const Part *p = l->parts;
  while (p + 1 < l->parts + l->count && index >= p[1].before) p++;
  int64_t first = (index - p->before) * p->rows, last = first + p->rows < p->m.rows ? first + p->rows : p->m.rows;
  float *tile = l->tile + worker * l->tall * l->rows;
  Matmul m = p->m;
  m.weights += first * m.row_bytes, m.scale = m.scale ? m.scale + first : NULL;
  m.out = tile, m.out_stride = p->rows;
  l->kernels[m.format].way.rows(&m, 0, last - first, l->sums + worker * l->room);
  char *out = p->out + first * (l->out_type == F32 ? 4 : 2);
  best_finish()(tile, p->terms, l->n, p->rows, last - first, out, p->out_stride, l->out_type);
}

static int64_t task_rows(int64_t rows, int64_t most, int threads) { /* at least four tasks a thread */
  int64_t even = rows / (4 * threads), some = (most < even ? most : even) / TILE_ROWS * TILE_ROWS;
  return some < TILE_ROWS ? TILE_ROWS : some;
}

static void *part(char **room, int64_t bytes) { /* the next part of the room */
  void *at = *room;
  *room += (bytes + 63) / 64 * 64;
  return at;
}

/* Lays out the room, from address `room` on; returns its end. */
static char *lay_out(Linear *l, char *room, int threads) {
  l->sums = part(&room, l->room * threads);
  l->rest = part(&room, l->columns * 4 * threads);
  l->tile = part(&room, l->tall * l->rows * 4 * threads);
  for (int e = 0; e < l->encodings; e++) {
    Matmul *m = &l->parts[l->first[e]].m;
    const int64_t groups = m->n * m->supers * GROUPS;
    const Kernels *k = &l->kernels[m->format];
    if (!is_plain(m->format) && !k->prompt) {
      m->x = part(&room, groups * GROUP * 2);
      m->step = part(&room, groups * 4);
      m->sum = part(&room, groups * 4);
      if (m->n <= AVX512_FEW) m->offset = part(&room, groups * (SUPER / 4 / GROUPS) * 4);
    } else if (!k->way.pack) {
      m->wide = part(&room, wide_numbers(m->n, l->columns) * 4);
    }
    if (k->way.pack) m->packed = part(&room, k->way.packed(m));
    for (Part *p = l->parts; p < l->parts + l->count; p++)
      if (p->m.format == m->format)
        p->m.x = m->x, p->m.step = m->step, p->m.sum = m->sum, p->m.offset = m->offset, p->m.wide = m->wide,
        p->m.packed = m->packed;
  }
  return room;
}

/* outs[i] [n][out_stride] = x [n][columns] @ matrices[i]^T, for up to MOST_PARTS matrices; types of x and outs: floats.h's.
   `any_order`: sums may be in a prompt's. `tried`: in place of what es_choose said, if not 0. With two terms fp32 keeps its
   precision beside low-bit weights. Returns the bytes of `room` that this needs, and does nothing when `room` (aligned to 64)
   has fewer. */
int64_t es_linear(const Matrix *matrices, int count, int64_t columns, const void *x, int x_type, int64_t n, int any_order,
                  int tried, int terms, void *const *outs, int out_type, int threads, char *room, int64_t room_bytes) {
  Linear l = {.count = count, .x = x, .x_type = x_type, .out_type = out_type, .terms = terms, .n = n, .tall = terms * n,
              .columns = columns};
  int64_t all = 0;
  for (int i = 0; i < count; i++) all += matrices[i].rows;
  for (int i = 0; i < count; i++) {
    const Matrix *a = matrices + i;
    const int of_part = is_plain((int)a->format) ? 1 : terms;
    Kernels *k = &l.kernels[a->format];
    if (!k->way.rows) *k = kernels_for((int)a->format, of_part * n, any_order, x_type, tried);
    int64_t rows = task_rows(all, TASK_BYTES / (a->row_bytes ? a->row_bytes : 1), threads);
    int64_t its_room = ROOM;
#ifdef HAS_AMX
    if (a->format == HALF && k->way.pack) {
      rows = task_rows(all, AMX_HALF_ROWS, threads);
      its_room = amx_half_room(n, rows);
    }
#endif
#ifdef HAS_BF16
    if (k->prompt) {
      rows = (task_rows(all, PROMPT_ROWS, threads) + 31) / 32 * 32;
      its_room = prompt_room();
      l.tall = prompt_rows(n);
    }
#endif
    l.room = l.room < its_room ? its_room : l.room;
    l.parts[i] = (Part){.m = {.format = (int)a->format, .weights = a->weights, .row_bytes = a->row_bytes, .rows = a->rows,
                              .columns = columns, .scale = a->scale, .n = of_part * n, .supers = a->supers,
                              .exact = x_type == F16 && a->format == HALF},
                        .terms = of_part, .rows = rows, .before = l.tasks, .out = outs[i], .out_stride = a->out_stride};
    l.tasks += (a->rows + rows - 1) / rows;
    l.rows = rows > l.rows ? rows : l.rows;
    int e = 0;
    while (e < l.encodings && l.parts[l.first[e]].m.format != a->format) e++;
    if (e == l.encodings) l.first[l.encodings++] = i;
  }
  int64_t needed = lay_out(&l, room, threads) - room;
  if (needed > room_bytes) return needed;
  int helpers = n * columns < ALONE ? 1 : threads;
  run_tasks(prepare_row, &l, l.encodings * n, helpers);
  int packs = 0;
  for (int e = 0; e < l.encodings; e++) packs |= l.parts[l.first[e]].m.packed != NULL;
  if (packs) run_tasks(pack_block, &l, l.encodings * ((terms * n + X_ROWS - 1) / X_ROWS), helpers);
  run_tasks(some_rows, &l, l.tasks, threads);
  return needed;
}

/* Rows of a matrix, as numbers. */
typedef struct {
  Matmul m;
  Dense *dense;
  int64_t rows; /* a task */
} Numbers;

static void some_dense(void *argument, int64_t index, int worker) {
  const Numbers *d = argument;
  (void)worker;
  int64_t first = index * d->rows, last = first + d->rows < d->m.rows ? first + d->rows : d->m.rows;
  d->dense(&d->m, first, last);
}

/* out [rows][out_stride], bf16 or fp32: the weights as numbers. */
void es_dense(const Matrix *a, int64_t columns, void *out, int bf16, int threads) {
  Numbers d = {.m = {.format = (int)a->format, .weights = a->weights, .row_bytes = a->row_bytes, .rows = a->rows,
                     .columns = columns, .scale = a->scale, .supers = a->supers, .out = out, .out_stride = a->out_stride,
                     .bf16 = bf16},
               .dense = best_dense(),
               .rows = task_rows(a->rows, TASK_BYTES / (a->row_bytes ? a->row_bytes : 1), threads)};
  run_tasks(some_dense, &d, (a->rows + d.rows - 1) / d.rows, threads);
}

/* Changes with the meaning of any of these functions, and when another of them may be the fastest (kernels/trials.py). */
int es_version(void) { return 31; }
