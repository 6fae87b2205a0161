#include "matrix.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>
#include <stdexcept>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "team.h"

namespace dw {

static inline float value(float w) { return w; }
static inline float value(bf16 w) { return widened(w); }

// to nearest even; beyond the largest: infinity
static uint16_t to_half(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  const uint16_t sign = u >> 16 & 0x8000;
  const float size = std::fabs(f);
  if (!(size < 65520)) return sign | (size == size ? 0x7c00 : 0x7e00);
  if (size < 0x1p-14f) return sign | static_cast<uint16_t>(std::lrintf(size * 0x1p24f));
  u &= 0x7fffffff;
  return sign | static_cast<uint16_t>((u + 0xfff + (u >> 13 & 1) - (112u << 23)) >> 13);
}

static float from_half(uint16_t h) {
  const float size = (h & 0x7c00) == 0x7c00 ? (h & 0x3ff ? NAN : INFINITY)
                     : h & 0x7c00           ? std::ldexp(1024.f + (h & 0x3ff), (h >> 10 & 31) - 25)
                                            : (h & 0x3ff) * 0x1p-24f;
  return h & 0x8000 ? -size : size;
}

static void* room(Matrix& m, size_t bytes) {
  const size_t page = bytes >= (4u << 20) ? 2u << 20 : 64;
  void* p = std::aligned_alloc(page, up(std::max<size_t>(bytes, 64), page));
  if (!p) throw std::bad_alloc();
#if defined(__linux__)
  if (page > 64) madvise(p, up(bytes, page), MADV_HUGEPAGE);  // fewer misses in the table of pages
#endif
  m.bytes += bytes;
  return p;
}

static Matrix* made(Type type, int64_t n, int64_t k, const float* bias) {
  if (n < 1 || k < 1 || k > 1 << 17) throw std::invalid_argument("a weight must have 1 to 131072 inputs and at least one output");
  const int64_t together = type == F32 ? 1 : type == BF16 ? 32 : 64;
  Matrix* m = new Matrix{type, n, k, (n + PANEL - 1) / PANEL, static_cast<int64_t>(up(k, together)), nullptr, nullptr, 0};
  try {
    const bool floats = type == F32 || type == BF16;
    m->data = static_cast<uint8_t*>(room(*m, m->panels * (floats ? m->kp * PANEL * (type == F32 ? 4 : 2) : m->kp / 64 * pair_bytes(type))));
    if (bias) {
      m->bias = static_cast<float*>(room(*m, 4 * m->panels * PANEL));
      for (int64_t i = 0; i < m->panels * PANEL; i++) m->bias[i] = i < n ? bias[i] : 0;
    }
  } catch (...) {
    release(m);
    throw;
  }
  return m;
}

template <class F> static Matrix* filled(Matrix* m, int threads, F panel) {
  together(m->n * m->k < 1 << 18 ? 1 : std::max(threads, 1), [&](Crew& crew) {
    for (int64_t p; (p = crew.claim(m->panels, 1)) >= 0;) panel(p, std::min<int64_t>(PANEL, m->n - p * PANEL));
  });
  return m;
}

// Put group `group` of output i of a panel: `count` numbers, the rest of it is zero.
static void put_group(const Matrix& m, int64_t panel, int64_t group, int i, const uint8_t* number, int64_t count, uint16_t scale,
                      uint16_t shift) {
  uint8_t* pair = m.data + (panel * (m.kp / 64) + group / 2) * pair_bytes(m.type);
  uint16_t* head = reinterpret_cast<uint16_t*>(pair) + group % 2 * PANEL + i;
  head[0] = scale;
  if (m.type == INT4) head[2 * PANEL] = shift;
  uint8_t* at = pair + PANEL * (m.type == INT4 ? 8 : 4) + group % 2 * PANEL * GROUP / (m.type == INT4 ? 2 : 1) + i * 4;
  for (int j = 0; j < GROUP; j++) {
    const uint8_t v = j < count ? number[j] : 0;
    if (m.type == INT8) at[j / 4 * 4 * PANEL + j % 4] = v;
    else if (j % 8 < 4) at[j / 8 * 4 * PANEL + j % 4] = v & 15;
    else at[j / 8 * 4 * PANEL + j % 4] |= v << 4;
  }
}

// Largest size of `count` weights; a NaN among them is found.
template <class Weight> static float most(const Weight* w, int64_t count) {
  uint32_t found = 0;
  for (int64_t i = 0; i < count; i++) {
    const float v = value(w[i]);
    uint32_t u;
    std::memcpy(&u, &v, 4);
    found = std::max(found, u & 0x7fffffff);
  }
  float size;
  std::memcpy(&size, &found, 4);
  return size;
}

static inline uint8_t nearest(float v) { return static_cast<uint8_t>(static_cast<int8_t>(std::lrintf(v))); }

template <class Weight> static Matrix* packed(Matrix* m, const Weight* weight, int threads) {
  return filled(m, threads, [=](int64_t panel, int64_t outputs) {
    const int64_t k = m->k, kp = m->kp;
    if (m->type == F32 || m->type == BF16) {
      const int pair = m->type == F32 ? 1 : 2;
      for (int64_t j = 0; j < kp; j += pair)
        for (int i = 0; i < PANEL; i++)
          for (int h = 0; h < pair; h++) {
            const float v = i < outputs && j + h < k ? value(weight[(panel * PANEL + i) * k + j + h]) : 0;
            const int64_t to = (panel * kp + j) * PANEL + i * pair + h;
            if (pair == 1) reinterpret_cast<float*>(m->data)[to] = v;
            else reinterpret_cast<bf16*>(m->data)[to] = rounded(v);
          }
      return;
    }
    for (int i = 0; i < PANEL; i++) {
      const Weight* w = weight + (panel * PANEL + i) * k;
      for (int64_t group = 0; group < kp / GROUP; group++) {
        const int64_t from = group * GROUP, count = i < outputs ? std::max<int64_t>(0, std::min<int64_t>(GROUP, k - from)) : 0;
        const float size = most(w + from, count);
        float low = 0, high = size;
        if (m->type == INT4 && count && std::isfinite(size)) {
          low = high = value(w[from]);
          for (int64_t j = 1; j < count; j++) low = std::min(low, value(w[from + j])), high = std::max(high, value(w[from + j]));
        }
        const uint16_t shift = to_half(low), scale = to_half(m->type == INT4 ? (high - from_half(shift)) / 15 : size / 127);
        const float base = from_half(shift), step = from_half(scale);
        uint8_t number[GROUP];
        for (int64_t j = 0; j < count; j++) {
          const float v = step > 0 && std::isfinite(step) ? (value(w[from + j]) - (m->type == INT4 ? base : 0)) / step : 0;
          number[j] = m->type == INT4 ? nearest(std::min(std::max(v, 0.f), 15.f)) : nearest(std::min(std::max(v, -127.f), 127.f));
        }
        put_group(*m, panel, group, i, number, count, scale, shift);
      }
    }
  });
}

Matrix* pack(Type type, int64_t n, int64_t k, const void* weight, bool half, const float* bias, int threads) {
  Matrix* m = made(type, n, k, bias);
  return half ? packed(m, static_cast<const bf16*>(weight), threads) : packed(m, static_cast<const float*>(weight), threads);
}

Matrix* pack_grouped(Type type, int64_t n, int64_t k, const uint8_t* numbers, const uint16_t* scale, const uint16_t* shift,
                     const float* bias, int threads) {
  if (type != INT4 && (type != INT8 || shift)) throw std::invalid_argument("whole numbers have 4 bits, or 8 and no shifts");
  Matrix* m = made(type, n, k, bias);
  const int64_t groups = (k + GROUP - 1) / GROUP;
  return filled(m, threads, [=](int64_t panel, int64_t outputs) {
    for (int i = 0; i < PANEL; i++)
      for (int64_t group = 0; group < m->kp / GROUP; group++) {
        const bool there = i < outputs && group < groups;
        const int64_t at = (panel * PANEL + i) * groups + group;
        put_group(*m, panel, group, i, numbers + (panel * PANEL + i) * k + group * GROUP,
                  there ? std::min<int64_t>(GROUP, k - group * GROUP) : 0, there ? scale[at] : 0, there && shift ? shift[at] : 0);
      }
  });
}

void release(Matrix* m) {
  if (!m) return;
  std::free(m->data);
  std::free(m->bias);
  delete m;
}

}  // namespace dw
