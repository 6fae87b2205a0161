#include "rows.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "kernels.h"

namespace dw {

constexpr int64_t NEIGHBOURS = 64;  // neighbours whose largest number tells whether one of them may be among the leading ones

void leading(int64_t n, const float* x, int64_t count, int64_t* place, float* value) {
  static thread_local std::vector<float> largest, sorted;
  static thread_local std::vector<int64_t> found;
  const float none = -INFINITY;
  found.clear();
  largest.resize((n + NEIGHBOURS - 1) / NEIGHBOURS);
  kernels().tops(x, n, NEIGHBOURS, largest.data());
  float least = none;  // as many groups have a number as large as the least of the leading ones
  if (count < static_cast<int64_t>(largest.size())) {
    sorted = largest;
    std::nth_element(sorted.begin(), sorted.begin() + count - 1, sorted.end(), std::greater<float>());
    least = sorted[count - 1];
  }
  for (size_t group = 0; group < largest.size(); group++) {
    if (!(largest[group] >= least) || largest[group] == none) continue;
    const int64_t first = static_cast<int64_t>(group) * NEIGHBOURS, end = std::min(n, first + NEIGHBOURS);
    for (int64_t i = first; i < end; i++)
      if (x[i] >= least && x[i] > none) found.push_back(i);
  }
  const int64_t kept = std::min(count, static_cast<int64_t>(found.size()));
  std::partial_sort(found.begin(), found.begin() + kept, found.end(),
                    [x](int64_t a, int64_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; });
  for (int64_t i = 0; i < kept; i++) {
    place[i] = found[i];
    value[i] = x[found[i]];
  }
  for (int64_t i = kept; i < count; i++) place[i] = -1;
}

bool share(int64_t beams, int64_t n, const float* const* x, const double* score, const double* log_sum, float scale, double* top, double* factor, double* sums) {
  const int64_t blocks = (n + BLOCK - 1) / BLOCK;
  float made[BLOCK];
  std::vector<double> total(beams, 1);
  for (int64_t beam = 0; beam < beams; beam++) {
    double* sum = sums + beam * blocks;
    factor[beam] = static_cast<double>(scale) * score[beam];
    top[beam] = log_sum[beam];
    if (!x[beam]) {
      std::fill_n(sum, blocks, 0.);
      *sum = 1;
      continue;
    }
    float largest = static_cast<float>(log_sum[beam]);
    if (scale != 1) kernels().tops(x[beam], n, n, &largest);
    top[beam] = largest;
    total[beam] = 0;
    for (int64_t block = 0; block < blocks; block++) {
      const int64_t first = block * BLOCK, count = std::min(BLOCK, n - first);
      kernels().exps(x[beam] + first, count, largest, scale, made);
      total[beam] += sum[block] = kernels().whole_sum(made, count);
    }
    if (scale != 1) factor[beam] += static_cast<double>(scale) * (largest - log_sum[beam]) + std::log(total[beam]);  // else tokens share what it has
  }
  const double most = *std::max_element(factor, factor + beams);
  double whole = 0;
  for (int64_t beam = 0; beam < beams; beam++) whole += std::exp(factor[beam] - most);
  for (int64_t beam = 0; beam < beams; beam++) {
    factor[beam] = std::exp(factor[beam] - most) / whole / total[beam];
    if (!std::isfinite(factor[beam])) return false;
  }
  return true;
}

void all_shares(const Shares& of, int64_t beam, int64_t ends, float* out) {
  if (ends) *out++ = of.x[beam] ? 0.f : static_cast<float>(of.factor[beam]);
  if (!of.x[beam]) return std::fill_n(out, of.n, 0.f), void();
  kernels().exps(of.x[beam], of.n, static_cast<float>(of.top[beam]), of.scale, out);
  kernels().excess(out, nullptr, static_cast<float>(of.factor[beam]), of.n, out);
}

bool draw_shares(const Shares& of, int64_t ends, int64_t changed, const int64_t* where, const double* weight, int64_t draws, const double* u, int64_t* place) {
  static thread_local std::vector<double> sums;
  const int64_t blocks = (of.n + BLOCK - 1) / BLOCK, wide = ends + of.n;
  float made[BLOCK];
  const auto begin = [&](int64_t beam) { return beam * wide + (of.x[beam] ? ends : 0); };  // its first place that can be drawn
  const auto weigh = [&](int64_t beam, int64_t first) {  // a block's shares over the beam's factor; returns how many
    const int64_t count = of.x[beam] ? std::min(BLOCK, of.n - first) : 1, at = begin(beam) + first;
    *made = 1;
    if (of.x[beam]) kernels().exps(of.x[beam] + first, count, static_cast<float>(of.top[beam]), of.scale, made);
    for (int64_t i = std::lower_bound(where, where + changed, at) - where; i < changed && where[i] < at + count; i++)
      made[where[i] - at] = weight[i] > 0 ? static_cast<float>(weight[i] / of.factor[beam]) : 0;
    return count;
  };
  sums.resize(of.beams * blocks);
  for (int64_t i = 0; i < of.beams * blocks; i++) sums[i] = of.sums[i] * of.factor[i / blocks];
  for (int64_t i = 0, done = -1; i < changed; i++) {
    const int64_t beam = where[i] / wide, column = where[i] - begin(beam), at = beam * blocks + column / BLOCK;
    if (column < 0 || at == done || !(column < (of.x[beam] ? of.n : 1))) continue;
    const int64_t count = weigh(beam, column / BLOCK * BLOCK);
    sums[done = at] = kernels().whole_sum(made, count) * of.factor[beam];
  }
  double total = 0;
  for (double sum : sums) total += sum;
  for (int64_t draw = 0; draw < draws && possible(total); draw++) {
    const double sought = u[draw] * total;
    double before = 0;
    int64_t at = 0, last = 0;
    while (at + 1 < static_cast<int64_t>(sums.size()) && before + sums[at] <= sought) before += sums[at++];
    const int64_t beam = at / blocks, first = at % blocks * BLOCK, count = weigh(beam, first);
    for (int64_t i = 0; i < count; i++) {
      if (!(made[i] > 0)) continue;
      last = i;  // where rounding leads past the end, the last one that is possible
      if ((before += made[i] * of.factor[beam]) > sought) break;
    }
    place[draw] = begin(beam) + first + last;
  }
  return possible(total);
}

}  // namespace dw
