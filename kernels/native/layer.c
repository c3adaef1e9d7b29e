/* Decoder layers whose matrices are all in memory: what Python would call function by function, so with the same bits. In
   between Python would take a fifth of a 1b model's time at 4 bits. */
#include "floats.h"

/* Matrices that the same rows are multiplied with: their blocks of rows, matrix by matrix. */
typedef struct {
  const Matrix *blocks;
  int64_t count, columns;
} Product;

enum { X, Q, K, V, ATTENDED, GATE, UP, PLACES_OF_ROWS }; /* intermediate results, [n][columns] each */
enum { Q_BIAS, K_BIAS, V_BIAS, O_BIAS, GATE_BIAS, UP_BIAS, DOWN_BIAS, BIASES };

/* As Python describes it (kernels/layer.py): all fields of 64 bits. NULL: the layer has none. */
typedef struct {
  Product qkv, o, gate_up, down;
  const void *input_norm, *q_norm, *k_norm, *after_norm, *bias[BIASES];
  int64_t d, heads, kv_heads, e, inner; /* inner: the gate's rows */
  int64_t interleaved, window;          /* of positions; 0 = all */
  double eps;
} Layer;

/* What all layers of a pass share. */
typedef struct {
  int64_t type, n, threads; /* type: floats.h's, of all but the matrices */
  const void *cos, *sin;    /* [n][e / 2] */
  Attention *trees;         /* [count]; what differs from layer to layer is filled in here */
  int64_t count;
  const int64_t *before;          /* [count] rows of the trees before each */
  const int64_t *starts, *steps;  /* [4][count]: addresses of k, v, own_k and own_v in the first layer; bytes to the next */
} Pass;

static int64_t times(const Pass *p, const Product *by, const void *x, char *const *outs, char *room, int64_t bytes) {
  void *starts[MOST_PARTS];
  for (int64_t i = 0, row = 0; i < by->count; i++) {
    starts[i] = *outs + row * type_size(p->type);
    row += by->blocks[i].rows;
    if (row == by->blocks[i].out_stride) row = 0, outs++; /* the matrix's last block */
  }
  return es_linear(by->blocks, (int)by->count, by->columns, x, (int)p->type, p->n, 0, 0, p->type == F32 ? 2 : 1, starts,
                   (int)p->type, (int)p->threads, room, bytes);
}

static int64_t attend(const Pass *p, const Layer *l, int64_t index, char *const *at, char *room, int64_t bytes) {
  const int64_t size = type_size(p->type), of_q = l->heads * l->e, of_k = l->kv_heads * l->e;
  for (int64_t i = 0; i < p->count; i++) {
    Attention *a = p->trees + i;
    const int64_t q = p->before[i] * of_q * size, k = p->before[i] * of_k * size;
    int64_t address[4];
    for (int which = 0; which < 4; which++)
      address[which] = p->starts[which * p->count + i] + index * p->steps[which * p->count + i];
    a->heads = l->heads, a->q_stride = of_q, a->new_stride = of_k, a->window = l->window;
    a->q = at[Q] + q, a->out = at[ATTENDED] + q, a->new_k = at[K] + k, a->new_v = at[V] + k;
    a->k = (const void *)address[0], a->v = (const void *)address[1];
    a->own_k = (void *)address[2], a->own_v = (void *)address[3];
  }
  return es_attend(p->trees, p->count, (int)p->threads, room, bytes);
}

/* out [n][d] = layer `index` of hidden [n][d], which stays. Returns the bytes of `room` (aligned to 64) that this needs, and
   when there are fewer, out is nothing yet. */
static int64_t layer(const Layer *l, const Pass *p, int64_t index, const void *hidden, char *out, char *room, int64_t room_bytes) {
  const int64_t n = p->n, of_q = l->heads * l->e, of_k = l->kv_heads * l->e;
  const int64_t columns[PLACES_OF_ROWS] = {l->d, of_q, of_k, of_k, of_q, l->inner, l->inner};
  const int type = (int)p->type, threads = (int)p->threads;
  const float eps = (float)l->eps;
  char *at[PLACES_OF_ROWS], *begin = room;
  for (int i = 0; i < PLACES_OF_ROWS; i++) at[i] = room, room += (n * columns[i] * type_size(type) + 63) / 64 * 64;
  const int64_t used = room - begin, bytes = room_bytes - used;
  int64_t most = used, needed;
#define BIAS(which, to, of) \
  if (l->bias[which]) es_add(type, l->bias[which], 0, to, n, of, threads)
#define TAKES(call) \
  if ((needed = (call)) > bytes) return used + needed; \
  most = used + needed > most ? used + needed : most

  if (bytes < 0) return used;
  es_norm(type, hidden, NULL, l->input_norm, eps, at[X], n, l->d, threads);
  TAKES(times(p, &l->qkv, at[X], at + Q, room, bytes));
  BIAS(Q_BIAS, at[Q], of_q);
  BIAS(K_BIAS, at[K], of_k);
  BIAS(V_BIAS, at[V], of_k);
  if (l->q_norm) es_norm(type, at[Q], NULL, l->q_norm, eps, at[Q], n * l->heads, l->e, threads);
  if (l->k_norm) es_norm(type, at[K], NULL, l->k_norm, eps, at[K], n * l->kv_heads, l->e, threads);
  es_rotate(type, (int)l->interleaved, at[Q], of_q, l->heads, at[K], of_k, l->kv_heads, p->cos, p->sin, n, l->e / 2, threads);
  TAKES(attend(p, l, index, at, room, bytes));
  TAKES(times(p, &l->o, at[ATTENDED], &out, room, bytes));
  BIAS(O_BIAS, out, l->d);
  es_norm(type, hidden, out, l->after_norm, eps, at[X], n, l->d, threads); /* out is hidden + out then */
  TAKES(times(p, &l->gate_up, at[X], at + GATE, room, bytes));
  BIAS(GATE_BIAS, at[GATE], l->inner);
  BIAS(UP_BIAS, at[UP], l->inner);
  es_swiglu(type, at[GATE], l->inner, at[UP], l->inner, at[GATE], n, l->inner, threads);
  TAKES(times(p, &l->down, at[GATE], at + X, room, bytes));
  BIAS(DOWN_BIAS, at[X], l->d);
  es_add(type, at[X], l->d, out, n, l->d, threads);
  return most;
}

/* out [n][d] = `count` layers, the first of which is layer `index`, one after the other of hidden [n][d], which stays; spare
   [n][d] is needed where there are several. Returns as `layer` does. */
int64_t es_layers(const Layer *const *layers, int64_t count, const Pass *p, int64_t index, const void *hidden, char *out,
                  char *spare, char *room, int64_t room_bytes) {
  int64_t most = 0;
  for (int64_t i = 0; i < count; i++) {
    char *to = (count - i) % 2 ? out : spare; /* the last one's is out */
    const int64_t needed = layer(layers[i], p, index + i, hidden, to, room, room_bytes);
    if (needed > room_bytes) return needed;
    most = needed > most ? needed : most;
    hidden = to;
  }
  return most;
}
