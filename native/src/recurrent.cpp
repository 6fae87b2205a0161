#include "recurrent.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace dw {

constexpr int64_t CHANNELS = 256;  // of a short convolution that are walked together
constexpr int64_t MOST = 16;       // tokens that a convolution sees, at most

Recurrence::Recurrence(const dw_recurrence& given) : r(given), conv(static_cast<size_t>(given.kernel) * given.channels) {
  if (r.kernel < 1 || r.kernel > MOST) throw std::invalid_argument("a convolution sees 1 to 16 tokens");
  for (int64_t c = 0; c < r.channels; c++)
    for (int64_t j = 0; j < r.kernel; j++) conv[j * r.channels + c] = r.conv[c * r.kernel + j];
  r.conv = nullptr;
}

int64_t Recurrence::items() const { return convolution() ? (r.channels + CHANNELS - 1) / CHANNELS : r.value_heads; }

// Runs of channels that a part of a state reads, and where the convolution's outputs of each begin.
namespace {
struct Run {
  int64_t first, count;
};

// Up to three runs: query, key and value of a head; a block of channels.
int runs(const Recurrence& me, int64_t item, Run* run) {
  const dw_recurrence& r = me.r;
  if (me.convolution()) {
    run[0] = {item * CHANNELS, std::min<int64_t>(CHANNELS, r.channels - item * CHANNELS)};
    return 1;
  }
  const int64_t group = me.key_head(item), keys = me.keys(), values = me.values();
  const bool delta = r.kind == DW_DELTA;
  run[0] = {(delta ? 0 : values + keys) + group * r.key_dim, r.key_dim};            // query
  run[1] = {(delta ? keys : values) + group * r.key_dim, r.key_dim};                // key
  run[2] = {(delta ? 2 * keys : 0) + item * r.value_dim, r.value_dim};              // value
  return 3;
}

float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// One token into the matrix of a head: `taken` is its query, key and value, `gates` what the head's gates are made of; both
// `taken` and `spare` [value_dim] are written over. `answer`: what the head says, or null where nobody asks.
void fold(const Kernels& k, const dw_recurrence& r, int64_t head, const float* gates, const float* before, float* matrix, float* taken,
          float* spare, float* answer) {
  float *query = taken, *key = query + r.key_dim, *value = key + r.key_dim, decay, beta = 0;
  if (r.kind == DW_DELTA) {
    decay = std::exp(r.decay[head] * softplus(gates[r.value_heads + head] + r.step_bias[head]));
    beta = 1 / (1 + std::exp(-gates[head]));
    const float length = 1 / std::sqrt(static_cast<float>(r.key_dim));
    for (float* part : {query, key}) k.norm(false, part, nullptr, nullptr, r.key_dim, 1e-6f / r.key_dim, part);
    for (int64_t d = 0; d < r.key_dim; d++) query[d] *= length * length, key[d] *= length;
  } else {
    const float step = std::min(std::max(softplus(gates[head] + r.step_bias[head]), r.step_least), r.step_most);
    decay = std::exp(r.decay[head] * step);
    if (answer)
      for (int64_t d = 0; d < r.value_dim; d++) spare[d] = r.skip[head] * value[d];
    for (int64_t d = 0; d < r.value_dim; d++) value[d] *= step;
  }
  k.recur(before, matrix, r.key_dim, r.value_dim, key, query, value, decay, r.kind == DW_DELTA ? &beta : nullptr, answer ? answer : value);
  if (answer && r.kind != DW_DELTA)
    for (int64_t d = 0; d < r.value_dim; d++) answer[d] += spare[d];
}
}  // namespace

int64_t Recurrence::scratch(const dw_walks& walks) const {
  const int64_t own = convolution() ? CHANNELS : 2 * r.key_dim + r.value_dim;
  const int64_t state = up((r.kernel - 1) * own, 16) + up(static_cast<int64_t>(r.key_dim) * r.value_dim, 16);
  return state * (1 + walks.branches) + up(own, 16) * 2;
}

void Recurrence::save(const dw_walks& walks, int64_t number, const float* made, int64_t stride) const {
  const float* row = made + walks.saved[number] * stride;
  float* to = walks.pool + walks.places[number] * walks.pool_stride + r.input_at;
  if (!convolution()) std::memcpy(to, row + values(), 4 * r.inputs);
  else
    for (int64_t c = 0; c < r.channels; c++) to[c] = row[c] * row[2 * r.channels + c];
}

void Recurrence::walk(const Kernels& k, const dw_walks& walks, int64_t walk, int64_t item, const float* made, int64_t stride, float* out,
                      float* tmp) const {
  Run run[3];
  const int count = runs(*this, item, run);
  int64_t own = 0;
  for (int i = 0; i < count; i++) own += run[i].count;
  const int64_t window = (r.kernel - 1) * own, matrix = static_cast<int64_t>(r.key_dim) * r.value_dim;
  const int64_t whole = (r.kernel - 1) * static_cast<int64_t>(r.channels);  // of a kept state: its window
  float *token = tmp, *taken = token + up(own, 16), *states = taken + up(own, 16);
  // The state behind a step. Its matrix is read and written where it lies, in a kept state too.
  struct State {
    float* window;
    float* matrix;
  };
  auto room = [&](int64_t n) {
    float* at = states + n * (up(window, 16) + up(matrix, 16));
    return State{at, at + up(window, 16)};
  };
  // f(part of a kept state's window, the same in a window here, floats, which run it is of)
  auto windows = [&](float* state, float* own_window, auto f) {
    for (int64_t j = 0; j < r.kernel - 1; j++)
      for (int i = 0; i < count; own_window += run[i].count, i++) f(state + j * r.channels + run[i].first, own_window, 4 * run[i].count, i);
  };
  auto begin = [&](const float* start) {
    State state = room(0);
    if (!start) {
      std::memset(state.window, 0, 4 * window);
      std::memset(state.matrix, 0, 4 * matrix);
      return state;
    }
    float* from = const_cast<float*>(start) + r.state_at;  // only read: a step's matrix is written where it is kept, or here
    windows(from, state.window, [](float* kept, float* here, size_t bytes, int) { std::memcpy(here, kept, bytes); });
    state.matrix = from + whole + item * matrix;
    return state;
  };
  // of heads that share a key one keeps its window
  const bool first = convolution() || (r.tiled ? item < r.key_heads : item % (r.value_heads / r.key_heads) == 0);
  std::vector<int32_t> above;  // steps that others than the next go on from; their states lie in room(1), room(2), ...
  std::vector<State> waiting;
  State now = room(0);
  for (int64_t s = walk ? walks.end[walk - 1] : 0; s < walks.end[walk]; s++) {
    const int32_t parent = walks.parent[s], source = walks.source[s];
    if (parent < 0) {  // nothing goes on from what was before another start
      above.clear(), waiting.clear();
      now = begin(walks.starts[-1 - parent]);
    } else if (parent != s - 1) {
      while (above.back() != parent) above.pop_back(), waiting.pop_back();
      now = waiting.back();
    }
    // the token's inputs of these channels, behind those in the window
    const float* row = source < 0 ? walks.pool + (-1 - static_cast<int64_t>(source)) * walks.pool_stride + r.input_at
                                  : made + source * stride + (convolution() ? 0 : values());
    for (int64_t i = 0, at = 0; i < count; at += run[i].count, i++) std::memcpy(token + at, row + run[i].first, 4 * run[i].count);
    if (convolution() && source >= 0)
      for (int64_t c = 0; c < own; c++) token[c] *= row[2 * r.channels + run[0].first + c];
    float* answer = source < 0 ? nullptr : out + source * outputs() + (convolution() ? run[0].first : item * r.value_dim);
    const float* seen[MOST];
    for (int64_t i = 0, at = 0; i < count; at += run[i].count, i++) {
      for (int64_t j = 0; j < r.kernel; j++) seen[j] = j + 1 < r.kernel ? now.window + j * own + at : token + at;
      float* to = convolution() && answer ? answer : taken + at;
      k.convolve(seen, r.kernel, conv.data() + run[i].first, r.channels, r.conv_bias ? r.conv_bias + run[i].first : nullptr, run[i].count,
                 !convolution(), to);
    }
    State next = room(walks.branch[s] ? 1 + waiting.size() : 0);
    float* kept = walks.keep[s] < 0 ? nullptr : walks.kept[walks.keep[s]] + r.state_at;
    if (kept) next.matrix = kept + whole + item * matrix;
    if (window) {
      std::memmove(next.window, now.window + own, 4 * (window - own));
      std::memcpy(next.window + window - own, token, 4 * own);
    }
    if (!convolution()) fold(k, r, item, row + r.channels, now.matrix, next.matrix, taken, token, answer);
    now = next;
    if (kept)
      windows(kept, now.window, [&](float* to, float* here, size_t bytes, int i) {
        if (first || i == 2) std::memcpy(to, here, bytes);
      });
    if (walks.branch[s]) above.push_back(static_cast<int32_t>(s)), waiting.push_back(now);
  }
}

void Recurrence::finish(const Kernels& k, const float* made, float* given, float* out) const {
  if (convolution()) {
    for (int64_t c = 0; c < r.channels; c++) out[c] = made[r.channels + c] * given[c];
    return;
  }
  const int64_t n = values(), groups = r.kind == DW_DELTA ? r.value_heads : r.norm_groups, size = n / groups;
  if (!r.norm || r.gate_first) k.activate(SILU, nullptr, made, given, n, r.norm ? given : out);
  if (!r.norm) return;
  for (int64_t g = 0; g < groups; g++)
    k.norm(false, given + g * size, r.norm + (r.kind == DW_DELTA ? 0 : g * size), nullptr, size, r.eps, out + g * size);
  if (!r.gate_first) k.activate(SILU, nullptr, made, out, n, out);
}

const char* wrong(const dw_walks& walks, int64_t rows) {
  auto within = [](int64_t i, int64_t count) { return i >= 0 && i < count; };
  std::vector<int64_t> above;  // as in `walk`, whose rooms are counted
  for (int64_t w = 0; w < walks.walks; w++, above.clear())
    for (int64_t first = w ? walks.end[w - 1] : 0, s = first; s < walks.end[w]; s++) {
      if (walks.parent[s] < 0 ? !within(-1 - static_cast<int64_t>(walks.parent[s]), walks.starts_count) : !within(walks.parent[s] - first, s - first))
        return "a step goes on from one that is not there";
      if (walks.parent[s] < 0) above.clear();
      else if (walks.parent[s] != s - 1) {
        while (!above.empty() && above.back() != walks.parent[s]) above.pop_back();
        if (above.empty()) return "a step goes on from one that is gone";
      }
      if (walks.branch[s]) above.push_back(s);
      if (static_cast<int64_t>(above.size()) > walks.branches) return "more steps branch than there is room for";
      if (walks.source[s] < 0 ? !within(-1 - static_cast<int64_t>(walks.source[s]), walks.pool_rows) : walks.source[s] >= rows)
        return "a step reads inputs that are not there";
      if (walks.keep[s] >= walks.kept_count) return "a state is kept where there is no room";
    }
  for (int64_t i = 0; i < walks.saved_count; i++)
    if (!within(walks.saved[i], rows) || !within(walks.places[i], walks.pool_rows)) return "inputs are kept where there is no room";
  return nullptr;
}

}  // namespace dw
