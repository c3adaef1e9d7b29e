/* Tree attention, shared out among threads; native.h says what it computes, attention.inc how. Trees of several caches are
   one list of tasks: a thread that has done with the rows of one goes on with those of the next. */
#include <string.h>

#include "native.h"

#define ALONE (1 << 18) /* products of numbers that one thread computes before others are awake */

typedef struct {
  const Attention *trees;
  int64_t count;
  Attend *attend;
  char *room;
  int64_t room_bytes; /* of a thread */
} Work;

/* Rows of a task. */
static int64_t rows_of(const Attention *a) {
  int64_t rows = QUERIES / (a->heads / a->kv_heads);
  return rows < a->n ? rows : a->n;
}

/* Tasks of a head of keys. */
static int64_t tasks_of(const Attention *a) { return (a->n + rows_of(a) - 1) / rows_of(a); }

static void some(void *argument, int64_t index, int worker) {
  const Work *w = argument;
  int64_t low = 0, high = w->count; /* the last tree whose first task is not behind this one */
  while (high - low > 1) {
    int64_t middle = (low + high) / 2;
    if (w->trees[middle].first <= index) low = middle;
    else high = middle;
  }
  const Attention *a = w->trees + low;
  int64_t task = index - a->first, first = task % tasks_of(a) * rows_of(a), last = first + rows_of(a);
  w->attend(a, task / tasks_of(a), first, last < a->n ? last : a->n, w->room + worker * w->room_bytes);
}

/* The rows' own keys and values go to their places. */
static void put(const Attention *a) {
  const int64_t size = a->type == 0 ? 4 : 2, bytes = a->e * size;
  for (int64_t r = 0; r < a->n; r++) {
    const int64_t place = a->place[r * a->span + a->position[r] - a->shared];
    for (int64_t h = 0; h < a->kv_heads; h++) {
      const int64_t to = (h * a->own_stride + place * a->e) * size, from = (r * a->new_stride + h * a->e) * size;
      memcpy((char *)a->own_k + to, (const char *)a->new_k + from, bytes);
      memcpy((char *)a->own_v + to, (const char *)a->new_v + from, bytes);
    }
  }
}

/* For `count` trees, each of another cache. Returns the bytes of `room` (aligned to 64) that this needs, and does nothing
   when there are fewer. A head of keys has at most QUERIES query heads. */
int64_t es_attend(Attention *trees, int64_t count, int threads, char *room, int64_t room_bytes) {
  Work w = {.trees = trees, .count = count, .room = room, .attend = portable_attend};
  int64_t products = 0, tasks = 0;
  for (int64_t i = 0; i < count; i++) {
    Attention *a = trees + i;
    const int64_t width = (a->e + 15) / 16 * 16;
    const int64_t bytes = (KEYS * QUERIES * 4 + 64 * QUERIES + (2 * KEYS + 2 * QUERIES + 2 * a->own) * width * 4 + 4096);
    if (bytes / 64 * 64 > w.room_bytes) w.room_bytes = bytes / 64 * 64;
    products += a->n * a->heads * a->e * (a->shared + a->span);
    a->first = tasks;
    tasks += tasks_of(a) * a->kv_heads;
  }
  threads = products < ALONE ? 1 : threads;
#if defined(__x86_64__)
  if (es_level(-1) >= AVX2) w.attend = es_level(-1) >= AVX512 ? avx512_attend : avx2_attend;
#elif defined(HAS_NEON)
  if (es_level(-1) >= NEON) w.attend = neon_attend;
#endif
  if (w.room_bytes * threads > room_bytes) return w.room_bytes * threads;
  for (int64_t i = 0; i < count; i++) put(trees + i);
  run_tasks(some, &w, tasks, threads);
  return w.room_bytes * threads;
}
