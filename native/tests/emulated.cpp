// Kernels around VNNI, bfloat16 and AMX instructions, with these computed in C++. Prints what is wrong.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "matrix.h"
#include "stored.h"

#define DW_EMULATED
#define DW_SET vectors
#define DW_WIDTH 16
#include "kernels/all.h"

namespace dw {
bool exact(const Kernels& set, int64_t n, int64_t k, int64_t rows);
namespace tiles { extern const Kernels table; }

static std::vector<float> product(const Kernels& set, const Matrix& m, const float* x, int64_t rows) {
  std::vector<float> out(rows * m.panels * PANEL);
  void* in = std::aligned_alloc(64, set.operand_bytes(m, rows));
  for (int64_t i = 0; i < rows; i++) set.convert(m, x + i * m.k, in, i, rows);
  set.multiply(m, rows, in, out.data(), m.panels * PANEL, 0, m.panels);
  std::free(in);
  return out;
}

static int wrong() {
  int found = 0;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const Kernels* set : {&vectors::table, &tiles::table}) {
    found += wrong_products(*set);
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {16, 64}, {33, 100}, {70, 333}}) {
      for (int64_t rows : {1, 2, 15, 16, 17, 32, 33, 50})
        if (!exact(*set, n, k, rows)) found++, std::printf("%s: %ld rows of %ldx%ld are not exact\n", set->name, rows, n, k);
      std::vector<float> weight(n * k), x(50 * k);
      for (float& w : weight) w = normal(random);
      for (float& v : x) v = normal(random);
      for (Type type : {F32, BF16, INT4, INT8}) {
        Matrix* m = pack(type, n, k, weight.data(), false, nullptr, 1);
        const int64_t wide = m->panels * PANEL;
        const std::vector<float> all = product(*set, *m, x.data(), 50);
        for (int64_t i = 0; i < 50; i++) {
          const int64_t rows = 50 - i < i % 20 + 1 ? 50 - i : i % 20 + 1;
          if (std::memcmp(product(*set, *m, &x[i * k], rows).data(), &all[i * wide], 4 * rows * wide))
            found++, std::printf("%s: row %ld of type %d depends on others\n", set->name, i, type);
        }
        release(m);
      }
    }
  }
  return found;
}
}  // namespace dw

int main() { return dw::wrong() ? 1 : 0; }
