// The set in use is exact in products and near in attention; for machines without Python, as under qemu.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels.h"
#include "stored.h"

namespace dw {
bool exact(const Kernels& set, int64_t n, int64_t k, int64_t rows);
bool ready();
const char* runnable();

static float number(PlaneType type, const char* row, int64_t d) {
  if (type == PLANE_BF16) return widened(reinterpret_cast<const bf16*>(row)[d]);
  if (type == PLANE_F32) return reinterpret_cast<const float*>(row)[d];
  float scale;
  std::memcpy(&scale, row, SCALE_BYTES);
  return scale * reinterpret_cast<const int8_t*>(row)[SCALE_BYTES + d];
}

// Whether queries that see n slots in some order get what sums in double of the rows' numbers come to, and rows are near
// what was put into them.
static bool attends(const Kernels& set, PlaneType type, int64_t dim, int64_t n, int count) {
  std::mt19937 random(static_cast<unsigned>(dim + n));
  std::normal_distribution<float> normal;
  const int64_t bytes = row_bytes(type, dim), slots = n + 5;
  const float step = type == PLANE_F32 ? 0 : type == PLANE_BF16 ? 0x1p-8f : 0.6f / 127;
  std::vector<char> planes[2];
  bool near = true;
  for (auto& plane : planes) {
    plane.resize(slots * bytes);
    for (int64_t s = 0; s < slots; s++) {
      std::vector<float> x(dim);
      float largest = 0;
      for (float& v : x) largest = std::max(largest, std::fabs(v = normal(random)));
      set.keep(type, x.data(), dim, &plane[s * bytes]);
      for (int64_t d = 0; d < dim; d++) near &= std::fabs(number(type, &plane[s * bytes], d) - x[d]) <= step * largest;
    }
  }
  std::vector<int32_t> list(n);
  for (int64_t t = 0; t < n; t++) list[t] = static_cast<int32_t>(t * 3 % slots);  // a slot may come twice
  std::vector<float> q(count * dim), out(count * dim), scores(count * up(n, PANEL));
  for (float& v : q) v = normal(random);
  std::vector<Query> query;
  for (int i = 0; i < count; i++) query.push_back({&q[i * dim], list.data(), n, &scores[i * up(n, PANEL)], &out[i * dim]});
  set.attend(query.data(), count, n / PANEL * PANEL, planes[0].data(), planes[1].data(), type, dim, dim, 0.3f, 4.f);
  for (int i = 0; i < count; i++) {
    std::vector<double> right(dim);
    double total = 0;
    for (int64_t t = 0; t < n; t++) {
      double score = 0;
      for (int64_t d = 0; d < dim; d++) score += q[i * dim + d] * static_cast<double>(number(type, &planes[0][list[t] * bytes], d));
      const double weight = std::exp(4 * std::tanh(0.3 * score / 4));
      total += weight;
      for (int64_t d = 0; d < dim; d++) right[d] += weight * number(type, &planes[1][list[t] * bytes], d);
    }
    for (int64_t d = 0; d < dim; d++) near &= std::fabs(out[i * dim + d] - right[d] / total) < 2e-5;
  }
  return near;
}

// Whether of n numbers, some of them equal, the first of the largest is found, the largest of each 64, and the logarithm of the
// sum of their e^x.
static bool tops(const Kernels& set, int64_t n) {
  std::mt19937 random(static_cast<unsigned>(n));
  std::normal_distribution<float> normal(0, 8);
  std::vector<float> x(n);
  for (float& v : x) v = std::round(normal(random));
  double total = 0;
  for (float v : x) total += std::exp(static_cast<double>(v));
  int64_t best = -1;
  float log_sum = 0;
  set.top(x.data(), n, &best, &log_sum);
  bool right = best == std::max_element(x.begin(), x.end()) - x.begin() && std::fabs(log_sum - std::log(total)) < 4e-6 * std::max(1.0, std::fabs(std::log(total)));
  std::vector<float> most((n + 63) / 64);
  set.tops(x.data(), n, 64, most.data());
  for (int64_t i = 0; i < n; i += 64) right &= most[i / 64] == *std::max_element(x.begin() + i, x.begin() + std::min(n, i + 64));
  x[n / 2] = std::nanf("");
  set.top(x.data(), n, &best, &log_sum);
  return right && std::isnan(log_sum);
}

// Whether the softmax of n numbers is near that of doubles, 0 where a number is -inf and NaN with a NaN; and so their sum.
static bool softens(const Kernels& set, int64_t n) {
  std::mt19937 random(static_cast<unsigned>(n));
  std::normal_distribution<float> normal(0, 8);
  std::vector<float> x(n), out(n);
  for (float& v : x) v = normal(random);
  if (n > 2) x[n - 1] = x[n / 3] = -INFINITY;
  double total = 0, sum = 0;
  for (float v : x) total += std::exp(0.5 * v);
  set.softmax(x.data(), n, 0.5f, out.data());
  bool right = true;
  for (int64_t i = 0; i < n; i++) {
    const double expected = std::exp(0.5 * x[i]) / total;
    right &= expected ? std::fabs(out[i] - expected) < 3e-6 * expected : out[i] == 0;
    sum += out[i];
  }
  right &= std::fabs(set.whole_sum(out.data(), n) - sum) < 1e-14;
  std::vector<float> rest(n);
  sum = 0;
  const double left = set.excess(out.data(), out.data() + n / 2, 0.75f, n - n / 2, rest.data());
  for (int64_t i = 0; i < n - n / 2; i++) {
    const float expected = std::max(0.f, 0.75f * out[i] - out[n / 2 + i]);
    right &= rest[i] == expected;
    sum += expected;
  }
  right &= std::fabs(left - sum) < 1e-14;
  x[n / 2] = std::nanf("");
  set.softmax(x.data(), n, 0.5f, x.data());
  for (float v : x) right &= std::isnan(v);
  return right;
}
}  // namespace dw

int main() {
  using namespace dw;
  if (!ready()) return std::puts("none runs"), 1;
  int wrong = wrong_products(kernels());
  for (int64_t n : {1, 33, 70})
    for (int64_t k : {1, 64, 333})
      for (int64_t rows : {1, 5, 13, 40}) wrong += !exact(kernels(), n, k, rows);
  for (PlaneType type : {PLANE_F32, PLANE_BF16, PLANE_INT8})
    for (int64_t dim : {1, 6, 64, 70, 300})
      for (int64_t n : {1, 15, 40})
        for (int count : {1, 2, 3, 8}) wrong += !attends(kernels(), type, dim, n, count);
  for (int64_t n : {1, 7, 16, 33, 1024, 5000}) wrong += !tops(kernels(), n) + !softens(kernels(), n);
  std::printf("%s of %s: %d wrong\n", kernels().name, runnable(), wrong);
  return wrong != 0;
}
