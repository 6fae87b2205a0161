// Whether a kernel set computes what it should: products of small whole numbers, which every type holds exactly.
#include <cstdlib>
#include <vector>

#include "matrix.h"

namespace dw {

bool exact(const Kernels& set, int64_t n, int64_t k, int64_t rows) {
  uint32_t state = 1;
  const auto next = [&] { return static_cast<int>((state = state * 1664525 + 1013904223) >> 16 & 0xff); };
  for (const Type type : {F32, BF16, F16, INT4, INT8}) {
    // the extremes of each group are there, so that its scale is 1
    const int low = type == INT4 ? 0 : -127, high = type == INT4 ? 15 : 127;
    std::vector<float> weight(n * k), x(rows * k), bias(n);
    for (int64_t i = 0; i < n * k; i++) weight[i] = i % k % GROUP == 0 ? high : i % k % GROUP == 1 ? low : low + next() % (high - low + 1);
    for (int64_t i = 0; i < rows * k; i++) x[i] = i % k % GROUP == 0 ? -127 : next() % 255 - 127;
    for (float& b : bias) b = next();
    Matrix* m = pack(type, n, k, weight.data(), false, bias.data(), 1);
    const int64_t wide = m->panels * PANEL, half = m->panels / 2;
    std::vector<float> out(rows * wide);
    void* in = std::aligned_alloc(64, set.operand_bytes(*m, rows));
    for (int64_t i = 0; in && i < rows; i++) set.convert(*m, &x[i * k], in, i, rows);
    if (in) set.multiply(*m, rows, in, out.data(), wide, 0, half);
    if (in) set.multiply(*m, rows, in, out.data(), wide, half, m->panels);
    std::free(in);
    release(m);
    for (int64_t i = 0; i < rows; i++)
      for (int64_t j = 0; j < n; j++) {
        int64_t sum = bias[j];
        for (int64_t t = 0; t < k; t++) sum += static_cast<int64_t>(weight[j * k + t]) * static_cast<int64_t>(x[i * k + t]);
        if (out[i * wide + j] != sum) return false;
      }
  }
  return true;
}

}  // namespace dw
