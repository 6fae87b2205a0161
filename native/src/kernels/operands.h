// Rows as the products read them. Included inside a set's namespace.
// An operand holds what the sections of a matrix need: rows [rows][kp] of floats; the same of bfloat16's digits, or of pairs;
// of whole numbers: what is Given of each group of each row, then the rows' numbers. Rows of these that go through the
// weights together lie together, group by group, so that they need one address.

#ifdef DW_TILES
constexpr int64_t BLOCK_ROWS = 16;  // a tile's, of which less than half may be of no use
static inline int64_t with_room(int64_t rows) { return rows % BLOCK_ROWS > 8 ? up(rows, BLOCK_ROWS) : rows; }
#else
constexpr int64_t BLOCK_ROWS = WIDTH == 16 ? 8 : 4;
static inline int64_t with_room(int64_t rows) { return rows; }
#endif

// Rows that lie together, where so many are left.
static inline int64_t block_rows(int64_t left) { return std::min(with_room(left), BLOCK_ROWS); }

struct Operand {
  int64_t kp, groups;
  float* floats;      // [rows][kp]
  Bfloat16::X* bfloats;  // [rows][kp / INPUTS * PARTS]
  Given* given;       // of each block of rows [groups][its rows]
  int8_t* numbers;    // of each block of rows [groups][its rows][GROUP]
  size_t bytes;

  Operand(const Matrix& m, const void* operand, int64_t rows) : kp(m.kp), groups(up(m.kp, GROUP) / GROUP), bytes(0) {
    char* at = static_cast<char*>(const_cast<void*>(operand));
    const auto part = [&](bool needed, size_t size) {
      char* place = needed ? at + bytes : nullptr;
      bytes += needed ? up(size * rows, 64) : 0;
      return place;
    };
    floats = reinterpret_cast<float*>(part(m.has([](Type t) { return t == F32 || t == F16 || t == FP8; }), 4 * kp));
    bfloats = reinterpret_cast<Bfloat16::X*>(part(m.has([](Type t) { return t == BF16; }), sizeof(Bfloat16::X) * pairs()));
    const bool numbered = m.has(whole);
    rows = with_room(rows);
    given = reinterpret_cast<Given*>(part(numbered, sizeof(Given) * groups));
    numbers = reinterpret_cast<int8_t*>(part(numbered, kp));
  }
  int64_t pairs() const { return kp / Bfloat16::INPUTS * Bfloat16::PARTS; }
};

static size_t operand_bytes(const Matrix& m, int64_t rows) { return Operand(m, reinterpret_cast<void*>(64), rows).bytes; }

static inline Ints greater(Ints a, Ints b) { return a > b ? a : b; }

// f applied to neighbours until one is left
template <class F> static inline int32_t folded(Ints v, F f) {
  for (int n = WIDTH; n > 1; n /= 2) v = f(__builtin_shufflevector(v, v, DW_EVEN), __builtin_shufflevector(v, v, DW_ODD));
  return v[0];
}

// Whole numbers of at most 127 that times the factor are nearly x; NaN or infinity in x: a factor that tells it.
static inline Given quantised(const float* x, int64_t n, int8_t* code) {
  constexpr int HALF = GROUP / 2, COUNT = HALF / WIDTH;
  alignas(64) float padded[GROUP] = {};
  if (n < GROUP) {
    std::memcpy(padded, x, 4 * n);
    x = padded;
  }
  Ints sizes{};  // as bits: of positive floats the larger has the larger, a NaN the largest
  DW_UNROLL for (int i = 0; i < 2 * COUNT; i++) sizes = greater((Ints)load(x + i * WIDTH) & 0x7fffffff, sizes);
  const int32_t top = folded(sizes, greater);
  float largest;
  std::memcpy(&largest, &top, 4);
  const bool finite = top < 0x7f800000, usual = finite && largest > 1e-30f;
  const float steps = usual ? 127 / largest : 0, magic = 12582912;  // 1.5 * 2^23: a sum's low bits are the nearest whole number
  Given given{usual || !finite ? largest / 127 : 0, 0, 0, {}};
  for (int h = 0; h < 2; h++) {
    Ints total{};
    DW_UNROLL for (int i = 0; i < COUNT; i++) {
      Floats v = usual ? load(x + h * HALF + i * WIDTH) * steps + magic : all(magic);  // not fused: the same in every set
      Ints number = (Ints)v - 0x4b400000;
      total += number;
      *reinterpret_cast<Chars*>(code + h * HALF + i * WIDTH) = __builtin_convertvector(number, Chars);
    }
    given.half[h] = folded(total, [](Ints a, Ints b) { return a + b; });
  }
  given.sum = given.half[0] + given.half[1];
  given.total = given.factor * given.sum;
  return given;
}

static void convert(const Matrix& m, const float* x, void* operand, int64_t row, int64_t rows) {
  const Operand to(m, operand, rows);
  if (to.floats) {
    std::memcpy(to.floats + row * m.kp, x, 4 * m.k);
    std::memset(to.floats + row * m.kp + m.k, 0, 4 * (m.kp - m.k));
  }
  if (to.bfloats) Bfloat16::put(x, m.k, m.kp, to.bfloats + row * to.pairs());
  if (!to.given) return;
  const int64_t first = row / BLOCK_ROWS * BLOCK_ROWS, its = block_rows(rows - first);
  const int64_t room = row + 1 == rows ? first + its - rows : 0;  // of a block, behind the last row
  int8_t* code = to.numbers + first * m.kp + (row - first) * GROUP;
  Given* given = to.given + first * to.groups + row - first;
  for (int64_t i = 0; i < m.kp; i += GROUP) {
    const int64_t n = i < m.k ? m.k - i < GROUP ? m.k - i : GROUP : 0;
    alignas(64) float taken[GROUP];
    for (int64_t j = 0; m.order && j < n; j++) taken[j] = x[m.order[i + j]];
    *given = quantised(m.order ? taken : x + i, n, code);
    std::fill_n(given + 1, room, Given{});
    code += its * GROUP, given += its;
  }
}
