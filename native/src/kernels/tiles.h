// Products on AMX. Included inside a set's namespace. Operands are those of AVX-512: rows that tiles read as they lie.
// A row of a tile does not change another's sums, so that few rows take smaller tiles.

#ifdef DW_EMULATED
static int32_t tile[8][16][16];
static int tile_rows[8], tile_bytes[8];
static void tiles_configure(const uint8_t* rows, const uint8_t* bytes) {
  for (int i = 0; i < 8; i++) tile_rows[i] = rows[i], tile_bytes[i] = bytes[i];
}
static void tile_move(int t, char* p, int64_t stride, bool out) {
  for (int r = 0; r < tile_rows[t]; r++)
    out ? std::memcpy(p + r * stride, tile[t][r], tile_bytes[t]) : std::memcpy(tile[t][r], p + r * stride, tile_bytes[t]);
}
static void tile_whole_product(int c, int a, int b) {
  for (int r = 0; r < tile_rows[c]; r++)
    for (int n = 0; n < 16; n++)
      for (int k = 0; k < tile_bytes[a]; k++)
        tile[c][r][n] += reinterpret_cast<int8_t*>(tile[a][r])[k] * reinterpret_cast<uint8_t*>(tile[b][k / 4])[4 * n + k % 4];
}
static void tile_product(int c, int a, int b) {
  for (int r = 0; r < tile_rows[c]; r++)
    for (int n = 0; n < 16; n++) {
      float even = 0, odd = 0, sum;
      std::memcpy(&sum, &tile[c][r][n], 4);
      for (int k = 0; k < 16; k++) {
        bf16 x[2], w[2];
        std::memcpy(x, &tile[a][r][k], 4), std::memcpy(w, &tile[b][k][n], 4);
        even += widened(x[0]) * widened(w[0]), odd += widened(x[1]) * widened(w[1]);
      }
      sum += even + odd;
      std::memcpy(&tile[c][r][n], &sum, 4);
    }
}
#define DW_TILE_ZERO(t) std::memset(tile[t], 0, sizeof tile[t])
#define DW_TILE_LOAD(t, p, stride) tile_move(t, reinterpret_cast<char*>(const_cast<uint8_t*>(p)), stride, false)
#define DW_TILE_STORE(t, p, stride) tile_move(t, reinterpret_cast<char*>(p), stride, true)
#define DW_TILE_PRODUCT(c, a, b) tile_product(c, a, b)
#define DW_TILE_WHOLE_PRODUCT(c, a, b) tile_whole_product(c, a, b)
static void tiles_release() {}
#else
static inline void tiles_configure(const uint8_t* rows, const uint8_t* bytes) {
  struct __attribute__((packed)) {
    uint8_t palette = 1, start = 0, rest[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int i = 0; i < 8; i++) config.rows[i] = rows[i], config.bytes[i] = bytes[i];
  _tile_loadconfig(&config);
}
#define DW_TILE_ZERO(t) _tile_zero(t)
#define DW_TILE_LOAD(t, p, stride) _tile_loadd(t, p, stride)
#define DW_TILE_STORE(t, p, stride) _tile_stored(t, p, stride)
#define DW_TILE_PRODUCT(c, a, b) _tile_dpbf16ps(c, a, b)
#define DW_TILE_WHOLE_PRODUCT(c, a, b) _tile_dpbsud(c, a, b)
static inline void tiles_release() { _tile_release(); }
#endif

// Of bfloat16, up to 32 rows and two panels: sums in tiles 0 to 3, rows in 4 and 5, weights in 6 and 7.
template <bool TALLER, bool WIDER>
static void tile_block(const uint8_t* x, int64_t stride, const uint8_t* w, int64_t panel, int64_t steps, float* sums) {
  DW_TILE_ZERO(0);
  DW_TILE_ZERO(1);
  DW_TILE_ZERO(2);
  DW_TILE_ZERO(3);
  for (int64_t j = 0; j < steps; j++) {
    const uint8_t* at = w + j * 1024;
    DW_UNROLL for (int i = 0; i < 1024; i += 64) {
      __builtin_prefetch(at + 4096 + i);
      if (WIDER) __builtin_prefetch(at + panel + 4096 + i);
    }
    DW_TILE_LOAD(4, x + j * 64, stride);
    DW_TILE_LOAD(6, at, 64);
    DW_TILE_PRODUCT(0, 4, 6);
    if constexpr (WIDER) {
      DW_TILE_LOAD(7, at + panel, 64);
      DW_TILE_PRODUCT(1, 4, 7);
    }
    if constexpr (TALLER) {
      DW_TILE_LOAD(5, x + 16 * stride + j * 64, stride);
      DW_TILE_PRODUCT(2, 5, 6);
    }
    if constexpr (TALLER && WIDER) DW_TILE_PRODUCT(3, 5, 7);
  }
  DW_TILE_STORE(0, sums, 128);
  if constexpr (WIDER) DW_TILE_STORE(1, sums + 16, 128);
  if constexpr (TALLER) {
    DW_TILE_STORE(2, sums + 512, 128);
    if constexpr (WIDER) DW_TILE_STORE(3, sums + 528, 128);
  }
}

// Panels [from, to) of a section; x: [rows][kp / 2] pairs.
static void tile_products(const Matrix& m, const Section& section, int64_t rows, const int32_t* x, float* out, int64_t ldo,
                          int64_t from, int64_t to) {
  const int64_t steps = m.kp / (16 * Bfloat16::INPUTS), pairs = m.kp / 2, stride = 4 * pairs;
  alignas(64) float sums[32][32];
  for (int64_t row = 0, before = 0; row < rows; row += 32) {
    const int64_t count = rows - row < 32 ? rows - row : 32;
    if (count != before) {
      const uint8_t a = count < 16 ? count : 16, b = count > 16 ? count - 16 : 1, shape[8] = {a, a, b, b, a, b, 16, 16};
      const uint8_t bytes[8] = {64, 64, 64, 64, 64, 64, 64, 64};
      tiles_configure(shape, bytes);
      before = count;
    }
    for (int64_t panel = from; panel < to; panel += 2) {
      const bool two = panel + 1 < to;
      const uint8_t *at = reinterpret_cast<const uint8_t*>(x + row * pairs), *w = section.data + panel * steps * 1024;
      if (count > 16 && two) tile_block<true, true>(at, stride, w, steps * 1024, steps, sums[0]);
      else if (count > 16) tile_block<true, false>(at, stride, w, 0, steps, sums[0]);
      else if (two) tile_block<false, true>(at, stride, w, steps * 1024, steps, sums[0]);
      else tile_block<false, false>(at, stride, w, 0, steps, sums[0]);
      for (int64_t i = 0; i < count; i++)
        for (int v = 0; v < (two ? 2 : 1); v++) {
          const int64_t n = (section.panel + panel + v) * PANEL;
          const Floats found = load(sums[i] + v * 16);
          store(out + (row + i) * ldo + n, m.bias ? found + load(m.bias + n) : found);
        }
    }
  }
  tiles_release();
}

// Whole numbers: CHUNK groups of inputs of a panel, made ready for all rows that meet them; n: a part that has a scale.
constexpr int64_t CHUNK = 16;
template <class Kind> struct Ready {
  static constexpr Layout L = Kind::L;
  static constexpr int PARTS = GROUP / L.group, TOGETHER = L.inputs() / GROUP;
  alignas(64) uint8_t code[CHUNK * PARTS][L.group * PANEL];
  Floats scale[CHUNK * PARTS], shift[CHUNK * PARTS];
  Ints zeros[CHUNK * PARTS];

  Ready(const uint8_t* block, int64_t groups) {
    for (int64_t g = 0; g < groups; g += TOGETHER, block += L.bytes()) {
      for (int i = 0; i < TOGETHER; i++) codes<0>(block + L.head() + i * L.codes(), code[(g + i) * PARTS]);
      for (int i = 0; i < TOGETHER * PARTS; i++) {
        scale[g * PARTS + i] = Kind::scale(block, i, 0);
        if constexpr (L.shifts) shift[g * PARTS + i] = Kind::shift(block, i, 0);
        if constexpr (L.zeros) zeros[g * PARTS + i] = Kind::zeros(block, i, 0);
      }
    }
  }
  template <int s> static void codes(const uint8_t* from, uint8_t* to) {
    *reinterpret_cast<Ints*>(to + s * 4 * PANEL) = Kind::template code<s>(from, 0);
    if constexpr (s + 1 < GROUP / 4) codes<s + 1>(from, to);
  }
};

// What a chunk of `groups` groups adds to the sums [][PANEL] of a block of rows. Whole numbers lie in tiles 0 and 1, rows in 2
// and 3, weights in 4 and 5: tiles compute the next parts while one is scaled, and `soon`, if any, is asked for.
template <class Kind>
static __attribute__((noinline)) void tile_chunk(const Ready<Kind>& ready, int64_t groups, const int8_t* numbers, const Given* given,
                                                 const uint8_t* soon, float* sums) {
  constexpr int PARTS = Ready<Kind>::PARTS, BYTES = Kind::L.group, LAG = 4, LINES = Kind::L.bytes() / Kind::L.inputs() * BYTES / 64 + 1;
  const int64_t parts = groups * PARTS;  // an even number
  alignas(64) int32_t whole[LAG][BLOCK_ROWS][PANEL];
  Floats sum[BLOCK_ROWS];
  DW_UNROLL for (int r = 0; r < BLOCK_ROWS; r++) sum[r] = load(sums + r * PANEL);
  const auto compute = [&](int64_t n) {  // parts n, an even number, and n + 1
    if (n >= parts) return;
    const auto rows = [&](int64_t i) { return reinterpret_cast<const uint8_t*>(numbers) + i / PARTS * BLOCK_ROWS * GROUP + i % PARTS * BYTES; };
    DW_TILE_LOAD(4, ready.code[n], 64);
    DW_TILE_LOAD(2, rows(n), GROUP);
    DW_TILE_ZERO(0);
    DW_TILE_WHOLE_PRODUCT(0, 2, 4);
    DW_TILE_LOAD(5, ready.code[n + 1], 64);
    DW_TILE_LOAD(3, rows(n + 1), GROUP);
    DW_TILE_ZERO(1);
    DW_TILE_WHOLE_PRODUCT(1, 3, 5);
    DW_TILE_STORE(0, whole[n % LAG][0], 64);
    DW_TILE_STORE(1, whole[(n + 1) % LAG][0], 64);
  };
  compute(0);
  for (int64_t n = 0; n < parts; n++) {
    if (n % 2 == 0) compute(n + 2);
    for (int i = 0; soon && i < LINES; i++) ask(soon + (n * LINES + i) * 64);
    DW_UNROLL for (int r = 0; r < BLOCK_ROWS; r++) {
      const Given& its = given[n / PARTS * BLOCK_ROWS + r];
      const Ints total = *reinterpret_cast<const Ints*>(whole[n % LAG][r]) + Kind::start(numbers_sum<Kind>(its, n % PARTS));
      gain<Kind>(sum[r], total, its, n % PARTS, ready.scale[n], ready.shift[n], ready.zeros[n]);
    }
  }
  DW_UNROLL for (int r = 0; r < BLOCK_ROWS; r++) store(sums + r * PANEL, sum[r]);
}

// Blocks of rows with panels [from, to): how many rows these are. The last block may have room for more rows than there are.
template <class Kind> static int64_t tile_numbers(const Task<int32_t>& t, int64_t rows, int64_t from, int64_t to) {
  constexpr Layout L = Kind::L;
  const int64_t groups = t.m.kp / GROUP, blocked = with_room(rows) / BLOCK_ROWS * BLOCK_ROWS, count = blocked < rows ? blocked : rows;
  if (!count) return 0;
  const uint8_t shape[8] = {16, 16, 16, 16, L.group / 4, L.group / 4}, bytes[8] = {64, 64, L.group, L.group, 64, 64};
  tiles_configure(shape, bytes);
  for (int64_t top = 0; top < count; top += TALL) {
    const int64_t last = top + TALL < count ? top + TALL : count;
    for (int64_t panel = from; panel < to; panel++) {
      alignas(64) float sums[TALL][PANEL];
      std::memset(sums, 0, sizeof *sums * up(last - top, BLOCK_ROWS));
      for (int64_t g = 0; g < groups; g += CHUNK) {
        const int64_t some = g + CHUNK < groups ? CHUNK : groups - g;
        const uint8_t* block = t.section.data + (panel * groups + g) / Ready<Kind>::TOGETHER * L.bytes();
        const Ready<Kind> ready(block, some);
        for (int64_t row = top; row < last; row += BLOCK_ROWS)
          tile_chunk<Kind>(ready, some, reinterpret_cast<const int8_t*>(t.x + row * t.ldx) + g * BLOCK_ROWS * GROUP,
                           t.given + row * groups + g * BLOCK_ROWS, row == top ? block + AHEAD : nullptr, sums[row - top]);
      }
      const int64_t n = (t.section.panel + panel) * PANEL;
      const Floats bias = t.m.bias ? load(t.m.bias + n) : Floats{};
      for (int64_t row = top; row < last; row++) store(t.out + row * t.ldo + n, load(sums[row - top]) + bias);
    }
  }
  tiles_release();
  return count;
}
