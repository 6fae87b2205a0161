// Attention of queries to lists of slots, in order of position. Included inside a set's namespace.
// A sum's order follows the place in the list, never the slot, nor what other queries there are: a node of a tree has the
// bits of the chain to it.

constexpr int64_t WIDENED = 256;  // components of a key that are widened once for several queries
constexpr int MANY = REGISTERS == 32 ? 6 : 2;   // queries that meet keys together
constexpr int FEW = REGISTERS == 32 ? 3 : 2;    // queries for which keys are turned across

// WIDTH whole numbers as floats
static inline Floats load(const int8_t* p) {
#if DW_WIDTH == 16 && defined(__AVX512F__)
  return (Floats)_mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif DW_WIDTH == 8 && defined(__AVX2__)
  return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#elif DW_WIDTH == 4 && defined(__aarch64__)
  uint32_t four;
  std::memcpy(&four, p, 4);
  return (Floats)vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four)))));
#else
  typedef int8_t Bytes __attribute__((vector_size(DW_WIDTH), aligned(1), may_alias));
  typedef int16_t Numbers __attribute__((vector_size(2 * DW_WIDTH)));  // on the way: else GCC takes them one by one
  Numbers numbers = __builtin_convertvector(*reinterpret_cast<const Bytes*>(p), Numbers);
  return __builtin_convertvector(__builtin_convertvector(numbers, Ints), Floats);
#endif
}
static inline Floats tail(const int8_t* p, int64_t n) {
  int8_t v[WIDTH] = {};
  std::memcpy(v, p, n);
  return load(v);
}

// The rows of one head in a plane. Those of whole numbers begin with the scale that these are to be multiplied by.
template <class Cell> struct Rows {
  static constexpr bool SCALED = sizeof(Cell) == 1;
  const Cell* first;
  int64_t stride;  // cells from a row to the next

  Rows(const void* plane, int64_t dim)
      : first(static_cast<const Cell*>(plane) + (SCALED ? SCALE_BYTES : 0)), stride(SCALED ? row_bytes(PLANE_INT8, dim) : dim) {}
  const Cell* at(int64_t slot) const { return first + slot * stride; }
  static float scale(const Cell* row) {
    float scale;
    std::memcpy(&scale, reinterpret_cast<const char*>(row) - SCALE_BYTES, SCALE_BYTES);
    return scale;
  }
};

// Whole numbers of at most 127 behind the scale that makes them nearly x; NaN or infinity in x: a scale that tells it.
static void keep_whole(const float* x, int64_t dim, int8_t* row) {
  uint32_t top = 0;  // as bits: of positive floats the larger has the larger, a NaN the largest
  for (int64_t d = 0; d < dim; d++) {
    uint32_t size;
    std::memcpy(&size, x + d, 4);
    size &= 0x7fffffff;
    top = size > top ? size : top;
  }
  float largest;
  std::memcpy(&largest, &top, 4);
  const bool finite = top < 0x7f800000, usual = finite && largest > 1e-30f;
  const float steps = usual ? 127 / largest : 0, scale = usual || !finite ? largest / 127 : 0;
  std::memcpy(row, &scale, SCALE_BYTES);
  for (int64_t d = 0; d < dim; d++) {
    const float shifted = x[d] * steps + 12582912;  // 1.5 * 2^23: a sum's low bits are the nearest whole number
    int32_t bits;
    std::memcpy(&bits, &shifted, 4);
    row[SCALE_BYTES + d] = static_cast<int8_t>(usual ? bits - 0x4b400000 : 0);
  }
}

static void keep(PlaneType type, const float* x, int64_t dim, void* row) {
  if (type == PLANE_INT8) keep_whole(x, dim, static_cast<int8_t*>(row));
  else if (type == PLANE_BF16)
    vectors(dim, [&](int64_t d, int64_t c) { put(static_cast<bf16*>(row) + d, some(x + d, c), c); });
  else
    std::memcpy(row, x, 4 * dim);
}

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

// WIDTH keys across, for many queries: wide[d] has their components d. A word holds CELLS of these.
template <class Cell> struct Across {
  static constexpr int CELLS = 4 / sizeof(Cell);
  alignas(64) float wide[WIDENED * WIDTH];

  template <int c> static inline Floats cell(Words word) {
    if constexpr (CELLS == 1) return bits(word);
    else if constexpr (CELLS == 2) return bits(c ? word & 0xffff0000u : word << 16);
    else return __builtin_convertvector((Ints)word << (24 - 8 * c) >> 24, Floats);
  }
  template <int c = 0> void put(Words word, int64_t d) {
    store(wide + (d + c) * WIDTH, cell<c>(word));
    if constexpr (c + 1 < CELLS) put<c + 1>(word, d);
  }
  void take(const Cell* const (&at)[WIDTH], int64_t dim) {
    for (int64_t d = 0; d < dim; d += CELLS * WIDTH) {
      Words word[WIDTH];
      DW_UNROLL for (int u = 0; u < WIDTH; u++) word[u] = *reinterpret_cast<const Words*>(at[u] + d);
      transpose(word);
      DW_UNROLL for (int u = 0; u < WIDTH; u++) put(word[u], d + CELLS * u);
    }
  }
  // Products of queries with these keys: the sums of products(), side by side.
  template <int COUNT> void products(const Query* query, int64_t dim, Floats (&scores)[COUNT]) const {
    Floats part[WIDTH / 4][COUNT];
    for (int lane = 0; lane < WIDTH; lane += 4) {
      Floats sum[4][COUNT] = {};
      for (int64_t d = lane; d < dim; d += WIDTH)
        DW_UNROLL for (int l = 0; l < 4; l++) {
          const Floats key = load(wide + (d + l) * WIDTH);
          DW_UNROLL for (int i = 0; i < COUNT; i++) sum[l][i] = fma(all(query[i].q[d + l]), key, sum[l][i]);
        }
      DW_UNROLL for (int i = 0; i < COUNT; i++) part[lane / 4][i] = (sum[0][i] + sum[1][i]) + (sum[2][i] + sum[3][i]);
    }
    for (int n = WIDTH / 4; n > 1; n /= 2)
      for (int j = 0; j < n / 2; j++)
        for (int i = 0; i < COUNT; i++) part[j][i] = part[2 * j][i] + part[2 * j + 1][i];
    for (int i = 0; i < COUNT; i++) scores[i] = part[0][i];
  }
};

// scores of the slots [from, to) that the queries see, scaled and capped
template <class Cell>
static void scored(const Query* query, int count, const Rows<Cell>& keys, int64_t from, int64_t to, int64_t dim, float scale, float limit) {
  const int32_t* list = query->list;
  Across<Cell> across;
  const bool many = count >= FEW && dim % (across.CELLS * WIDTH) == 0 && dim <= WIDENED;
  for (int64_t t = from; t < to; t += WIDTH) {
    const Cell* at[WIDTH];
    Floats scales = all(scale);
    if (t + WIDTH <= to)
      DW_UNROLL for (int u = 0; u < WIDTH; u++) at[u] = keys.at(list[t + u]);
    else
      for (int u = 0; u < WIDTH; u++) at[u] = keys.at(list[t + u < to ? t + u : t]);
    if constexpr (Rows<Cell>::SCALED) {
      float each[WIDTH];
      for (int u = 0; u < WIDTH; u++) each[u] = keys.scale(at[u]);
      scales = load(each) * scale;
    }
    const auto put = [&](int i, Floats score) {
      score *= scales;
      if (limit) score = limit * tanh(score / limit);
      if (query[i].bias) score += load(query[i].bias + t) - query[i].bias[query[i].n - 1];
      store(query[i].scores + t, score);
    };
    if (many) {
      across.take(at, dim);
      portions<MANY>(count, [&](auto n, int64_t first) {
        Floats score[n.value];
        across.template products<n.value>(query + first, dim, score);
        DW_UNROLL for (int j = 0; j < n.value; j++) put(first + j, score[j]);
      });
    } else {
      for (int i = 0; i < count; i++) put(i, products(query[i].q, at, dim));
    }
  }
}

// scores to weights that sum to 1; behind the last one stand others of them, to a whole vector
static void softmax(float* scores, int64_t n, const float* sink) {
  Floats tops = load(scores);
  for (int64_t t = WIDTH; t < n; t += WIDTH) tops = load(scores + t) > tops ? load(scores + t) : tops;
  float top = most(tops);
  if (sink && *sink > top) top = *sink;
  Floats total{};
  vectors(n, [&](int64_t t, int64_t c) {
    Floats e = exp(load(scores + t) - top);
    if (c < WIDTH) for (int64_t j = c; j < WIDTH; j++) e[j] = 0;
    store(scores + t, e);
    total += e;
  });
  float inverse = 1 / (sum(total) + (sink ? exp(all(*sink - top))[0] : 0));
  vectors(n, [&](int64_t t, int64_t) { store(scores + t, load(scores + t) * inverse); });
}

// What the numbers of a value are multiplied by: the weight of slot number t, and the row's scale where it has one
template <class Cell> static inline Floats share(const Query& query, int64_t t, const Cell* value) {
  if constexpr (Rows<Cell>::SCALED) return all(query.scores[t] * Rows<Cell>::scale(value));
  else return all(query.scores[t]);
}

// What slots [from, to) add to VECTORS * WIDTH components of COUNT queries, from d on: out[d] += sum_t weight[t] * value[t][d]
template <int COUNT, int VECTORS, class Cell>
static void weighted(const Query* query, const Rows<Cell>& values, int64_t from, int64_t to, int64_t d) {
  Floats total[COUNT][VECTORS] = {};
  if (from)
    for (int i = 0; i < COUNT; i++)
      for (int v = 0; v < VECTORS; v++) total[i][v] = load(query[i].out + d + v * WIDTH);
  for (int64_t t = from; t < to; t++) {
    const Cell* value = values.at(query->list[t]);
    Floats weight[COUNT];
    for (int i = 0; i < COUNT; i++) weight[i] = share(query[i], t, value);
    for (int v = 0; v < VECTORS; v++) {
      Floats x = load(value + d + v * WIDTH);
      for (int i = 0; i < COUNT; i++) total[i][v] = fma(weight[i], x, total[i][v]);
    }
  }
  for (int i = 0; i < COUNT; i++)
    for (int v = 0; v < VECTORS; v++) store(query[i].out + d + v * WIDTH, total[i][v]);
}

// The same from component d on, as many vectors at once as fit: sums of a few would wait for each other. Where it ends.
template <int COUNT, int MANY, class Cell>
static int64_t strips(const Query* query, const Rows<Cell>& values, int64_t from, int64_t to, int64_t dim, int64_t d) {
  for (; d + MANY * WIDTH <= dim; d += MANY * WIDTH) weighted<COUNT, MANY>(query, values, from, to, d);
  if constexpr (MANY > 1) d = strips<COUNT, MANY / 2>(query, values, from, to, dim, d);
  return d;
}

template <int COUNT, class Cell>
static void summed(const Query* query, const Rows<Cell>& values, int64_t from, int64_t to, int64_t dim) {
  int64_t d = strips<COUNT, COUNT == 1 ? 8 : 4 * COUNT <= REGISTERS * 3 / 4 ? 4 : 2>(query, values, from, to, dim, 0);
  if (int64_t left = dim - d)
    for (int i = 0; i < COUNT; i++) {
      Floats total = from ? tail(query[i].out + d, left) : Floats{};
      for (int64_t t = from; t < to; t++) {
        const Cell* value = values.at(query->list[t]);
        total = fma(share(query[i], t, value), tail(value + d, left), total);
      }
      tail(query[i].out + d, total, left);
    }
}

template <class Cell>
static void gathered(const Query* query, int count, const Rows<Cell>& values, int64_t from, int64_t to, int64_t dim) {
  portions<REGISTERS == 32 ? 6 : 4>(count, [&](auto n, int64_t first) { summed<n.value>(query + first, values, from, to, dim); });
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
static void attended(const Query* query, int count, int64_t shared, const void* key_rows, const void* value_rows, int64_t dim,
                     int64_t value_dim, float scale, float limit) {
  const Rows<Cell> keys(key_rows, dim), values(value_rows, value_dim);
  spans(query, count, shared, [&](const Query* first, int some, int64_t from, int64_t to) {
    scored(first, some, keys, from, to, dim, scale, limit);
  });
  for (int i = 0; i < count; i++) softmax(query[i].scores, query[i].n, query[i].sink);
  spans(query, count, shared, [&](const Query* first, int some, int64_t from, int64_t to) {
    gathered(first, some, values, from, to, value_dim);
  });
}

static void attend(const Query* query, int count, int64_t shared, const void* keys, const void* values, PlaneType type,
                   int64_t dim, int64_t value_dim, float scale, float limit) {
  const auto f = type == PLANE_INT8 ? attended<int8_t> : type == PLANE_BF16 ? attended<bf16> : attended<float>;
  f(query, count, shared, keys, values, dim, value_dim, scale, limit);
}
