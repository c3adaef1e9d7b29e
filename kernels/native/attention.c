/* Tree attention, shared out among threads; native.h says what it computes, attention.inc how. */
#include "native.h"

#define ALONE (1 << 18) /* products of numbers that one thread computes before others are awake */

typedef struct {
  Attention a;
  Attend *attend;
  int64_t rows, tasks; /* rows of a task; tasks of a head of keys */
  char *room;
  int64_t room_bytes; /* of a thread */
} Work;

static void some(void *argument, int64_t index, int worker) {
  const Work *w = argument;
  int64_t first = index % w->tasks * w->rows, last = first + w->rows;
  w->attend(&w->a, index / w->tasks, first, last < w->a.n ? last : w->a.n, w->room + worker * w->room_bytes);
}

/* Returns the bytes of `room` (aligned to 64) that this needs, and does nothing when there are fewer. A head of keys has at
   most QUERIES query heads. */
int64_t es_attend(const Attention *a, int threads, char *room, int64_t room_bytes) {
  const int64_t group = a->heads / a->kv_heads, width = (a->e + 15) / 16 * 16;
  const int64_t products = a->n * a->heads * a->e * (a->shared + a->span);
  threads = products < ALONE ? 1 : threads;
  Work w = {.a = *a, .rows = QUERIES / group, .room = room, .attend = portable_attend};
#if defined(__x86_64__)
  if (es_level(-1) >= AVX2) w.attend = es_level(-1) >= AVX512 ? avx512_attend : avx2_attend;
#endif
  if (w.rows > a->n) w.rows = a->n;
  w.tasks = (a->n + w.rows - 1) / w.rows;
  w.room_bytes = (KEYS * QUERIES * 4 + 64 * QUERIES + (2 * KEYS + 2 * QUERIES + 2 * a->own + 32) * width * 4 + 4096) / 64 * 64;
  if (w.room_bytes * threads > room_bytes) return w.room_bytes * threads;
  run_tasks(some, &w, w.tasks * a->kv_heads, threads);
  return w.room_bytes * threads;
}
