#include "rows.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "kernels.h"

namespace dw {

constexpr int64_t BLOCK = 64;  // neighbours whose largest number tells whether one of them may be among the leading ones

void leading(int64_t n, const float* x, int64_t count, int64_t* place, float* value) {
  static thread_local std::vector<float> largest, sorted;
  static thread_local std::vector<int64_t> found;
  const float none = -INFINITY;
  found.clear();
  largest.resize((n + BLOCK - 1) / BLOCK);
  kernels().tops(x, n, BLOCK, largest.data());
  float least = none;  // as many groups have a number as large as the least of the leading ones
  if (count < static_cast<int64_t>(largest.size())) {
    sorted = largest;
    std::nth_element(sorted.begin(), sorted.begin() + count - 1, sorted.end(), std::greater<float>());
    least = sorted[count - 1];
  }
  for (size_t group = 0; group < largest.size(); group++) {
    if (!(largest[group] >= least) || largest[group] == none) continue;
    const int64_t first = static_cast<int64_t>(group) * BLOCK, end = std::min(n, first + BLOCK);
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

bool joint(int64_t beams, int64_t n, int64_t ends, const float* const* x, const double* score, const double* log_sum, float scale, float* out) {
  constexpr int64_t ROOM = 1024;  // numbers that are read again while they are near
  const int64_t wide = ends + n;
  std::vector<double> log_share(beams), total(beams, 1);
  const auto weigh = [&](int64_t beam) {
    float* made = out + beam * wide + ends;
    log_share[beam] = static_cast<double>(scale) * score[beam];
    if (ends) made[-1] = !x[beam];
    if (!x[beam]) return std::fill_n(made, n, 0.f), void();
    float largest;
    kernels().tops(x[beam], n, n, &largest);
    double sum = 0;
    for (int64_t first = 0; first < n; first += ROOM) {
      const int64_t count = std::min(ROOM, n - first);
      kernels().exps(x[beam] + first, count, largest, scale, made + first);
      sum += kernels().whole_sum(made + first, count);
    }
    total[beam] = sum;
    if (scale != 1) log_share[beam] += static_cast<double>(scale) * (largest - log_sum[beam]) + std::log(sum);  // else tokens share what it has
  };
  for (int64_t beam = 0; beam < beams; beam++) weigh(beam);
  const double most = *std::max_element(log_share.begin(), log_share.end());
  double whole = 0;
  for (double share : log_share) whole += std::exp(share - most);
  for (int64_t beam = 0; beam < beams; beam++) {
    const double factor = std::exp(log_share[beam] - most) / whole / total[beam];
    if (!std::isfinite(factor)) return false;
    kernels().excess(out + beam * wide, nullptr, static_cast<float>(factor), wide, out + beam * wide);
  }
  return true;
}

}  // namespace dw
