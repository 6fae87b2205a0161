#include "experts.h"

#include <cmath>

namespace dw {

namespace {

size_t aligned(size_t bytes) { return up(bytes, 64); }

int64_t widest(const void* const* matrices, int64_t count) {
  int64_t wide = 0;
  for (int64_t i = 0; i < count; i++) wide = std::max(wide, padded(matrix(matrices[i])));
  return wide;
}

// Room for the operands of all experts, whoever is chosen: those of one row, or of nine (tiles), may take as much as those of more.
size_t operands(const Kernels& k, const void* const* matrices, int64_t count, int64_t pairs) {
  size_t row = 0, spare = 0;
  for (int64_t i = 0; i < count; i++) {
    const Matrix& m = matrix(matrices[i]);
    const size_t each = k.operand_bytes(m, 16) / 16;
    row = std::max(row, each);
    for (int64_t rows : {1, 9}) spare = std::max(spare, k.operand_bytes(m, rows) - rows * each);
  }
  return pairs * row + std::min(count, pairs) * (aligned(spare) + 5 * 64);
}

// The memory of a mixture, laid out from `memory` on; where it ends.
Mixture laid_out(const Kernels& k, const dw_experts& e, int64_t width, int64_t rows, char* memory, size_t& bytes) {
  Mixture m{e, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
            widest(e.up, e.count + e.shared), widest(e.down, e.count + e.shared)};
  const int64_t pairs = rows * m.each();
  bytes = 0;
  auto take = [&](auto& place, size_t count) {
    using T = std::remove_reference_t<decltype(*place)>;
    place = reinterpret_cast<T*>(memory + bytes);
    bytes += aligned(count * sizeof(T));
  };
  take(m.expert, pairs);
  take(m.weight, pairs);
  take(m.start, m.count() + 2);
  take(m.row, pairs);
  take(m.place, pairs);
  take(m.at, 2 * (m.count() + 2));
  take(m.rows, rows * width);
  take(m.shared, e.router_norm ? rows * width : 0);
  if (!e.router_norm) m.shared = m.rows;
  take(m.up, pairs * m.wide_up);
  take(m.down, pairs * m.wide_down);
  take(m.operand, std::max(operands(k, e.up, m.count(), pairs), operands(k, e.down, m.count(), pairs)));
  return m;
}

// The sparse mixer (arXiv 2409.12136): one expert after the other is the largest of those left, weighed against those near it.
void mix(const dw_experts& e, float jitter, const float* score, float* left, int32_t* expert, float* weight) {
  const int64_t n = e.count;
  std::copy(score, score + n, left);
  std::vector<std::pair<int32_t, float>> found;
  for (int64_t j = 0; j < e.chosen; j++) {
    const int64_t best = std::max_element(left, left + n) - left;
    const float top = left[best];
    float total = 0;
    for (int64_t i = 0; i < n; i++)
      if (!((top - score[i]) / std::max(std::abs(score[i]), top) > 2 * jitter)) total += std::exp(left[i] - top);
    found.push_back({static_cast<int32_t>(best), 1 / total});
    left[best] = -INFINITY;
  }
  std::sort(found.begin(), found.end());
  for (int64_t j = 0; j < e.chosen; j++) expert[j] = found[j].first, weight[j] = found[j].second * e.scale;
}

// The sum of the largest scores of a group, `top` of them.
float group_score(const float* judged, int64_t size, int64_t top) {
  std::vector<float> own(judged, judged + size);
  top = std::min(top, size);
  std::partial_sort(own.begin(), own.begin() + top, own.end(), std::greater<float>());
  float sum = 0;
  for (int64_t i = 0; i < top; i++) sum += own[i];
  return sum;
}

// What a row of logits makes of the experts: which it chose, rising, and their weights.
void choose(const dw_part& part, float* score, float* judged, int32_t* expert, float* weight) {
  const dw_experts& e = *part.experts;
  const int64_t n = e.count;
  if (part.jitter) return mix(e, part.jitter, score, judged, expert, weight);
  if (e.sigmoid) {
    for (int64_t i = 0; i < n; i++) score[i] = 1 / (1 + std::exp(-score[i]));
  } else {
    const float top = *std::max_element(score, score + n);
    float total = 0;
    for (int64_t i = 0; i < n; i++) total += score[i] = std::exp(score[i] - top);
    for (int64_t i = 0; i < n; i++) score[i] /= total;
  }
  for (int64_t i = 0; i < n; i++) judged[i] = score[i] + (e.selection_bias ? e.selection_bias[i] : 0);
  if (e.groups > 1) {  // all but the groups with the largest scores drop out
    const int64_t size = n / e.groups;
    std::vector<float> sums(e.groups);
    for (int64_t g = 0; g < e.groups; g++) sums[g] = group_score(judged + g * size, size, part.group_top);
    std::vector<bool> stays(e.groups);
    for (int64_t j = 0; j < e.chosen_groups; j++) {
      int64_t best = -1;
      for (int64_t g = 0; g < e.groups; g++)
        if (!stays[g] && (best < 0 || sums[g] > sums[best])) best = g;
      stays[best] = true;
    }
    for (int64_t i = 0; i < n; i++)
      if (!stays[i / size]) judged[i] = -INFINITY;
  }
  float total = 0;
  for (int64_t j = 0; j < e.chosen; j++) {
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++)
      if (!std::isnan(judged[i]) && (best < 0 || judged[i] > judged[best])) best = i;
    if (best < 0) best = j;  // nothing can be judged: NaN goes through
    expert[j] = static_cast<int32_t>(best);
    total += score[best];
    judged[best] = NAN;
  }
  std::sort(expert, expert + e.chosen);
  for (int64_t j = 0; j < e.chosen; j++) weight[j] = (e.normalised ? score[expert[j]] / total : score[expert[j]]) * e.scale * (e.expert_scale ? e.expert_scale[expert[j]] : 1);
}

// The pairs in the order of experts, and where the operands of each begin.
void sort(const Kernels& k, const Mixture& m, int64_t rows) {
  const int64_t count = m.count(), pairs = rows * m.each();
  std::fill(m.start, m.start + count + 2, 0);
  for (int64_t p = 0; p < pairs; p++) m.start[m.expert[p] + 2]++;
  for (int64_t i = 2; i < count + 2; i++) m.start[i] += m.start[i - 1];
  for (int64_t p = 0; p < pairs; p++) {
    const int32_t to = m.start[m.expert[p] + 1]++;
    m.row[to] = static_cast<int32_t>(p / m.each());
    m.place[p] = to;
  }
  for (int second = 0; second < 2; second++) {
    size_t at = 0;
    for (int64_t i = 0; i < count; i++) {
      m.at[second * (count + 2) + i] = static_cast<int64_t>(at);
      const int64_t own = m.start[i + 1] - m.start[i];
      if (own) at += aligned(k.operand_bytes(matrix((second ? m.e.down : m.e.up)[i]), own));
    }
  }
}

// Products of all pairs with the first, or the second, matrices of their experts; panels are shared out.
void multiply(const Forward& f, Crew& crew, const Mixture& m, bool second) {
  const int64_t count = m.count();
  const void* const* matrices = second ? m.e.down : m.e.up;
  float* out = second ? m.down : m.up;
  const int64_t ldo = second ? m.wide_down : m.wide_up, *at = m.at + second * (count + 2);
  int64_t all = 0;
  for (int64_t i = 0; i < count; i++)
    if (m.start[i + 1] > m.start[i]) all += matrix(matrices[i]).panels;
  const int64_t step = crew.threads == 1 ? INT64_MAX : std::max<int64_t>(8, all / (8 * crew.threads) / 4 * 4);
  auto pieces = [&](const Matrix& w) { return step == INT64_MAX ? 1 : (w.panels + step - 1) / step; };
  int64_t total = 0, expert = 0, before = 0;
  for (int64_t i = 0; i < count; i++)
    if (m.start[i + 1] > m.start[i]) total += pieces(matrix(matrices[i]));
  for (int64_t item; (item = crew.claim(total, 1)) >= 0;) {
    for (;; expert++) {  // items rise
      if (m.start[expert + 1] == m.start[expert]) continue;
      const int64_t own = pieces(matrix(matrices[expert]));
      if (item < before + own) break;
      before += own;
    }
    const Matrix& w = matrix(matrices[expert]);
    const int64_t from = crew.threads == 1 ? 0 : (item - before) * step, rows = m.start[expert + 1] - m.start[expert];
    f.k.multiply(w, rows, m.operand + at[expert], out + m.start[expert] * ldo, ldo, from, std::min(w.panels, step == INT64_MAX ? w.panels : from + step));
  }
  crew.barrier();
}

}  // namespace

size_t mixture_bytes(const Kernels& k, const dw_experts& e, int64_t width, int64_t rows) {
  size_t bytes;
  laid_out(k, e, width, rows, nullptr, bytes);
  return bytes;
}

void experts(const Forward& f, Crew& crew, const dw_part* last, const dw_part& part, char* memory) {
  const dw_experts& e = *part.experts;
  const int64_t width = f.s().width, rows = f.rows;
  size_t bytes;
  const Mixture m = laid_out(f.k, e, width, rows, memory, bytes);
  const int64_t each = m.each(), pairs = rows * each;
  const bool weighs_inputs = e.sigmoid == 2;
  const Matrix& router = matrix(e.router);
  f.each(crew, rows, [&](int64_t i) {
    float *tmp = f.own(crew), *row = m.rows + i * width;
    if (!part.joined) f.settle(i, last, tmp);
    const float* x = f.x + i * width;
    if (e.router_norm) {
      f.norm(part, x, e.router_norm, nullptr, width, tmp);
      f.norm(part, x, e.own_norm, nullptr, width, row);
      f.norm(part, x, part.norm, nullptr, width, m.shared + i * width);
    } else if (part.norm) f.norm(part, x, part.norm, part.norm_bias, width, row);
    else std::memcpy(row, x, 4 * width);
    f.k.convert(router, e.router_norm ? tmp : row, f.operand, i, rows);
    if (part.joined) f.settle(i, last, tmp);
  });
  f.multiply(crew, router, rows, f.wide);
  f.each(crew, rows, [&](int64_t i) {
    float* logits = f.branch + i * f.wide;
    int32_t* expert = m.expert + i * each;
    float *weight = m.weight + i * each, gate = e.shared_gate ? logits[e.count] : 0;
    choose(part, logits, f.own(crew), expert, weight);
    if (e.shared) expert[e.chosen] = e.count, weight[e.chosen] = e.shared_gate ? 1 / (1 + std::exp(-gate)) : 1;
  });
  if (!crew.me) sort(f.k, m, rows);
  crew.barrier();
  auto expert_of = [&](int64_t p) { return std::upper_bound(m.start, m.start + m.count() + 1, p) - m.start - 1; };
  f.each(crew, pairs, [&](int64_t p) {
    const int64_t i = expert_of(p), first = m.start[i];
    const float* row = (i < e.count ? m.rows : m.shared) + m.row[p] * width;
    if (weighs_inputs && i < e.count) {
      const float weight = m.weight[std::find(m.place + m.row[p] * each, m.place + (m.row[p] + 1) * each, p) - m.place];
      for (int64_t d = 0; d < width; d++) f.own(crew)[d] = row[d] * weight;
      row = f.own(crew);
    }
    f.k.convert(matrix(e.up[i]), row, m.operand + m.at[i], p - first, m.start[i + 1] - first);
  });
  multiply(f, crew, m, false);
  f.each(crew, pairs, [&](int64_t p) {
    const int64_t i = expert_of(p), first = m.start[i];
    const Matrix& down = matrix(e.down[i]);
    float *gate = m.up + p * m.wide_up, *tmp = f.own(crew), *up = matrix(e.up[i]).n > down.k ? gate + down.k : nullptr;
    for (int64_t d = 0; e.limit && i < e.count && d < down.k; d++) {
      gate[d] = std::min(gate[d], e.limit);
      up[d] = std::min(std::max(up[d], -e.limit), e.limit) + 1;
    }
    f.k.activate(part.activation, nullptr, gate, up, down.k, tmp);
    f.k.convert(down, tmp, m.operand + m.at[m.count() + 2 + i], p - first, m.start[i + 1] - first);
  });
  multiply(f, crew, m, true);
  f.each(crew, rows, [&](int64_t i) {
    float* out = f.branch + i * f.wide;
    std::fill(out, out + width, 0.f);
    const int64_t last = (i + 1) * each - (e.router_norm ? 1 : 0);
    for (int64_t j = i * each; j < last; j++) f.k.add(out, m.down + m.place[j] * m.wide_down, weighs_inputs ? 1 : m.weight[j], width);
    if (!e.router_norm) return;
    float* tmp = f.own(crew);
    f.norm(part, out, e.own_post_norm, nullptr, width, out);
    f.norm(part, m.down + m.place[last] * m.wide_down, e.shared_post_norm, nullptr, width, tmp);
    f.k.add(out, tmp, 1, width);
  });
}

}  // namespace dw
