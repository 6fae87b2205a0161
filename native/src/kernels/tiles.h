// Products of bfloat16 on AMX: tiles of 16 rows by 64 bytes of k, and of a panel's 16 steps. Included inside a set's
// namespace. Operands are those of AVX-512 with pairs of bfloat16: rows that tiles read as they lie. A row of a tile does
// not change another's sums, so that few rows take smaller tiles.

#ifdef DW_EMULATED
static int32_t tile[8][16][16];
static int tile_rows[8];
static void tiles_configure(const uint8_t* rows) {
  for (int i = 0; i < 8; i++) tile_rows[i] = rows[i];
}
static void tile_move(int t, char* p, int64_t stride, bool out) {
  for (int r = 0; r < tile_rows[t]; r++) out ? std::memcpy(p + r * stride, tile[t][r], 64) : std::memcpy(tile[t][r], p + r * stride, 64);
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
static void tiles_release() {}
#else
static inline void tiles_configure(const uint8_t* rows) {
  struct __attribute__((packed)) {
    uint8_t palette = 1, start = 0, rest[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {};
  } config;
  std::memcpy(config.rows, rows, 8);
  _tile_loadconfig(&config);
}
#define DW_TILE_ZERO(t) _tile_zero(t)
#define DW_TILE_LOAD(t, p, stride) _tile_loadd(t, p, stride)
#define DW_TILE_STORE(t, p, stride) _tile_stored(t, p, stride)
#define DW_TILE_PRODUCT(c, a, b) _tile_dpbf16ps(c, a, b)
static inline void tiles_release() { _tile_release(); }
#endif

// Up to 32 rows and two panels: sums in tiles 0 to 3, rows in 4 and 5, weights in 6 and 7.
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
      tiles_configure(shape);
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
