// Products of rows with packed matrices. Included inside a set's namespace.
// Every element is one chain of sums in the order of k; blocks of rows and panels only decide how many chains go at once.

constexpr int64_t TALL = 128;    // rows that go through the weights together, and stay in the caches
constexpr int64_t AHEAD = 4096;  // bytes of weights asked for before they are needed

template <int N> struct Fixed { static constexpr int value = N; };

// f(Fixed<rows>), rows <= MOST
template <int MOST, class F> static inline void fixed(int64_t rows, F f) {
  if (rows == MOST) f(Fixed<MOST>{});
  else if constexpr (MOST > 1) fixed<MOST - 1>(rows, f);
}

// f(Fixed<R>, Fixed<P>, row, panel) for blocks of R rows and P panels that cover rows [0, rows), panels [from, to): at most
// CHAINS vectors of sums; the fewer rows, the more panels at once.
template <int CHAINS, class F> static inline void blocks(int64_t rows, int64_t from, int64_t to, F f) {
  constexpr int ROWS = VECTORS > 1 ? CHAINS / VECTORS : CHAINS / 2 - 2;  // with one vector of outputs two panels, too
  const int64_t parts = (rows + ROWS - 1) / ROWS;
  fixed<ROWS>((rows + parts - 1) / parts, [&](auto most) {
    constexpr int MOST = decltype(most)::value, FIT = (CHAINS - 2) / (MOST * VECTORS), P = FIT > 3 && MOST == 1 ? 4 : FIT > 1 ? 2 : 1;
    const auto cover = [&](auto p, int64_t panel) {
      for (int64_t part = 0; part < parts; part++) {
        const int64_t row = rows * part / parts;
        if (rows * (part + 1) / parts - row == MOST) f(most, p, row, panel);
        else if constexpr (MOST > 1) f(Fixed<MOST - 1>{}, p, row, panel);
      }
    };
    int64_t panel = from;
    for (; panel + P <= to; panel += P) cover(Fixed<P>{}, panel);
    for (; panel < to; panel++) cover(Fixed<1>{}, panel);
  });
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
static inline void step(typename Kind::Sum (&sum)[R][P * VECTORS], const typename Kind::X* x, int64_t ldx, const uint8_t* w, int p) {
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
    step<Kind, R, P, h + 1>(sum, x, ldx, w, p);
  }
}

// The chains of R rows and P panels, over `steps` steps of k; panels lie `panel` bytes apart and go on for `left` bytes, rows
// of x lie `ldx` numbers apart. What is asked for behind a panel's end is where the next P panels begin.
template <class Kind, int R, int P>
static inline void chains(typename Kind::Sum (&sum)[R][P * VECTORS], const typename Kind::X* x, int64_t ldx, const uint8_t* w,
                          int64_t panel, int64_t steps, int64_t left) {
  for (int64_t j = 0; j < steps; j++) {
    const int64_t soon = AHEAD + (j * STEP + AHEAD < left ? 0 : (P - 1) * panel);
    DW_UNROLL for (int p = 0; p < P; p++) {
      const uint8_t* at = w + p * panel + j * STEP;
      __builtin_prefetch(at + soon);
      step<Kind, R, P, 0>(sum, x + j * Kind::PARTS, ldx, at, p);
    }
  }
}

template <class Kind> struct Task {
  const Matrix& m;
  const Operand<Kind> x;
  float* out;
  int64_t ldo;
  Floats bias(int64_t n) const { return m.bias ? load(m.bias + n) : Floats{}; }
};

template <class Kind, int R, int P> static __attribute__((noinline)) void block(const Task<Kind>& t, int64_t row, int64_t panel) {
  const int64_t steps = t.m.kp / Kind::INPUTS, bytes = steps * STEP;
  typename Kind::Sum sum[R][P * VECTORS] = {};
  chains<Kind, R, P>(sum, t.x.at(row, 0), t.x.row, t.m.data + panel * bytes, bytes, steps, bytes);
  DW_UNROLL for (int r = 0; r < R; r++)
    DW_UNROLL for (int v = 0; v < P * VECTORS; v++) {
      const int64_t n = panel * PANEL + v * WIDTH;
      store(t.out + (row + r) * t.ldo + n, sum[r][v] + t.bias(n));
    }
}

// Whole numbers: exact sums of each group, scaled and added up in order. A pair of groups: scales [2][16], shifts [2][16] (INT4), weights.
template <class Kind, int R, int P> static __attribute__((noinline)) void grouped(const Task<Kind>& t, int64_t row, int64_t panel) {
  constexpr int64_t HEAD = Kind::SHIFTS ? 8 * PANEL : 4 * PANEL, STEPS = GROUP / Kind::INPUTS;
  const int64_t size = pair_bytes(t.m.type), groups = t.m.kp / GROUP, bytes = groups / 2 * size;
  Floats sum[R][P * VECTORS] = {};
  for (int64_t group = 0; group < groups; group++) {
    const int64_t at = group / 2 * size;
    const uint8_t* pair = t.m.data + panel * bytes + at;
    typename Kind::Sum whole[R][P * VECTORS] = {};
    chains<Kind, R, P>(whole, t.x.at(row, group * STEPS), t.x.row, pair + HEAD + group % 2 * STEPS * STEP, bytes, STEPS, bytes - at);
    const Given* given = t.x.given + row * t.x.groups + group;
    DW_UNROLL for (int p = 0; p < P; p++) {
      const uint16_t* scale = reinterpret_cast<const uint16_t*>(pair + p * bytes) + group % 2 * PANEL;
      __builtin_prefetch(reinterpret_cast<const char*>(scale) + AHEAD);
      DW_UNROLL for (int v = 0; v < VECTORS; v++) {
        Floats factor = halves(scale + v * WIDTH), shift{};
        if constexpr (Kind::SHIFTS) shift = halves(scale + 2 * PANEL + v * WIDTH);
        DW_UNROLL for (int r = 0; r < R; r++) {
          const Given& its = given[r * t.x.groups];
          Floats& s = sum[r][p * VECTORS + v];
          s = fma(__builtin_convertvector(Kind::total(whole[r][p * VECTORS + v], its), Floats) * factor, all(its.factor), s);
          if constexpr (Kind::SHIFTS) s = fma(shift, all(its.total), s);
        }
      }
    }
  }
  DW_UNROLL for (int r = 0; r < R; r++)
    DW_UNROLL for (int v = 0; v < P * VECTORS; v++) {
      const int64_t n = panel * PANEL + v * WIDTH;
      store(t.out + (row + r) * t.ldo + n, sum[r][v] + t.bias(n));
    }
}

template <class Kind>
static void products(const Matrix& m, int64_t rows, const void* operand, float* out, int64_t ldo, int64_t from, int64_t to) {
  const Task<Kind> task{m, Operand<Kind>(m, operand, rows), out, ldo};
  for (int64_t top = 0; top < rows; top += TALL)
    blocks<Kind::CHAINS>(rows - top < TALL ? rows - top : TALL, from, to, [&](auto r, auto p, int64_t row, int64_t panel) {
      constexpr int R = decltype(r)::value, P = decltype(p)::value;
      if constexpr (Kind::WHOLE) grouped<Kind, R, P>(task, top + row, panel);
      else block<Kind, R, P>(task, top + row, panel);
    });
}

#ifdef DW_TILES
#include "tiles.h"
#endif

static void multiply(const Matrix& m, int64_t rows, const void* operand, float* out, int64_t ldo, int64_t from, int64_t to) {
#ifdef DW_TILES  // for any number of rows: elsewhere bfloat16 is rounded otherwise
  if (m.type == BF16) return tile_products(m, rows, operand, out, ldo, from, to);
#endif
  switch (m.type) {
    case F32: return products<Float32>(m, rows, operand, out, ldo, from, to);
    case BF16: return products<Bfloat16>(m, rows, operand, out, ldo, from, to);
    case INT4: return products<Int4>(m, rows, operand, out, ldo, from, to);
    case INT8: return products<Int8>(m, rows, operand, out, ldo, from, to);
  }
}
