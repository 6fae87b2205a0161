// Rows as the products read them. Included inside a set's namespace.
// F32: [rows][kp] floats; BF16: the same of bfloat16's digits, or of pairs; integers: what is Given of each group
// of each row, then the rows' numbers.

template <class Kind> struct Operand {
  typedef typename Kind::X X;
  int64_t row, groups;  // numbers of a row; groups of it
  size_t head, bytes;
  Given* given;
  X* x;

  Operand(const Matrix& m, const void* operand, int64_t rows)
      : row(m.kp / Kind::INPUTS * Kind::PARTS),
        groups(m.kp / GROUP),
        head(Kind::WHOLE ? up(sizeof(Given) * groups * rows, 64) : 0),
        bytes(head + up(sizeof(X) * row * rows, 64)),
        given(static_cast<Given*>(const_cast<void*>(operand))),
        x(reinterpret_cast<X*>(reinterpret_cast<char*>(given) + (operand ? head : 0))) {}
  X* at(int64_t i, int64_t step) const { return x + i * row + step * Kind::PARTS; }
};

static size_t operand_bytes(const Matrix& m, int64_t rows) {
  switch (m.type) {
    case F32: return Operand<Float32>(m, nullptr, rows).bytes;
    case BF16: return Operand<Bfloat16>(m, nullptr, rows).bytes;
    case INT4: return Operand<Int4>(m, nullptr, rows).bytes;
    default: return Operand<Int8>(m, nullptr, rows).bytes;
  }
}

// Whole numbers of at most 127 that times the factor are nearly x; NaN or infinity in x: a factor that tells it.
static Given quantised(const float* x, int64_t n, int8_t* code) {
  Ints most{};  // as bits: of positive floats the larger has the larger, a NaN the largest
  vectors(n, [&](int64_t i, int64_t c) {
    Floats v = some(x + i, c);
    Ints size = (Ints)v & 0x7fffffff;
    most = size > most ? size : most;
  });
  int32_t top = most[0];
  for (int i = 1; i < WIDTH; i++) top = most[i] > top ? most[i] : top;
  float largest;
  std::memcpy(&largest, &top, 4);
  const bool finite = top < 0x7f800000, usual = finite && largest > 1e-30f;
  const float steps = usual ? 127 / largest : 0, magic = 12582912;  // 1.5 * 2^23: a sum's low bits are the nearest whole number
  Ints total{};
  vectors(n, [&](int64_t i, int64_t c) {
    Floats v = usual ? some(x + i, c) * steps + magic : all(magic);  // not fused: the same in every set
    Ints whole = (Ints)v - 0x4b400000;
    total += whole;
    Chars small = __builtin_convertvector(whole, Chars);
    std::memcpy(code + i, &small, c);
  });
  int32_t sum = 0;
  for (int i = 0; i < WIDTH; i++) sum += total[i];
  const float factor = usual || !finite ? largest / 127 : 0;
  return {factor, factor * sum, sum};
}

template <class Kind> static void converted(const Operand<Kind>& to, const Matrix& m, const float* x, int64_t row) {
  int8_t* code = reinterpret_cast<int8_t*>(to.at(row + 1, 0)) - m.kp;  // at the end of its place: what is put overtakes nothing
  std::memset(code + m.k, 0, m.kp - m.k);
  for (int64_t i = 0; i < m.kp; i += GROUP)
    to.given[row * to.groups + i / GROUP] = i < m.k ? quantised(x + i, m.k - i < GROUP ? m.k - i : GROUP, code + i) : Given{0, 0, 0};
  if constexpr (Kind::PUT)
    for (int64_t i = 0; i < m.kp / 4; i++) {
      int8_t four[4];
      std::memcpy(four, code + 4 * i, 4);
      Kind::put(four, to.at(row, i));
    }
}

static void convert(const Matrix& m, const float* x, void* operand, int64_t row, int64_t rows) {
  switch (m.type) {
    case F32: std::memcpy(Operand<Float32>(m, operand, rows).at(row, 0), x, 4 * m.k); return;
    case BF16: return Bfloat16::put(x, m.k, m.kp, Operand<Bfloat16>(m, operand, rows).at(row, 0));
    case INT4: return converted(Operand<Int4>(m, operand, rows), m, x, row);
    default: return converted(Operand<Int8>(m, operand, rows), m, x, row);
  }
}
