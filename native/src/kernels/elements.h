// Norms, activations, rotary positions: row by row. Included inside a set's namespace.
// What is left behind whole vectors is copied into one of zeros, so that an element's bits do not depend on where it is.

static inline Floats tail(const float* p, int64_t n) {
  Floats v{};
  std::memcpy(&v, p, 4 * n);
  return v;
}
static inline Floats tail(const bf16* p, int64_t n) {
  bf16 v[WIDTH] = {};
  std::memcpy(v, p, 2 * n);
  return load(v);
}
static inline void tail(float* p, Floats v, int64_t n) { std::memcpy(p, &v, 4 * n); }

// f(i, count): for whole vectors, then for what is left
template <class F> static inline void vectors(int64_t n, F f) {
  int64_t i = 0;
  for (; i + WIDTH <= n; i += WIDTH) f(i, WIDTH);
  if (i < n) f(i, n - i);
}
template <class P> static inline Floats some(const P* p, int64_t count) { return count == WIDTH ? load(p) : tail(p, count); }
static inline void put(float* p, Floats v, int64_t count) {
  if (count == WIDTH) store(p, v); else tail(p, v, count);
}

static inline void put(bf16* p, Floats v, int64_t count) {
  const Words digits = (Words)shortened(v) >> 16;
#if DW_WIDTH == 16 && defined(__AVX512F__)  // GCC narrows in halves
  const Shorts narrow = (Shorts)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)digits);
#else
  const Shorts narrow = __builtin_convertvector(digits, Shorts);
#endif
  if (count == WIDTH) *reinterpret_cast<Shorts*>(p) = narrow; else std::memcpy(p, &narrow, 2 * count);
}

static void norm(bool layer, const float* x, const float* weight, const float* bias, int64_t n, float eps, float* out) {
  float mean = 0;
  if (layer) {
    Floats total{};
    vectors(n, [&](int64_t i, int64_t c) { total += some(x + i, c); });
    mean = sum(total) / n;
  }
  Floats squares{};
  vectors(n, [&](int64_t i, int64_t c) {
    Floats v = some(x + i, c) - mean;
    if (c < WIDTH) for (int64_t j = c; j < WIDTH; j++) v[j] = 0;
    squares = fma(v, v, squares);
  });
  float factor = 1 / std::sqrt(sum(squares) / n + eps);
  vectors(n, [&](int64_t i, int64_t c) {
    Floats v = (some(x + i, c) - mean) * factor;
    if (weight) v *= some(weight + i, c);
    put(out + i, bias ? v + some(bias + i, c) : v, c);
  });
}

// xIELU (arXiv 2411.13010) of its numbers: slopes right and left of zero, of both, and the least distance from zero
static inline Floats xielu(Floats x, const float* numbers) {
  const Floats least = all(numbers[3]), m = x < least ? x : least;
  const Floats series = m * m * (0.5f + m * (0.16666667f + m * (0.041666668f + m * 0.0083333333f)));  // of exp(m) - 1 - m
  const Floats left = (m > -0.125f ? series : exp(m) - 1.f - m) + (m - x);
  return numbers[2] * x + (x > 0.f ? numbers[0] * x * x : numbers[1] * left);
}

static void activate(int activation, const float* numbers, const float* gate, const float* up, int64_t n, float* out) {
  vectors(n, [&](int64_t i, int64_t c) {
    Floats x = some(gate + i, c), v;
    switch (activation) {
      case SILU: v = x / (1.f + exp(-x)); break;
      case GELU: v = 0.5f * x * (1.f + erf(x * 0.70710678f)); break;
      case GELU_TANH: v = 0.5f * x * (1.f + tanh(0.79788456f * fma(x * x * x, all(0.044715f), x))); break;
      case STEEP_SILU: v = x / (1.f + exp(-1.702f * x)); break;
      case XIELU: v = xielu(x, numbers); break;
      case RELU_SQUARED: v = x < 0.f ? Floats{} : x * x; break;
      default: v = x < 0.f ? Floats{} : x;
    }
    put(out + i, up ? v * some(up + i, c) : v, c);
  });
}

static void rotate(float* x, const float* cos, const float* sin, int64_t half) {
  vectors(half, [&](int64_t i, int64_t n) {
    Floats a = some(x + i, n), b = some(x + half + i, n), c = some(cos + i, n), s = some(sin + i, n);
    put(x + i, fma(a, c, -(b * s)), n);
    put(x + half + i, fma(b, c, a * s), n);
  });
}

static void add(float* x, const float* y, float factor, int64_t n) {
  if (factor == 1) vectors(n, [&](int64_t i, int64_t c) { put(x + i, some(x + i, c) + some(y + i, c), c); });
  else vectors(n, [&](int64_t i, int64_t c) { put(x + i, fma(all(factor), some(y + i, c), some(x + i, c)), c); });
}

static void damp(float* x, const float* gate, int64_t n) {
  vectors(n, [&](int64_t i, int64_t c) { put(x + i, some(x + i, c) / (1.f + exp(-some(gate + i, c))), c); });
}

// Of x [n] the place of the largest, the first among equals, and log sum e^x: NaN where a number is NaN.
static void top(const float* x, int64_t n, int64_t* best, float* log_sum) {
  constexpr int64_t BLOCK = 1024;  // summed up by themselves: a sum of all would lose digits
  const float least = -std::numeric_limits<float>::infinity();
  const auto part = [&](int64_t i, int64_t c) {
    Floats v = some(x + i, c);
    if (c < WIDTH) for (int64_t j = c; j < WIDTH; j++) v[j] = least;
    return v;
  };
  float largest = least;
  int64_t from = 0;
  for (int64_t first = 0; first < n; first += BLOCK) {
    Floats tops = all(least);
    vectors(n - first < BLOCK ? n - first : BLOCK, [&](int64_t i, int64_t c) { tops = larger(part(first + i, c), tops); });
    const float its = most(tops);
    if (its > largest) largest = its, from = first;
  }
  *best = from;
  while (*best + 1 < n && x[*best] != largest) ++*best;
  double total = 0;
  for (int64_t first = 0; first < n; first += BLOCK) {
    Floats sums{};
    vectors(n - first < BLOCK ? n - first : BLOCK, [&](int64_t i, int64_t c) { sums += exp(part(first + i, c) - largest); });
    total += sum(sums);
  }
  *log_sum = static_cast<float>(largest + std::log(total));
}

static void tops(const float* x, int64_t n, int64_t block, float* out) {
  for (int64_t first = 0; first < n; first += block) {
    const int64_t count = n - first < block ? n - first : block, whole = count - count % WIDTH;
    Floats largest = all(-std::numeric_limits<float>::infinity());
    for (int64_t i = 0; i < whole; i += WIDTH) largest = larger(load(x + first + i), largest);
    float one = most(largest);
    for (int64_t i = whole; i < count; i++)
      if (x[first + i] > one) one = x[first + i];
    *out++ = one;
  }
}

// the sum of w [n] in more digits than the numbers have
static double whole_sum(const float* w, int64_t n) {
  typedef float Half __attribute__((vector_size(2 * DW_WIDTH), aligned(4), may_alias));
  typedef double Doubles __attribute__((vector_size(4 * DW_WIDTH)));
  constexpr int64_t LANES = WIDTH / 2;
  Doubles sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * LANES <= n; i += 4 * LANES)
    DW_UNROLL for (int j = 0; j < 4; j++) sums[j] += __builtin_convertvector(*reinterpret_cast<const Half*>(w + i + j * LANES), Doubles);
  const Doubles lanes = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  double total = 0;
  for (int j = 0; j < LANES; j++) total += lanes[j];
  for (; i < n; i++) total += w[i];
  return total;
}

static void exps(const float* x, int64_t n, float largest, float scale, float* out) {
  vectors(n, [&](int64_t i, int64_t c) {
    const Floats v = (some(x + i, c) - largest) * scale;
    put(out + i, v < -87.f ? Floats{} : exp(v), c);  // impossible tokens stay so
  });
}

static void softmax(const float* x, int64_t n, float scale, float* out) {
  constexpr int64_t BLOCK = 1024;  // read again while they are near
  Floats tops = all(-std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i + WIDTH <= n; i += WIDTH) tops = larger(load(x + i), tops);
  float largest = most(tops);
  for (int64_t i = n / WIDTH * WIDTH; i < n; i++) largest = x[i] > largest ? x[i] : largest;
  double total = 0;
  for (int64_t first = 0; first < n; first += BLOCK) {
    const int64_t count = n - first < BLOCK ? n - first : BLOCK;
    exps(x + first, count, largest, scale, out + first);
    total += whole_sum(out + first, count);
  }
  const float inverse = static_cast<float>(1 / total);
  vectors(n, [&](int64_t i, int64_t c) { put(out + i, some(out + i, c) * inverse, c); });
}

static double excess(const float* p, const float* q, float factor, int64_t n, float* out) {
  constexpr int64_t BLOCK = 1024;
  double total = 0;
  for (int64_t first = 0; first < n; first += BLOCK) {
    const int64_t count = n - first < BLOCK ? n - first : BLOCK;
    vectors(count, [&](int64_t i, int64_t c) {
      const Floats v = factor * some(p + first + i, c) - (q ? some(q + first + i, c) : Floats{});
      put(out + first + i, v < 0.f ? Floats{} : v, c);
    });
    total += whole_sum(out + first, count);
  }
  return total;
}

static void cap(float* x, float limit, int64_t n) {
  vectors(n, [&](int64_t i, int64_t c) { put(x + i, limit * tanh(some(x + i, c) / limit), c); });
}
