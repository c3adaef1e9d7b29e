/* avx512_prompt.c's products on AMX: of 32 columns the even ones' are summed, and the odd ones', and then both sums. */
#include "native.h"

#ifdef HAS_AMX
TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c,amx-tile,amx-bf16")

#define TILE 1024 /* bytes */

static void multiply(const uint8_t *x, int64_t n, const uint8_t *w, int64_t steps, int first, float *out, int64_t stride) {
  const int both = n > 16;
  WRITTEN;
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, out, 4 * stride);
    _tile_loadd(1, out + 16, 4 * stride);
    if (both) _tile_loadd(2, out + 16 * stride, 4 * stride);
    if (both) _tile_loadd(3, out + 16 * stride + 16, 4 * stride);
  }
  for (int64_t s = 0; s < steps; s++, x += TILE, w += TILE) {
    _tile_loadd(4, x, 64);
    _tile_loadd(6, w, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + PROMPT_STEPS * TILE, 64);
    _tile_dpbf16ps(1, 4, 7);
    if (!both) continue;
    _tile_loadd(5, x + PROMPT_STEPS * TILE, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, out, 4 * stride);
  _tile_stored(1, out + 16, 4 * stride);
  if (both) _tile_stored(2, out + 16 * stride, 4 * stride);
  if (both) _tile_stored(3, out + 16 * stride + 16, 4 * stride);
  WRITTEN;
}

void amx_prompt(const Matmul *m, int64_t first, int64_t last, void *room) {
  Tiles shape = {.palette = 1};
  for (int t = 0; t < 8; t++) shape.rows[t] = 16, shape.colsb[t] = 64;
  WRITTEN;
  _tile_loadconfig(&shape);
  prompt(m, first, last, room, multiply);
  _tile_release();
}
END_TARGET
#endif
