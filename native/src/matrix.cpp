#include "matrix.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "formats.h"
#include "team.h"

namespace dw {

static inline float value(float w) { return w; }
static inline float value(bf16 w) { return widened(w); }

constexpr size_t LARGE_PAGE = 2 << 20, ROOM = 8 * LARGE_PAGE;

// Memory in large pages, where the system has them: fewer misses in the table of pages.
static std::shared_ptr<void> large_pages(size_t bytes) {
  std::shared_ptr<void> made(std::aligned_alloc(LARGE_PAGE, up(bytes, LARGE_PAGE)), std::free);
  if (!made) throw std::bad_alloc();
#if defined(__linux__)
  madvise(made.get(), up(bytes, LARGE_PAGE), MADV_HUGEPAGE);
#endif
  return made;
}

// Small matrices share rooms, one behind the other as they are made and as the layers read them.
static void* room(Matrix& m, size_t bytes) {
  static std::mutex mutex;
  static std::shared_ptr<void> shared;
  static size_t used = ROOM;
  const size_t size = up(std::max<size_t>(bytes, 64), 64);
  size_t at = 0;
  if (size > ROOM / 4) {
    m.rooms.push_back(large_pages(size));
  } else {
    const std::lock_guard<std::mutex> lock(mutex);
    if (used + size > ROOM) shared = large_pages(ROOM), used = 0;
    m.rooms.push_back(shared);
    at = used, used += size;
  }
  m.bytes += bytes;
  return static_cast<char*>(m.rooms.back().get()) + at;
}

// Whole pages of a mapped file that will not be read again soon: their memory is given back, not what they hold.
static void let_go([[maybe_unused]] const uint8_t* from, [[maybe_unused]] const uint8_t* end) {
#if defined(__linux__)
  constexpr uintptr_t PAGE = 4096;
  const uintptr_t a = up(reinterpret_cast<uintptr_t>(from), PAGE), b = reinterpret_cast<uintptr_t>(end) / PAGE * PAGE;
  if (a < b) madvise(reinterpret_cast<void*>(a), b - a, MADV_DONTNEED);
#endif
}

// What k is rounded up to, and the bytes of a panel of kp inputs.
static int64_t together(Type type) {
  return whole(type) ? layout(type).inputs() : type == F32 ? 1 : type == F16 ? 2 : type == FP8 ? FP8_INPUTS : 32;
}
static int64_t panel_bytes(Type type, int64_t kp) {
  if (type == FP8) return kp / FP8_INPUTS * FP8_BYTES;
  return whole(type) ? kp / layout(type).inputs() * layout(type).bytes() : kp * PANEL * (type == F32 ? 4 : 2);
}

// The bytes of the panel's part that begins with input k, which is the first of those that lie together.
static uint8_t* place(const Matrix& m, const Section& section, int64_t panel, int64_t k) {
  return section.data + panel * panel_bytes(section.type, m.kp) + panel_bytes(section.type, k);
}

static Matrix* made(int64_t n, int64_t k, const float* bias, const std::vector<std::pair<Type, int64_t>>& types) {
  if (n < 1 || k < 1 || k > 1 << 17) throw std::invalid_argument("a weight must have 1 to 131072 inputs and at least one output");
  if (types.size() > SECTIONS) throw std::invalid_argument("a weight has outputs of too many types");
  Matrix* m = new Matrix{n, k, (n + PANEL - 1) / PANEL, k, 0, {}, nullptr, nullptr, 0, {}};
  try {
    for (const auto& [type, panels] : types) m->kp = std::max<int64_t>(m->kp, up(k, together(type)));
    int64_t first = 0;
    for (const auto& [type, panels] : types) {
      if (m->kp % together(type)) throw std::invalid_argument("a weight has outputs of types that do not go together");
      m->section[m->sections++] = {type, first, panels, static_cast<uint8_t*>(room(*m, panels * panel_bytes(type, m->kp)))};
      first += panels;
    }
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

template <class F> static void fill_panel(Matrix* m, int64_t p, F fill) {
  for (int s = 0; s < m->sections; s++) {
    const Section& section = m->section[s];
    if (p < section.panel || p >= section.panel + section.panels) continue;
    std::memset(place(*m, section, p - section.panel, 0), 0, panel_bytes(section.type, m->kp));
    for (int i = 0; i < PANEL; i++)
      if (p * PANEL + i < m->n) fill(section, p - section.panel, i, p * PANEL + i);
  }
}

// fill(section, panel of it, output of the panel, output) for all outputs, panel after panel; then done(first output, end).
template <class F, class G> static Matrix* filled(Matrix* m, int threads, F fill, G done) {
  constexpr int64_t STEP = 16;
  dw::together(m->n * m->k < 1 << 18 ? 1 : std::max(threads, 1), [&](Crew& crew) {
    for (int64_t from; (from = crew.claim(m->panels, STEP)) >= 0;) {
      const int64_t end = std::min(m->panels, from + STEP);
      for (int64_t p = from; p < end; p++) fill_panel(m, p, fill);
      done(from * PANEL, std::min(m->n, end * PANEL));
    }
  });
  return m;
}
template <class F> static Matrix* filled(Matrix* m, int threads, F fill) {
  return filled(m, threads, fill, [](int64_t, int64_t) {});
}

static void put_float(const Matrix& m, const Section& section, int64_t panel, int i, int64_t k, float v) {
  uint8_t* at = section.data + panel * panel_bytes(section.type, m.kp);
  if (section.type == F32) reinterpret_cast<float*>(at)[k * PANEL + i] = v;
  else if (section.type == F16) reinterpret_cast<uint16_t*>(at)[k * PANEL + i] = to_half(v);
  else reinterpret_cast<bf16*>(at)[(k / 2 * PANEL + i) * 2 + k % 2] = rounded(v);
}

// The place of a panel's number of output i and input k, behind the scales of the inputs that it lies with.
static uint8_t* fp8_at(uint8_t* panel, int i, int64_t k) {
  return panel + k / FP8_INPUTS * FP8_BYTES + 4 * PANEL + k % FP8_INPUTS / 2 * 2 * PANEL + 2 * i + k % 2;
}

// Put FP8_INPUTS numbers of output i behind their scale, from input k on.
static void put_fp8(uint8_t* panel, int i, int64_t k, const uint8_t* from) {
  float scale;
  std::memcpy(&scale, from, 4);
  reinterpret_cast<float*>(panel + k / FP8_INPUTS * FP8_BYTES)[i] = 256 * scale;  // kinds.h
  for (int64_t j = 0; j < FP8_INPUTS; j++) *fp8_at(panel, i, k + j) = from[4 + j];
}

// Put 32 codes of output i of a panel; the place is zero.
static void put_codes(const Layout& l, uint8_t* at, int i, const uint8_t* code) {
  for (int j = 0; j < GROUP; j++) {
    const int step = j / 4, byte = i * 4 + j % 4;
    at[step * l.low / 8 * 64 + byte] |= static_cast<uint8_t>((code[j] & ((1 << l.low) - 1)) << step * l.low % 8);
    if (l.high) at[(l.low + step * l.high / 8) * 64 + byte] |= static_cast<uint8_t>(code[j] >> l.low << step * l.high % 8);
  }
}

static uint8_t code_at(const Layout& l, const uint8_t* at, int i, int j) {
  const int step = j / 4, byte = i * 4 + j % 4;
  int code = at[step * l.low / 8 * 64 + byte] >> step * l.low % 8 & ((1 << l.low) - 1);
  if (l.high) code |= (at[(l.low + step * l.high / 8) * 64 + byte] >> step * l.high % 8 & ((1 << l.high) - 1)) << l.low;
  return static_cast<uint8_t>(code);
}

// Put a block that begins with input k: a group, or all that lie together.
static void put_block(const Matrix& m, const Section& section, int64_t panel, int i, int64_t k, const Block& block) {
  const Layout l = layout(section.type);
  uint8_t* at = place(m, section, panel, k / l.inputs() * l.inputs());
  uint16_t* halves = reinterpret_cast<uint16_t*>(at);
  if (!l.products()) {
    const int group = k % l.inputs() / GROUP;
    halves[group * PANEL + i] = block.scale;
    if (l.shifts) halves[(l.groups() + group) * PANEL + i] = block.shift;
    if (l.zeros) at[(2 * l.groups() + group) * PANEL + i] = block.zero;
    return put_codes(l, at + l.head() + group * l.codes(), i, block.code);
  }
  const int groups = l.groups();
  halves[i] = block.scale;
  if (l.shifts) halves[PANEL + i] = block.shift;
  for (int g = 0; g < groups; g++) {
    at[64 + g * PANEL + i] = block.scales[g];
    if (l.shifts) at[64 + (groups + g) * PANEL + i] = block.shifts[g];
  }
  for (int c = 0; c < l.inputs() / GROUP; c++) put_codes(l, at + l.head() + c * l.codes(), i, block.code + c * GROUP);
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

// `count` weights as a group of INT4 or INT8.
template <class Weight> static Block rounded_group(Type type, const Weight* w, int64_t count) {
  const float size = most(w, count);
  float low = 0, high = size;
  if (type == INT4 && std::isfinite(size)) {
    low = high = value(w[0]);
    for (int64_t j = 1; j < count; j++) low = std::min(low, value(w[j])), high = std::max(high, value(w[j]));
  }
  Block block{};
  block.shift = to_half(low), block.scale = to_half(type == INT4 ? (high - from_half(block.shift)) / 15 : size / 127);
  const float base = type == INT4 ? from_half(block.shift) : 0, step = from_half(block.scale), least = type == INT4 ? 0 : -127, top = type == INT4 ? 15 : 127;
  for (int64_t j = 0; j < GROUP; j++) {
    const float v = j < count && step > 0 && std::isfinite(step) ? (value(w[j]) - base) / step : 0;
    block.code[j] = static_cast<uint8_t>(std::lrintf(std::min(std::max(v, least), top)) + (type == INT4 ? 0 : 128));
  }
  return block;
}

template <class Weight> static Matrix* packed(Matrix* m, const Weight* weight, int threads) {
  return filled(m, threads, [=](const Section& section, int64_t panel, int i, int64_t row) {
    const Weight* w = weight + row * m->k;
    if (!whole(section.type))
      for (int64_t j = 0; j < m->k; j++) put_float(*m, section, panel, i, j, value(w[j]));
    else
      for (int64_t j = 0; j < m->k; j += GROUP)
        put_block(*m, section, panel, i, j, rounded_group(section.type, w + j, std::min<int64_t>(GROUP, m->k - j)));
  });
}

Matrix* pack(Type type, int64_t n, int64_t k, const void* weight, bool half, const float* bias, int threads) {
  if (type < F32 || type > INT8) throw std::invalid_argument("weights cannot be rounded to this type");
  Matrix* m = made(n, k, bias, {{type, (n + PANEL - 1) / PANEL}});
  return half ? packed(m, static_cast<const bf16*>(weight), threads) : packed(m, static_cast<const float*>(weight), threads);
}

Matrix* pack_grouped(Type type, int64_t n, int64_t k, const uint8_t* numbers, const uint16_t* scale, const uint16_t* shift,
                     const uint8_t* zero, const float* bias, int threads) {
  const Layout l = layout(type);
  if (!whole(type) || l.products() || l.table || l.high || l.shifts != !!shift || l.zeros != !!zero)
    throw std::invalid_argument("whole numbers of this type have other scales, shifts or zeros");
  const int64_t groups = (k + GROUP - 1) / GROUP;
  Matrix* m = made(n, k, bias, {{type, (n + PANEL - 1) / PANEL}});
  return filled(m, threads, [=](const Section& section, int64_t panel, int i, int64_t row) {
    for (int64_t j = 0; j < k; j += GROUP) {
      const int64_t at = row * groups + j / GROUP;
      Block block{};
      block.scale = scale[at], block.shift = shift ? shift[at] : 0, block.zero = zero ? zero[at] : 0;
      for (int64_t t = 0; t < GROUP; t++) block.code[t] = (j + t < k ? numbers[row * k + j + t] : 0) ^ (l.low == 8 ? 0x80 : 0);
      put_block(*m, section, panel, i, j, block);
    }
  });
}

Matrix* pack_stored(const Stored* part, int parts, int64_t k, const float* bias, int threads) {
  std::vector<std::pair<Type, int64_t>> types;  // of each section; outputs, then panels
  std::vector<int64_t> first(parts + 1);
  for (int p = 0; p < parts; p++) {
    const Format* f = format(part[p].format);
    if (!f || (k % f->inputs && f->type != FP8)) throw std::invalid_argument("a weight is of a type that is not known, or not of whole blocks");
    first[p + 1] = first[p] + part[p].rows;
    if (types.empty() || types.back().first != f->type) {
      if (first[p] % PANEL) throw std::invalid_argument("outputs of another type must begin at a multiple of 16");
      types.push_back({f->type, 0});
    }
    types.back().second += part[p].rows;
  }
  for (auto& type : types) type.second = (type.second + PANEL - 1) / PANEL;
  Matrix* m = made(first[parts], k, bias, types);
  const auto pack = [&](const Section& section, int64_t panel, int i, int64_t row) {
    int p = 0;
    while (row >= first[p + 1]) p++;
    const Stored& from = part[p];
    const Format& f = *format(from.format);
    const int64_t own = row - first[p];
    const uint8_t* at = from.data + (from.order ? from.order[own] : own) * from.stride;
    if (f.type == FP8) {
      uint8_t* to = section.data + panel * panel_bytes(FP8, m->kp);
      for (int64_t j = 0; j < k; j += f.inputs, at += f.bytes) put_fp8(to, i, j, at);
      return;
    }
    if (f.read) {
      Block block{};
      for (int64_t j = 0; j < k; j += f.inputs, at += f.bytes) f.read(at, block), put_block(*m, section, panel, i, j, block);
      return;
    }
    for (int64_t j = 0; j < k; j++, at += f.bytes) {
      uint32_t bits = 0;
      std::memcpy(&bits, at, f.bytes);
      float v;
      std::memcpy(&v, &bits, 4);
      put_float(*m, section, panel, i, j, f.type == F32 ? v : f.type == F16 ? from_half(static_cast<uint16_t>(bits)) : widened(static_cast<bf16>(bits)));
    }
  };
  return filled(m, threads, pack, [&](int64_t from, int64_t end) {
    for (int p = 0; p < parts; p++) {
      const int64_t a = std::max(from, first[p]) - first[p], b = std::min(end, first[p + 1]) - first[p];
      if (part[p].mapped && !part[p].order && a < b) let_go(part[p].data + a * part[p].stride, part[p].data + b * part[p].stride);
    }
  });
}

static void unpack_floats(const Matrix& m, const Section& section, int64_t panel, int i, float* out) {
  uint8_t* at = section.data + panel * panel_bytes(section.type, m.kp);
  for (int64_t k = 0; k < m.k; k++) {
    if (section.type == F32) out[k] = reinterpret_cast<const float*>(at)[k * PANEL + i];
    else if (section.type == F16) out[k] = from_half(reinterpret_cast<const uint16_t*>(at)[k * PANEL + i]);
    else if (section.type == FP8) {
      const uint8_t code = *fp8_at(at, i, k);
      out[k] = from_half(static_cast<uint16_t>((code & 0x80) << 8 | (code & 0x7f) << 7)) * reinterpret_cast<const float*>(at + k / FP8_INPUTS * FP8_BYTES)[i];
    } else out[k] = widened(reinterpret_cast<const bf16*>(at)[(k / 2 * PANEL + i) * 2 + k % 2]);
  }
}

void unpack(const Matrix& m, int64_t row, float* out) {
  int s = 0;
  while (row / PANEL >= m.section[s].panel + m.section[s].panels) s++;
  const Section& section = m.section[s];
  const int64_t panel = row / PANEL - section.panel;
  const int i = row % PANEL;
  if (!whole(section.type)) return unpack_floats(m, section, panel, i, out);
  const Layout l = layout(section.type);
  const int groups = l.groups();
  for (int64_t k = 0; k < m.k; k += l.group) {
    const uint8_t* at = place(m, section, panel, k / l.inputs() * l.inputs());
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(at);
    const int group = k % l.inputs() / l.group;
    float scale, shift = 0;
    int zero = l.zero;
    if (l.products()) {
      const uint8_t small = at[64 + group * PANEL + i];
      scale = from_half(halves[i]) * (l.negative ? static_cast<int8_t>(small) : small);
      if (l.shifts) shift = -from_half(halves[PANEL + i]) * at[64 + (groups + group) * PANEL + i];
    } else {
      scale = l.scales == Layout::BFLOATS ? widened(halves[group * PANEL + i]) : from_half(halves[group * PANEL + i]);
      if (l.shifts) shift = from_half(halves[(groups + group) * PANEL + i]);
      if (l.zeros) zero = at[(2 * groups + group) * PANEL + i];
    }
    const uint8_t* codes = at + l.head() + k % l.inputs() / GROUP * l.codes();
    for (int64_t j = k; j < std::min(m.k, k + l.group); j++) {
      const int code = code_at(l, codes, i, j % GROUP);
      out[m.order ? m.order[j] : j] = (l.table ? l.table[code] : code - zero) * scale + shift;
    }
  }
}

void reorder(Matrix& m, const int64_t* order) {
  if (m.has([](Type t) { return !whole(t); })) throw std::invalid_argument("inputs of floats have no other order");
  std::vector<bool> met(m.k);
  for (int64_t i = 0; i < m.k; i++) {
    if (order[i] < 0 || order[i] >= m.k || met[order[i]]) throw std::invalid_argument("an order must have each input once");
    met[order[i]] = true;
  }
  if (!m.order) m.order = static_cast<int32_t*>(room(m, 4 * m.k));
  std::copy(order, order + m.k, m.order);
}

void release(Matrix* m) { delete m; }

}  // namespace dw
