/* Which functions multiply weights of a format: by what this CPU has, and by what was fastest when it was tried on this machine
   (kernels/trials.py). */
#pragma once

#include "floats.h"

/* How weights are multiplied. With `pack` x is arranged once a call. */
typedef struct {
  Rows *rows;
  Packed *packed;
  Pack *pack;
} Way;

/* The functions for weights of one format. */
typedef struct {
  Way way;
  int prompt; /* `way` is a prompt's by bf16 or low-bit weights, of which x is packed as it is, not quantised */
  Activations *quantise;
  Arrange *arrange; /* of each row of x, or NULL */
} Kernels;

/* For n rows of x, all terms; `any_order`, `tried`: see es_linear. */
Kernels kernels_for(int format, int64_t n, int any_order, int x_type, int tried);

/* The functions that do not multiply. */
Dense *best_dense(void);
Finish *best_finish(void);
