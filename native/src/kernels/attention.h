// Attention of queries to lists of slots, in order of position. Included inside a set's namespace.
// A sum's order follows the place in the list, never the slot, nor what other queries there are: a node of a tree has the
// bits of the chain to it.

constexpr int64_t WIDENED = 256;  // components of a key that are widened once for several queries

// a query's products with WIDTH keys
template <class Cell> static inline Floats products(const float* q, const Cell* const (&at)[WIDTH], int64_t dim) {
  const int64_t whole = dim / WIDTH * WIDTH;
  Floats found[WIDTH];
  DW_UNROLL for (int u = 0; u < WIDTH; u++) found[u] = Floats{};
  for (int64_t d = 0; d < whole; d += WIDTH) {  // the slots side by side: a sum waits for itself
    Floats x = load(q + d);
    DW_UNROLL for (int u = 0; u < WIDTH; u++) found[u] = fma(x, load(at[u] + d), found[u]);
  }
  if (whole < dim)
    DW_UNROLL for (int u = 0; u < WIDTH; u++) found[u] = fma(tail(q + whole, dim - whole), tail(at[u] + whole, dim - whole), found[u]);
  return sums(found);
}

// scores of the slots [from, to) that the queries see, scaled and capped
template <class Cell>
static void scored(const Query* query, int count, const Cell* keys, int64_t from, int64_t to, int64_t dim, float scale, float limit) {
  const int32_t* list = query->list;
  const bool widen = sizeof(Cell) < 4 && count > 1 && dim % WIDTH == 0 && dim <= WIDENED;
  alignas(64) float wide[WIDTH * WIDENED];
  for (int64_t t = from; t < to; t += WIDTH) {
    const Cell* at[WIDTH];
    const float* copy[WIDTH];
    if (t + WIDTH <= to)
      DW_UNROLL for (int u = 0; u < WIDTH; u++) at[u] = keys + static_cast<int64_t>(list[t + u]) * dim;
    else
      for (int u = 0; u < WIDTH; u++) at[u] = keys + static_cast<int64_t>(list[t + u < to ? t + u : t]) * dim;
    if (widen)
      for (int u = 0; u < WIDTH; u++) {
        for (int64_t d = 0; d < dim; d += WIDTH) store(wide + u * dim + d, load(at[u] + d));
        copy[u] = wide + u * dim;
      }
    for (int i = 0; i < count; i++) {
      Floats score = (widen ? products(query[i].q, copy, dim) : products(query[i].q, at, dim)) * scale;
      if (limit) score = limit * tanh(score / limit);
      store(query[i].scores + t, score);
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

// What slots [from, to) add to VECTORS * WIDTH components of COUNT queries, from d on: out[d] += sum_t weight[t] * value[t][d]
template <int COUNT, int VECTORS, class Cell>
static void weighted(const Query* query, const Cell* values, int64_t from, int64_t to, int64_t dim, int64_t d) {
  Floats total[COUNT][VECTORS] = {};
  if (from)
    for (int i = 0; i < COUNT; i++)
      for (int v = 0; v < VECTORS; v++) total[i][v] = load(query[i].out + d + v * WIDTH);
  for (int64_t t = from; t < to; t++) {
    const Cell* value = values + static_cast<int64_t>(query->list[t]) * dim + d;
    for (int v = 0; v < VECTORS; v++) {
      Floats x = load(value + v * WIDTH);
      for (int i = 0; i < COUNT; i++) total[i][v] = fma(all(query[i].scores[t]), x, total[i][v]);
    }
  }
  for (int i = 0; i < COUNT; i++)
    for (int v = 0; v < VECTORS; v++) store(query[i].out + d + v * WIDTH, total[i][v]);
}

// The same from component d on, as many vectors at once as fit: sums of a few would wait for each other. Where it ends.
template <int COUNT, int MANY, class Cell>
static int64_t strips(const Query* query, const Cell* values, int64_t from, int64_t to, int64_t dim, int64_t d) {
  for (; d + MANY * WIDTH <= dim; d += MANY * WIDTH) weighted<COUNT, MANY>(query, values, from, to, dim, d);
  if constexpr (MANY > 1) d = strips<COUNT, MANY / 2>(query, values, from, to, dim, d);
  return d;
}

template <int COUNT, class Cell>
static void summed(const Query* query, const Cell* values, int64_t from, int64_t to, int64_t dim) {
  int64_t d = strips<COUNT, COUNT == 1 ? 8 : COUNT == 4 ? 2 : 4>(query, values, from, to, dim, 0);
  if (int64_t left = dim - d)
    for (int i = 0; i < COUNT; i++) {
      Floats total = from ? tail(query[i].out + d, left) : Floats{};
      for (int64_t t = from; t < to; t++)
        total = fma(all(query[i].scores[t]), tail(values + static_cast<int64_t>(query->list[t]) * dim + d, left), total);
      tail(query[i].out + d, total, left);
    }
}

template <class Cell>
static void gathered(const Query* query, int count, const Cell* values, int64_t from, int64_t to, int64_t dim) {
  for (; count >= 4; query += 4, count -= 4) summed<4>(query, values, from, to, dim);
  if (count == 3) summed<3>(query, values, from, to, dim);
  if (count == 2) summed<2>(query, values, from, to, dim);
  if (count == 1) summed<1>(query, values, from, to, dim);
}

// f(first, count, from, to): what all queries see together, then what those with the same list see of the rest
template <class F> static inline void spans(const Query* query, int count, int64_t shared, F f) {
  if (shared) f(query, count, 0, shared);
  for (int i = 0, next; i < count; i = next) {
    for (next = i + 1; next < count && query[next].list == query[i].list;) next++;
    if (query[i].n > shared) f(query + i, next - i, shared, query[i].n);
  }
}

template <class Cell>
static void attended(const Query* query, int count, int64_t shared, const Cell* keys, const Cell* values, int64_t dim,
                     float scale, float limit) {
  spans(query, count, shared, [&](const Query* first, int some, int64_t from, int64_t to) {
    scored(first, some, keys, from, to, dim, scale, limit);
  });
  for (int i = 0; i < count; i++) softmax(query[i].scores, query[i].n);
  spans(query, count, shared, [&](const Query* first, int some, int64_t from, int64_t to) {
    gathered(first, some, values, from, to, dim);
  });
}

static void attend(const Query* query, int count, int64_t shared, const void* keys, const void* values, bool half, int64_t dim,
                   float scale, float limit) {
  if (half) attended(query, count, shared, static_cast<const bf16*>(keys), static_cast<const bf16*>(values), dim, scale, limit);
  else attended(query, count, shared, static_cast<const float*>(keys), static_cast<const float*>(values), dim, scale, limit);
}
