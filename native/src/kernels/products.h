// Products of rows with packed matrices. Included inside a set's namespace.
// Every element is one chain of sums in the order of k; blocks of rows and panels only decide how many chains go at once.

constexpr int64_t TALL = 128;    // rows that go through the weights together, and stay in the caches
constexpr int64_t AHEAD = 8192;  // bytes of weights asked for before they are needed

// Ask for weights: the second cache waits for many more lines at a time than the first one can.
DW_INLINE void ask(const uint8_t* at) { __builtin_prefetch(at, 0, 2); }

// Which of the blocks of rows that meet the same panels one after the other.
struct Turn {
  int64_t number, all;
};

// f(Fixed<R>, Fixed<P>, row, panel, turn) for blocks of R <= ROWS rows and P panels that cover rows [0, rows), panels [from, to): at
// most CHAINS vectors of sums; the fewer rows, the more panels at once.
template <int CHAINS, class F> static inline void blocks(int64_t rows, int64_t from, int64_t to, F f) {
  constexpr int ROWS = VECTORS > 1 ? CHAINS / VECTORS : CHAINS / 2 - 2;  // with one vector of outputs two panels, too
  const int64_t parts = (rows + ROWS - 1) / ROWS;
  fixed<ROWS>((rows + parts - 1) / parts, [&](auto most) {
    constexpr int MOST = decltype(most)::value, FIT = (CHAINS - 2) / (MOST * VECTORS), P = FIT > 3 && MOST == 1 ? 4 : FIT > 1 ? 2 : 1;
    const auto cover = [&](auto p, int64_t panel) {
      for (int64_t part = 0; part < parts; part++) {
        const int64_t row = rows * part / parts;
        if (rows * (part + 1) / parts - row == MOST) f(most, p, row, panel, Turn{part, parts});
        else if constexpr (MOST > 1) f(Fixed<MOST - 1>{}, p, row, panel, Turn{part, parts});
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
DW_INLINE void step(typename Kind::Sum (&sum)[R][P * VECTORS], const typename Kind::X* x, int64_t ldx, const uint8_t* w, int p) {
  typename Kind::Sum part[VECTORS];
  DW_UNROLL for (int v = 0; v < VECTORS; v++) part[v] = Kind::template part<h>(w, v);
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
// of x lie `ldx` numbers apart. What is asked for behind a panel's end is where the next P panels begin. Blocks that take
// turns on panels share out among them what they ask for: the next P panels, so that memory never rests.
template <class Kind, int R, int P>
DW_INLINE void chains(typename Kind::Sum (&sum)[R][P * VECTORS], const typename Kind::X* x, int64_t ldx, const uint8_t* w,
                      int64_t panel, int64_t steps, int64_t left, Turn turn = {0, 1}) {
  for (int64_t j = 0; j < steps; j++) {
    const int64_t soon = AHEAD + (j * STEP + AHEAD < left ? 0 : (P - 1) * panel);
    DW_UNROLL for (int p = 0; p < P; p++) {
      const uint8_t* at = w + p * panel + j * STEP;
      if (turn.all == 1) ask(at + soon);
      else if (j % turn.all == turn.number) ask(at + P * panel);
      step<Kind, R, P, 0>(sum, x + j * Kind::PARTS, ldx, at, p);
    }
  }
}

// Products of rows with one section of a matrix.
template <class X> struct Task {
  const Matrix& m;
  const Section& section;
  const X* x;    // of all rows, `ldx` apart
  int64_t ldx;
  const Given* given;  // of each group of a row of whole numbers
  float* out;
  int64_t ldo;

  template <int R, int P> void store(const Floats (&sum)[R][P * VECTORS], int64_t row, int64_t panel) const {
    DW_UNROLL for (int r = 0; r < R; r++)
      DW_UNROLL for (int v = 0; v < P * VECTORS; v++) {
        const int64_t n = (section.panel + panel) * PANEL + v * WIDTH;
        ::dw::DW_SET::store(out + (row + r) * ldo + n, sum[r][v] + (m.bias ? load(m.bias + n) : Floats{}));
      }
  }
};

template <class Kind, int R, int P>
static __attribute__((noinline)) void block(const Task<typename Kind::X>& t, int64_t row, int64_t panel, Turn turn) {
  const int64_t steps = t.m.kp / Kind::INPUTS, bytes = steps * STEP;
  Floats sum[R][P * VECTORS] = {};
  chains<Kind, R, P>(sum, t.x + row * t.ldx, t.ldx, t.section.data + panel * bytes, bytes, steps, bytes, turn);
  t.template store<R, P>(sum, row, panel);
}

// Floats of 8 bits: sums of the inputs that share a scale, scaled and added up in order.
template <int R, int P> static __attribute__((noinline)) void scaled_block(const Task<float>& t, int64_t row, int64_t panel) {
  const int64_t bytes = t.m.kp / FP8_INPUTS * FP8_BYTES;
  const uint8_t* w = t.section.data + panel * bytes;
  const float* x = t.x + row * t.ldx;
  Floats sum[R][P * VECTORS] = {};
  for (int64_t left = bytes; left > 0; left -= FP8_BYTES, w += FP8_BYTES, x += FP8_INPUTS) {
    Floats part[R][P * VECTORS] = {};
    chains<Float8, R, P>(part, x, t.ldx, w + 4 * PANEL, bytes, FP8_INPUTS / Float8::INPUTS, left);
    DW_UNROLL for (int p = 0; p < P; p++)
      DW_UNROLL for (int v = 0; v < VECTORS; v++) {
        const Floats scale = load(reinterpret_cast<const float*>(w + p * bytes) + v * WIDTH);
        DW_UNROLL for (int r = 0; r < R; r++) sum[r][p * VECTORS + v] = fma(part[r][p * VECTORS + v], scale, sum[r][p * VECTORS + v]);
      }
  }
  t.template store<R, P>(sum, row, panel);
}

// Steps [S, END) of four inputs of a group; rows of x are GROUP bytes.
template <class Kind, int R, int S, int END>
DW_INLINE void steps(Ints (&total)[R][VECTORS], const int32_t* x, const uint8_t* codes) {
  Ints code[VECTORS];
  DW_UNROLL for (int v = 0; v < VECTORS; v++) code[v] = Kind::template code<S>(codes, v);
  DW_UNROLL for (int r = 0; r < R; r++) {
    const Ints four = x[r * GROUP / 4 + S] - Ints{};
    DW_UNROLL for (int v = 0; v < VECTORS; v++) {
      Ints gained = Kind::gain(total[r][v], code[v], four);
      DW_NOW(gained);
      total[r][v] = gained;
    }
  }
  if constexpr (WIDTH < 16 || R > 4) asm volatile("" ::: "memory");  // not the codes of several steps at once: registers are short
  if constexpr (S + 1 < END) steps<Kind, R, S + 1, END>(total, x, codes);
}

// The sum of a row's numbers of a part of a group.
template <class Kind> DW_INLINE int32_t numbers_sum(const Given& given, int64_t part) {
  return Kind::L.group < GROUP ? given.half[part] : given.sum;
}

// What a part of a group adds to a row's sums: its whole numbers, scaled.
template <class Kind>
DW_INLINE void gain(Floats& sum, Ints whole, const Given& its, int64_t part, Floats scale, [[maybe_unused]] Floats shift,
                    [[maybe_unused]] Ints zeros) {
  const int32_t numbers = numbers_sum<Kind>(its, part);
  if constexpr (Kind::L.zeros) whole -= zeros * numbers;
  sum = fma(__builtin_convertvector(whole, Floats) * scale, all(its.factor), sum);
  if constexpr (Kind::L.shifts) sum = fma(shift, all(Kind::L.group == GROUP ? its.total : its.factor * numbers), sum);
}

// Parts [PART, ..) of a group of 32 inputs, as many as have scales of their own: exact sums, scaled and added to `sum`.
template <class Kind, int R, int PART>
DW_INLINE void parts(Floats (&sum)[R][VECTORS], const int32_t* x, const Given* given, const uint8_t* block, const uint8_t* codes,
                     int group) {
  constexpr int PARTS = GROUP / Kind::L.group, STEPS = Kind::L.group / 4;
  Ints total[R][VECTORS];
  DW_UNROLL for (int r = 0; r < R; r++) {
    const Ints start = Kind::start(numbers_sum<Kind>(given[r], PART));
    DW_UNROLL for (int v = 0; v < VECTORS; v++) total[r][v] = start;
  }
  steps<Kind, R, PART * STEPS, (PART + 1) * STEPS>(total, x, codes);
  DW_UNROLL for (int v = 0; v < VECTORS; v++) {
    const Floats scale = Kind::scale(block, group * PARTS + PART, v);
    Floats shift{};
    Ints zeros{};
    if constexpr (Kind::L.shifts) shift = Kind::shift(block, group * PARTS + PART, v);
    if constexpr (Kind::L.zeros) zeros = Kind::zeros(block, group * PARTS + PART, v);
    DW_UNROLL for (int r = 0; r < R; r++) {
      const Ints whole = Kind::finish(total[r][v], numbers_sum<Kind>(given[r], PART));
      gain<Kind>(sum[r][v], whole, given[r], PART, scale, shift, zeros);
    }
  }
  if constexpr (PART + 1 < PARTS) parts<Kind, R, PART + 1>(sum, x, given, block, codes, group);
}

// Whole numbers: exact sums of each group, scaled and added up in order. A panel at a time: several, far apart in memory,
// were slower for any number of rows.
template <class Kind, int R> static __attribute__((noinline)) void grouped(const Task<int32_t>& t, int64_t row, int64_t panel) {
  constexpr Layout L = Kind::L;
  constexpr int CHUNKS = L.inputs() / GROUP, LINES = L.bytes() / 64;
  const int64_t bytes = t.m.kp / L.inputs() * L.bytes();
  const uint8_t* block = t.section.data + panel * bytes;
  const Given* given = t.given + row * (t.m.kp / GROUP);
  const int32_t* x = t.x + row * t.ldx;
  Floats sum[R][VECTORS] = {};
  for (int64_t left = bytes; left > 0; left -= L.bytes(), block += L.bytes())
    for (int chunk = 0; chunk < CHUNKS; chunk++, x += R * GROUP / 4, given += R) {
      for (int i = chunk * LINES / CHUNKS; i < (chunk + 1) * LINES / CHUNKS; i++) ask(block + AHEAD + i * 64);
      parts<Kind, R, 0>(sum, x, given, block, block + L.head() + chunk * L.codes(), chunk);
    }
  t.template store<R, 1>(sum, row, panel);
}

template <class Kind>
static void floats(const Task<typename Kind::X>& task, int64_t rows, int64_t from, int64_t to) {
  for (int64_t top = 0; top < rows; top += TALL)
    blocks<Kind::CHAINS>(rows - top < TALL ? rows - top : TALL, from, to, [&](auto r, auto p, int64_t row, int64_t panel, Turn turn) {
      constexpr int R = decltype(r)::value, P = decltype(p)::value;
      if constexpr (Kind::INPUTS == Float8::INPUTS) scaled_block<R, P>(task, top + row, panel);
      else block<Kind, R, P>(task, top + row, panel, turn);
    });
}

#ifdef DW_TILES
#include "tiles.h"
#endif

// The codes are made once for the rows that lie together.
template <class Kind> static void numbers(const Task<int32_t>& task, int64_t rows, int64_t from, int64_t to) {
  constexpr int MOST = WIDTH == 16 ? 8 : 4;
  constexpr int64_t STRIP = 4;  // panels that all rows meet before the next, so that their codes are in the caches
  int64_t tiled = 0;
#ifdef DW_TILES
  tiled = tile_numbers<Kind>(task, rows, from, to);
#endif
  for (int64_t top = tiled; top < rows; top += TALL)
    for (int64_t first = from; first < to; first += STRIP) {
      const int64_t end = first + STRIP < to ? first + STRIP : to, last = top + TALL < rows ? top + TALL : rows;
      int64_t row = top;
      const auto cover = [&](auto count) {
        for (int64_t panel = first; panel < end; panel++) grouped<Kind, decltype(count)::value>(task, row, panel);
        row += count.value;
      };
      while (row + MOST <= last) cover(Fixed<MOST>{});
      fixed<MOST - 1>(last - row, cover);
    }
}

// f(Numbers<type>) for a type of whole numbers
template <class F, int T = F16 + 1> static inline void with_kind(Type type, F f) {
  if (type == T) return f(Numbers<static_cast<Type>(T)>{});
  if constexpr (T + 1 < FP8) with_kind<F, T + 1>(type, f);
}

static void multiply_section(const Matrix& m, const Section& section, int64_t rows, const Operand& x, float* out, int64_t ldo,
                             int64_t from, int64_t to) {
  if (section.type == F32) return floats<Float32>({m, section, x.floats, m.kp, nullptr, out, ldo}, rows, from, to);
  if (section.type == F16) return floats<Float16>({m, section, x.floats, m.kp, nullptr, out, ldo}, rows, from, to);
  if (section.type == FP8) return floats<Float8>({m, section, x.floats, m.kp, nullptr, out, ldo}, rows, from, to);
#ifdef DW_TILES  // for any number of rows: elsewhere bfloat16 is rounded otherwise
  if (section.type == BF16) return tile_products(m, section, rows, x.bfloats, out, ldo, from, to);
#endif
  if (section.type == BF16) return floats<Bfloat16>({m, section, x.bfloats, x.pairs(), nullptr, out, ldo}, rows, from, to);
  const Task<int32_t> task{m, section, reinterpret_cast<const int32_t*>(x.numbers), m.kp / 4, x.given, out, ldo};
  with_kind(section.type, [&](auto kind) { numbers<decltype(kind)>(task, rows, from, to); });
}

static void multiply(const Matrix& m, int64_t rows, const void* operand, float* out, int64_t ldo, int64_t from, int64_t to) {
  const Operand x(m, operand, rows);
  for (int i = 0; i < m.sections; i++) {
    const Section& section = m.section[i];
    const int64_t first = from > section.panel ? from - section.panel : 0, end = to - section.panel < section.panels ? to - section.panel : section.panels;
    if (first < end) multiply_section(m, section, rows, x, out, ldo, first, end);
  }
}
