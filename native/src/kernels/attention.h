// Attention of one row to a list of slots, in order of position. Included inside a set's namespace.
// A sum's order follows the place in the list, never the slot: a node of a tree has the bits of the chain to it.

// scores of `group` queries to the list, scaled and capped: scores[g * room + t]
template <class Cell>
static void scored(const float* q, int group, const Cell* keys, const int32_t* list, int64_t n, int64_t dim, float scale,
                   float limit, float* scores, int64_t room) {
  int64_t whole = dim / WIDTH * WIDTH;
  for (int64_t t = 0; t < n; t += WIDTH) {
    const Cell* at[WIDTH];
    if (t + WIDTH <= n)
      DW_UNROLL for (int u = 0; u < WIDTH; u++) at[u] = keys + static_cast<int64_t>(list[t + u]) * dim;
    else
      for (int u = 0; u < WIDTH; u++) at[u] = keys + static_cast<int64_t>(list[t + u < n ? t + u : t]) * dim;
    for (int g = 0; g < group; g++) {
      const float* query = q + g * dim;
      Floats found[WIDTH];
      DW_UNROLL for (int u = 0; u < WIDTH; u++) found[u] = Floats{};
      for (int64_t d = 0; d < whole; d += WIDTH) {  // the slots side by side: a sum waits for itself
        Floats x = load(query + d);
        DW_UNROLL for (int u = 0; u < WIDTH; u++) found[u] = fma(x, load(at[u] + d), found[u]);
      }
      if (whole < dim)
        DW_UNROLL for (int u = 0; u < WIDTH; u++) found[u] = fma(tail(query + whole, dim - whole), tail(at[u] + whole, dim - whole), found[u]);
      Floats score = sums(found) * scale;
      if (limit) score = limit * tanh(score / limit);
      store(scores + g * room + t, score);
    }
  }
}

// scores to weights that sum to 1; behind the last one stand others of them, to a whole vector
static void softmax(float* scores, int64_t n) {
  Floats tops = load(scores);
  for (int64_t t = WIDTH; t < n; t += WIDTH) tops = load(scores + t) > tops ? load(scores + t) : tops;
  float top = most(tops);
  Floats total{};
  vectors(n, [&](int64_t t, int64_t c) {
    Floats e = exp(load(scores + t) - top);
    if (c < WIDTH) for (int64_t j = c; j < WIDTH; j++) e[j] = 0;
    store(scores + t, e);
    total += e;
  });
  float inverse = 1 / sum(total);
  vectors(n, [&](int64_t t, int64_t) { store(scores + t, load(scores + t) * inverse); });
}

// VECTORS * WIDTH components of `HEADS` heads at once: out[h * dim + d] = sum_t weight[h][t] * value[t][d]
template <int HEADS, int VECTORS, class Cell>
static void weighted(const float* weights, int64_t room, const Cell* values, const int32_t* list, int64_t n, int64_t dim,
                     float* out) {
  Floats total[HEADS][VECTORS] = {};
  for (int64_t t = 0; t < n; t++) {
    const Cell* value = values + static_cast<int64_t>(list[t]) * dim;
    for (int v = 0; v < VECTORS; v++) {
      Floats x = load(value + v * WIDTH);
      for (int h = 0; h < HEADS; h++) total[h][v] = fma(all(weights[h * room + t]), x, total[h][v]);
    }
  }
  for (int h = 0; h < HEADS; h++)
    for (int v = 0; v < VECTORS; v++) store(out + h * dim + v * WIDTH, total[h][v]);
}

// The same from component d on, as many vectors at once as fit: sums of a few would wait for each other. Where it ends.
template <int HEADS, int MANY, class Cell>
static int64_t strips(const float* weights, int64_t room, const Cell* values, const int32_t* list, int64_t n, int64_t dim,
                      float* out, int64_t d) {
  for (; d + MANY * WIDTH <= dim; d += MANY * WIDTH) weighted<HEADS, MANY>(weights, room, values + d, list, n, dim, out + d);
  if constexpr (MANY > 1) d = strips<HEADS, MANY / 2>(weights, room, values, list, n, dim, out, d);
  return d;
}

template <int HEADS, class Cell>
static void summed(const float* weights, int64_t room, const Cell* values, const int32_t* list, int64_t n, int64_t dim,
                   float* out) {
  int64_t d = strips<HEADS, HEADS == 1 ? 8 : HEADS == 4 ? 2 : 4>(weights, room, values, list, n, dim, out, 0);
  if (int64_t left = dim - d)
    for (int h = 0; h < HEADS; h++) {
      Floats total{};
      for (int64_t t = 0; t < n; t++)
        total = fma(all(weights[h * room + t]), tail(values + static_cast<int64_t>(list[t]) * dim + d, left), total);
      tail(out + h * dim + d, total, left);
    }
}

template <class Cell>
static void attended(const float* q, int group, const Cell* keys, const Cell* values, const int32_t* list, int64_t n,
                     int64_t dim, float scale, float limit, float* scores, float* out) {
  int64_t room = up(n, 16);
  scored(q, group, keys, list, n, dim, scale, limit, scores, room);
  for (int g = 0; g < group; g++) softmax(scores + g * room, n);
  int g = 0;
  for (; g + 4 <= group; g += 4) summed<4>(scores + g * room, room, values, list, n, dim, out + g * dim);
  if (group - g == 3) summed<3>(scores + g * room, room, values, list, n, dim, out + g * dim);
  if (group - g == 2) summed<2>(scores + g * room, room, values, list, n, dim, out + g * dim);
  if (group - g == 1) summed<1>(scores + g * room, room, values, list, n, dim, out + g * dim);
}

static void attend(const float* q, int group, const void* keys, const void* values, bool half, const int32_t* list,
                   int64_t n, int64_t dim, float scale, float limit, float* scores, float* out) {
  if (half)
    attended(q, group, static_cast<const bf16*>(keys), static_cast<const bf16*>(values), list, n, dim, scale, limit, scores, out);
  else
    attended(q, group, static_cast<const float*>(keys), static_cast<const float*>(values), list, n, dim, scale, limit, scores, out);
}
