// Steps of recurrent layers: one token, one head. Included inside a set's namespace.

// out[c] = sum_j weight[j * stride + c] * input[j][c] + bias[c], then silu; from the oldest input on
static void convolve(const float* const* input, int kernel, const float* weight, int64_t stride, const float* bias, int64_t n, bool silu,
                     float* out) {
  vectors(n, [&](int64_t i, int64_t c) {
    Floats total = bias ? some(bias + i, c) : Floats{};
    for (int j = 0; j < kernel; j++) total = fma(some(weight + j * stride + i, c), some(input[j] + i, c), total);
    put(out + i, silu ? total / (1.f + exp(-total)) : total, c);
  });
}

// Columns [d, d + VECTORS * WIDTH) of a step; `count`: how many columns there are of the last vector.
template <int VECTORS>
static void recur_columns(float* memory, int64_t keys, int64_t values, const float* key, const float* query, const float* value, float decay,
                          const float* beta, float* out, int64_t d, int64_t count) {
  Floats add[VECTORS], got[VECTORS];
  DW_UNROLL for (int v = 0; v < VECTORS; v++) add[v] = got[v] = Floats{};
  if (beta)
    for (int64_t i = 0; i < keys; i++) {
      const Floats k = all(key[i]);
      DW_UNROLL for (int v = 0; v < VECTORS; v++) add[v] = fma(some(memory + i * values + d + v * WIDTH, count), k, add[v]);
    }
  DW_UNROLL for (int v = 0; v < VECTORS; v++) {
    const Floats given = some(value + d + v * WIDTH, count);
    add[v] = beta ? (given - decay * add[v]) * *beta : given;
  }
  for (int64_t i = 0; i < keys; i++) {
    const Floats k = all(key[i]), q = all(query[i]);
    DW_UNROLL for (int v = 0; v < VECTORS; v++) {
      float* place = memory + i * values + d + v * WIDTH;
      const Floats state = fma(k, add[v], decay * some(place, count));
      put(place, state, count);
      got[v] = fma(q, state, got[v]);
    }
  }
  DW_UNROLL for (int v = 0; v < VECTORS; v++) put(out + d + v * WIDTH, got[v], count);
}

// memory [keys][values] = decay * memory + key value^T; out = query memory. With beta the value is first replaced by
// what it lacks of, times beta: what decay * memory answers to the key.
static void recur(float* memory, int64_t keys, int64_t values, const float* key, const float* query, const float* value, float decay,
                  const float* beta, float* out) {
  int64_t d = 0;
  for (; d + 4 * WIDTH <= values; d += 4 * WIDTH) recur_columns<4>(memory, keys, values, key, query, value, decay, beta, out, d, WIDTH);
  for (; d + WIDTH <= values; d += WIDTH) recur_columns<1>(memory, keys, values, key, query, value, decay, beta, out, d, WIDTH);
  if (d < values) recur_columns<1>(memory, keys, values, key, query, value, decay, beta, out, d, values - d);
}
