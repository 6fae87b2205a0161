#include "matrix.h"

#include <cmath>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <thread>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "team.h"

namespace dw {

static void* room(Matrix& m, size_t bytes) {
  const size_t page = bytes >= (4u << 20) ? 2u << 20 : 64;
  bytes = up(bytes ? bytes : 64, page);
  void* p = std::aligned_alloc(page, bytes);
  if (!p) throw std::bad_alloc();
#if defined(__linux__)
  if (page > 64) madvise(p, bytes, MADV_HUGEPAGE);  // fewer misses in the table of pages
#endif
  m.bytes += bytes;
  return p;
}

// work(i) for i in [0, n), on all cores
template <class F> static void each(int64_t n, int64_t size, F work) {
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  together(n * size < 1 << 20 || cores < 1 ? 1 : cores, [&](Crew& crew) {
    for (int64_t i; (i = crew.claim(n, 1)) >= 0;) work(i);
  });
}

static inline float value(const float* w) { return *w; }
static inline float value(const bf16* w) { return widened(*w); }

// The layout in memory is that of matrix.h; f(weight, its output, place) puts one weight.
template <int PER, class Weight, class F>
static void panelled(const Matrix& m, int64_t panel, const Weight* weight, F put) {
  int64_t outputs = m.n - panel * PANEL < PANEL ? m.n - panel * PANEL : PANEL;
  for (int64_t k = 0; k < m.kp; k += PER)
    for (int i = 0; i < PANEL; i++) {
      const Weight* from = weight + (panel * PANEL + i) * m.k + k;
      int64_t to = (panel * m.kp + k) * PANEL + i * PER;
      for (int j = 0; j < PER; j++) put(i < outputs && k + j < m.k ? value(from + j) : 0.f, i, to + j);
    }
}

template <class Weight> static void filled(Matrix& m, const Weight* weight) {
  m.data = static_cast<uint8_t*>(room(m, m.panels * PANEL * m.kp * (m.type == F32 ? 4 : m.type == BF16 ? 2 : 1)));
  if (m.type == INT8) m.scale = static_cast<float*>(room(m, 4 * m.panels * PANEL));
  each(m.panels, PANEL * m.kp, [&](int64_t panel) {
    if (m.type == F32) {
      panelled<1>(m, panel, weight, [&](float v, int, int64_t to) { reinterpret_cast<float*>(m.data)[to] = v; });
    } else if (m.type == BF16) {
      panelled<2>(m, panel, weight, [&](float v, int, int64_t to) { reinterpret_cast<bf16*>(m.data)[to] = rounded(v); });
    } else {
      float steps[PANEL] = {};
      for (int i = 0; i < PANEL; i++) {
        int64_t n = panel * PANEL + i;
        float most = 0;
        for (int64_t k = 0; n < m.n && k < m.k; k++) {
          float size = std::fabs(value(weight + n * m.k + k));
          most = size <= most ? most : size;  // a NaN stays: comparisons with it are false
        }
        bool usual = most > 1e-30f && std::isfinite(most);
        steps[i] = usual ? 127 / most : 0;
        m.scale[n] = usual || !std::isfinite(most) ? most / 127 : 0;
      }
      panelled<4>(m, panel, weight, [&](float v, int i, int64_t to) {
        m.data[to] = static_cast<uint8_t>(steps[i] ? static_cast<int8_t>(std::lrintf(v * steps[i])) : 0);
      });
    }
  });
}

Matrix* pack(Type type, int64_t n, int64_t k, const void* weight, bool half, const float* bias) {
  int64_t to = type == F32 ? 1 : type == BF16 ? 32 : 64;
  Matrix* m = new Matrix{type, n, k, (n + PANEL - 1) / PANEL, static_cast<int64_t>(up(k, to)), nullptr, nullptr, nullptr, nullptr, nullptr, 0};
  if (half) filled(*m, static_cast<const bf16*>(weight));
  else filled(*m, static_cast<const float*>(weight));
  if (bias) {
    m->bias = static_cast<float*>(room(*m, 4 * m->panels * PANEL));
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
