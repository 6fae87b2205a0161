// Products of rows with packed matrices. Included inside a set's namespace.
// Every element is one chain of sums in the order of k; blocks of rows and panels only decide how many chains go at once.

constexpr int VECTORS = PANEL / WIDTH;
constexpr int64_t TALL = 128, DEEP = 128;  // rows and steps of a block that stays in the caches
constexpr int64_t STEP = 4 * PANEL;        // bytes of a panel that go together
constexpr int64_t AHEAD = 1024;            // bytes of weights asked for before they are needed

#ifdef __clang__
#define DW_UNROLL _Pragma("clang loop unroll(full)")
#else
#define DW_UNROLL _Pragma("GCC unroll 16")
#endif

template <int N> struct Fixed { static constexpr int value = N; };

// f(Fixed<rows>), rows <= MOST
template <int MOST, class F> static inline void fixed(int64_t rows, F f) {
  if (rows == MOST) f(Fixed<MOST>{});
  else if constexpr (MOST > 1) fixed<MOST - 1>(rows, f);
}

// f(Fixed<R>, Fixed<P>, row, panel) for blocks of R rows and P panels that cover rows [0, rows), panels [from, to): at most
// CHAINS vectors of sums; the fewer rows, the more panels at once.
template <int CHAINS, class F> static inline void blocks(int64_t rows, int64_t from, int64_t to, F f) {
  constexpr int ROWS = CHAINS / VECTORS > 12 ? 12 : CHAINS / VECTORS;
  int64_t parts = (rows + ROWS - 1) / ROWS, panel = from;
  if (parts == 1)
    fixed<ROWS>(rows, [&](auto r) {
      constexpr int R = decltype(r)::value, FIT = (CHAINS - 2) / (R * VECTORS), P = FIT > 4 ? 4 : FIT > 1 ? FIT : 1;
      for (; panel + P <= to; panel += P) f(r, Fixed<P>{}, 0, panel);
    });
  for (; panel < to; panel++)
    for (int64_t part = 0; part < parts; part++) {
      int64_t row = rows * part / parts;
      fixed<ROWS>(rows * (part + 1) / parts - row, [&](auto r) { f(r, Fixed<1>{}, row, panel); });
    }
}

// Have it computed here and not later: the compiler's own order needs more registers than there are.
#if defined(__AVX512F__) && DW_WIDTH == 16
#define DW_NOW(vector) asm volatile("" : "+v"(vector))
#elif (defined(__AVX__) && DW_WIDTH == 8) || (defined(__SSE2__) && DW_WIDTH == 4)
#define DW_NOW(vector) asm volatile("" : "+x"(vector))
#elif defined(__aarch64__)
#define DW_NOW(vector) asm volatile("" : "+w"(vector))
#else
#define DW_NOW(vector)
#endif

template <class Kind, int R, int P, int h>
static inline void halves(typename Kind::Sum (&sum)[R][P * VECTORS], const typename Kind::X* x, int64_t ldx, const uint8_t* w, int p) {
  typename Kind::Sum part[VECTORS];
  DW_UNROLL for (int v = 0; v < VECTORS; v++) part[v] = Kind::template part<h>(w + v * 4 * WIDTH);
  DW_UNROLL for (int r = 0; r < R; r++) {
    auto every = Kind::every(x[r * ldx + h]);
    DW_UNROLL for (int v = 0; v < VECTORS; v++) {
      auto s = Kind::gain(sum[r][p * VECTORS + v], part[v], every);
      DW_NOW(s);
      sum[r][p * VECTORS + v] = s;
    }
  }
  if constexpr (h + 1 < Kind::PARTS) {
    asm volatile("" ::: "memory");  // not both parts at once: registers are short
    halves<Kind, R, P, h + 1>(sum, x, ldx, w, p);
  }
}

// The chains of R rows and P panels, over `steps` steps of k; panels lie `panel` bytes apart, rows of x `ldx` numbers.
template <class Kind, int R, int P>
static inline void chains(typename Kind::Sum (&sum)[R][P * VECTORS], const typename Kind::X* x, int64_t ldx, const uint8_t* w,
                          int64_t panel, int64_t steps, int64_t ahead) {
  for (int64_t j = 0; j < steps; j++)
    DW_UNROLL for (int p = 0; p < P; p++) {
      const uint8_t* at = w + p * panel + j * STEP;
      __builtin_prefetch(at + ahead);
      halves<Kind, R, P, 0>(sum, x + j * Kind::PARTS, ldx, at, p);
    }
}

// What a block needs: rows of x and of out, weights of a panel; steps [first, first + count) of all `steps`.
template <class Kind> struct Task {
  const Matrix& m;
  const typename Kind::X* x;
  const float* factor;
  float* out;
  int64_t ldx, ldo, steps, ahead, first, count;
};

// Sums that `out` keeps between parts of k; whole sums are scaled by the output and by the row in the end.
template <class Kind, int R, int P> static __attribute__((noinline)) void block(const Task<Kind>& t, int64_t row, int64_t panel) {
  float* out = t.out + row * t.ldo + panel * PANEL;
  typename Kind::Sum sum[R][P * VECTORS];
  DW_UNROLL for (int i = 0; i < R; i++)
    DW_UNROLL for (int v = 0; v < P * VECTORS; v++) {
      Floats kept = t.first ? load(out + i * t.ldo + v * WIDTH) : Floats{};
      sum[i][v] = reinterpret_cast<typename Kind::Sum&>(kept);
    }
  chains<Kind, R, P>(sum, t.x + row * t.ldx + t.first * Kind::PARTS, t.ldx, t.m.data + (panel * t.steps + t.first) * STEP,
                     t.steps * STEP, t.count, t.ahead);
  DW_UNROLL for (int i = 0; i < R; i++)
    DW_UNROLL for (int v = 0; v < P * VECTORS; v++) {
      const int64_t n = panel * PANEL + v * WIDTH;
      Floats found = reinterpret_cast<Floats&>(sum[i][v]);
      if (t.first + t.count == t.steps) {
        if (t.factor) found = __builtin_convertvector(sum[i][v], Floats) * load(t.m.scale + n) * t.factor[row + i];
        if (t.m.bias) found += load(t.m.bias + n);
      }
      store(out + i * t.ldo + v * WIDTH, found);
    }
}

template <class Kind>
static void products(const Matrix& m, int64_t rows, const typename Kind::X* x, const float* factor, float* out, int64_t ldo,
                     int64_t from, int64_t to) {
  const int64_t steps = m.kp / Kind::INPUTS;
  const bool few = rows * VECTORS <= Kind::CHAINS;
  const int64_t deep = few ? steps : DEEP;
  Task<Kind> task{m, x, factor, out, steps * Kind::PARTS, ldo, steps, few ? AHEAD : steps * STEP, 0, 0};
  for (int64_t top = 0; top < rows; top += TALL)
    for (task.first = 0; task.first < steps; task.first += deep) {
      task.count = steps - task.first < deep ? steps - task.first : deep;
      blocks<Kind::CHAINS>(rows - top < TALL ? rows - top : TALL, from, to, [&](auto r, auto p, int64_t row, int64_t panel) {
        block<Kind, decltype(r)::value, decltype(p)::value>(task, top + row, panel);
      });
    }
}

// An INT8 operand: the factor of each row, then the rows of numbers.
static inline int32_t* numbers(const void* operand, int64_t rows) {
  return reinterpret_cast<int32_t*>(const_cast<char*>(static_cast<const char*>(operand)) + up(4 * rows, 64));
}

static size_t operand_bytes(const Matrix& m, int64_t rows) {
  if (m.type == INT8) return up(4 * rows, 64) + up(4 * Int8::PARTS * (m.kp / 4) * rows, 64);
  return up(4 * m.kp * rows, 64);
}

// Whole numbers of at most 127 that times the returned factor are nearly x; NaN or infinity in x: a factor that tells it.
static float quantised(const float* x, int64_t n, int8_t* code) {
  Ints most{};  // as bits: of positive floats the larger has the larger, a NaN the largest
  vectors(n, [&](int64_t i, int64_t c) {
    Floats v = some(x + i, c);
    Ints size = reinterpret_cast<Ints&>(v) & 0x7fffffff;
    most = size > most ? size : most;
  });
  int32_t top = most[0];
  for (int i = 1; i < WIDTH; i++) top = most[i] > top ? most[i] : top;
  float largest;
  std::memcpy(&largest, &top, 4);
  bool usual = largest > 1e-30f && top < 0x7f800000;
  float steps = usual ? 127 / largest : 0;
  const float magic = 12582912;  // 1.5 * 2^23: a sum's low bits are the whole number nearest, to even
  vectors(n, [&](int64_t i, int64_t c) {
    Floats v = usual ? fma(some(x + i, c), all(steps), all(magic)) : all(magic);
    Ints whole = reinterpret_cast<Ints&>(v) - 0x4b400000;
    for (int64_t j = 0; j < c; j++) code[i + j] = static_cast<int8_t>(whole[j]);
  });
  return usual || top >= 0x7f800000 ? largest / 127 : 0;
}

static void convert(const Matrix& m, const float* x, void* operand, int64_t row, int64_t rows) {
  if (m.type == INT8) {
    int32_t* to = numbers(operand, rows) + row * (m.kp / 4) * Int8::PARTS;
    int8_t* whole = reinterpret_cast<int8_t*>(to) + (Int8::PARTS - 1) * m.kp;  // at the end of its place: put() overtakes nothing
    static_cast<float*>(operand)[row] = quantised(x, m.k, whole);
    std::memset(whole + m.k, 0, m.kp - m.k);
    for (int64_t i = 0; i < m.kp / 4; i++) {
      int8_t four[4];
      std::memcpy(four, whole + 4 * i, 4);
      Int8::put(four, to + i * Int8::PARTS);
    }
    return;
  }
  float* to = static_cast<float*>(operand) + row * m.kp;
  if (m.type == F32) std::memcpy(to, x, 4 * m.k);
  else
    for (int64_t i = 0; i < m.kp; i++) to[i] = i < m.k ? widened(rounded(x[i])) : 0;
}

static void multiply(const Matrix& m, int64_t rows, const void* operand, float* out, int64_t ldo, int64_t from, int64_t to) {
  const float* x = static_cast<const float*>(operand);
  if (m.type == F32) products<Float32>(m, rows, x, nullptr, out, ldo, from, to);
  else if (m.type == BF16) products<Bfloat16>(m, rows, x, nullptr, out, ldo, from, to);
  else products<Int8>(m, rows, numbers(operand, rows), x, out, ldo, from, to);
}
