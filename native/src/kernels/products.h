// Products of rows with packed matrices. Included inside a set's namespace.

static size_t operand_bytes(const Matrix& m, int64_t rows) { return up(4 * m.kp * rows, 64); }

static void convert(const Matrix& m, const float* x, void* operand, int64_t row, int64_t rows) {
  std::memcpy(static_cast<float*>(operand) + row * m.kp, x, 4 * m.k);
}

static void multiply(const Matrix& m, int64_t rows, const void* operand, float* out, int64_t ldo, int64_t from, int64_t to) {
  const float* x = static_cast<const float*>(operand);
  for (int64_t p = from; p < to; p++) {
    const float* w = reinterpret_cast<const float*>(m.data) + p * m.kp * PANEL;
    for (int64_t i = 0; i < rows; i++) {
      Floats total[PANEL / WIDTH] = {};
      for (int64_t k = 0; k < m.k; k++)
        for (int v = 0; v < PANEL / WIDTH; v++) total[v] = fma(all(x[i * m.kp + k]), load(w + k * PANEL + v * WIDTH), total[v]);
      for (int v = 0; v < PANEL / WIDTH; v++) {
        if (m.bias) total[v] += load(m.bias + p * PANEL + v * WIDTH);
        store(out + i * ldo + p * PANEL + v * WIDTH, total[v]);
      }
    }
  }
}
