#include "matrix.h"

#include <cstdlib>
#include <new>

namespace dw {

static void* room(size_t bytes) {
  void* p = std::aligned_alloc(64, up(bytes ? bytes : 64, 64));
  if (!p) throw std::bad_alloc();
  return p;
}

Matrix* pack(Type type, int64_t n, int64_t k, const void* weight, bool half, const float* bias) {
  Matrix* m = new Matrix{type, n, k, (n + PANEL - 1) / PANEL, k, nullptr, nullptr, nullptr, nullptr, nullptr, 0};
  float* w = static_cast<float*>(room(4 * m->panels * PANEL * k));
  for (int64_t i = 0; i < m->panels * PANEL; i++)
    for (int64_t j = 0; j < k; j++) {
      float v = i >= n ? 0 : half ? widened(static_cast<const bf16*>(weight)[i * k + j]) : static_cast<const float*>(weight)[i * k + j];
      w[(i / PANEL * k + j) * PANEL + i % PANEL] = v;
    }
  m->data = reinterpret_cast<uint8_t*>(w);
  m->bytes = 4 * m->panels * PANEL * k;
  if (bias) {
    m->bias = static_cast<float*>(room(4 * m->panels * PANEL));
    for (int64_t i = 0; i < m->panels * PANEL; i++) m->bias[i] = i < n ? bias[i] : 0;
  }
  return m;
}

void release(Matrix* m) {
  if (!m) return;
  std::free(m->data);
  std::free(m->scale);
  std::free(m->shift);
  std::free(m->total);
  std::free(m->bias);
  delete m;
}

}  // namespace dw
