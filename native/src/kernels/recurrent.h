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

// Columns [d, d + VECTORS * WIDTH) of a step; WHOLE or else only the first `count` of one vector.
template <int VECTORS, int WHOLE>
static void recur_columns(const float* before, float* memory, int64_t keys, int64_t values, const float* key, const float* query,
                          const float* value, float decay, const float* beta, float* out, int64_t d, int64_t count) {
  if (WHOLE) count = WIDTH;
  Floats add[VECTORS], got[VECTORS];
  DW_UNROLL for (int v = 0; v < VECTORS; v++) add[v] = got[v] = Floats{};
  if (beta)
    for (int64_t i = 0; i < keys; i++) {
      const Floats k = all(key[i]);
      DW_UNROLL for (int v = 0; v < VECTORS; v++) add[v] = fma(some(before + i * values + d + v * WIDTH, count), k, add[v]);
    }
  DW_UNROLL for (int v = 0; v < VECTORS; v++) {
    const Floats given = some(value + d + v * WIDTH, count);
    add[v] = beta ? (given - decay * add[v]) * *beta : given;
  }
  for (int64_t i = 0; i < keys; i++) {
    const Floats k = all(key[i]), q = all(query[i]);
    DW_UNROLL for (int v = 0; v < VECTORS; v++) {
      const int64_t at = i * values + d + v * WIDTH;
      const Floats state = fma(k, add[v], decay * some(before + at, count));
      put(memory + at, state, count);
      got[v] = fma(q, state, got[v]);
    }
  }
  DW_UNROLL for (int v = 0; v < VECTORS; v++) put(out + d + v * WIDTH, got[v], count);
}

// memory [keys][values] = decay * before + key value^T; out = query memory; `before` may be `memory`. With beta the value is
// first replaced by what it lacks of, times beta: what decay * before answers to the key.
static void recur(const float* before, float* memory, int64_t keys, int64_t values, const float* key, const float* query,
                  const float* value, float decay, const float* beta, float* out) {
  constexpr int MOST = REGISTERS / 4;  // vectors of sums, of each kind
  const auto columns = [&](auto vectors, auto whole, int64_t d) {
    recur_columns<decltype(vectors)::value, decltype(whole)::value>(before, memory, keys, values, key, query, value, decay, beta, out, d, values - d);
  };
  int64_t d = 0;
  for (; d + MOST * WIDTH <= values; d += MOST * WIDTH) columns(Fixed<MOST>{}, Fixed<true>{}, d);
  for (; d + WIDTH <= values; d += WIDTH) columns(Fixed<1>{}, Fixed<true>{}, d);
  if (d < values) columns(Fixed<1>{}, Fixed<false>{}, d);
}
