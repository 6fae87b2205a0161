#include "abi.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "matrix.h"
#include "model.h"
#include "rows.h"
#include "team.h"

namespace dw {
bool ready();
const char* runnable();
}  // namespace dw

using namespace dw;

static thread_local std::string failure;

// What f() returns, or `instead` with the reason kept.
template <class R, class F> static R guarded(R instead, F f) {
  try {
    if (!ready()) throw std::runtime_error("no kernel set of that name runs here");
    return f();
  } catch (const std::bad_alloc&) {
    failure = "out of memory";
  } catch (const std::exception& error) {
    failure = error.what();
  }
  return instead;
}

// The places where weights pass each u times their sum, which is returned: first among blocks, whose weights block(first, count)
// gives, then within one. No places where the sum is 0 or not finite.
template <class F> static double drawn(int64_t n, int64_t draws, const double* u, int64_t* place, F block) {
  static thread_local std::vector<double> sums;
  sums.clear();
  double total = 0;
  for (int64_t first = 0; first < n; first += BLOCK) {
    const int64_t count = std::min(BLOCK, n - first);
    sums.push_back(kernels().whole_sum(block(first, count), count));
    total += sums.back();
  }
  for (int64_t draw = 0; draw < draws && possible(total); draw++) {
    const double sought = u[draw] * total;
    double before = 0;
    int64_t last = 0;
    size_t at = 0;
    while (at + 1 < sums.size() && before + sums[at] <= sought) before += sums[at++];
    const int64_t first = static_cast<int64_t>(at) * BLOCK, count = std::min(BLOCK, n - first);
    const float* weight = block(first, count);
    for (int64_t i = 0; i < count; i++) {
      if (!(weight[i] > 0)) continue;
      last = i;  // where rounding leads past the end, the last one that is possible
      if ((before += weight[i]) > sought) break;
    }
    place[draw] = first + last;
  }
  return total;
}

int dw_version(void) { return DW_VERSION; }
const char* dw_error(void) { return failure.c_str(); }
const char* dw_kernels(void) { return ready() ? kernels().name : ""; }
const char* dw_runnable(void) { return runnable(); }

void* dw_matrix(int type, int64_t n, int64_t k, const void* weight, int half, const float* bias, int threads) {
  return guarded<void*>(nullptr, [&] { return pack(static_cast<Type>(type), n, k, weight, half, bias, threads); });
}
void* dw_matrix_grouped(int type, int64_t n, int64_t k, const uint8_t* numbers, const uint16_t* scale, const uint16_t* shift,
                        const uint8_t* zero, const float* bias, int threads) {
  return guarded<void*>(nullptr, [&] { return pack_grouped(static_cast<Type>(type), n, k, numbers, scale, shift, zero, bias, threads); });
}
void* dw_matrix_stored(const dw_stored* part, int parts, int64_t k, const float* bias, int threads) {
  return guarded<void*>(nullptr, [&] {
    std::vector<Stored> stored;
    for (int i = 0; i < parts; i++)
      stored.push_back({static_cast<int32_t>(part[i].format), part[i].rows, part[i].stride, static_cast<const uint8_t*>(part[i].data), part[i].order, part[i].mapped != 0});
    return pack_stored(stored.data(), parts, k, bias, threads);
  });
}
int dw_matrix_order(void* matrix, const int64_t* order) {
  return guarded(1, [&] {
    reorder(*static_cast<Matrix*>(matrix), order);
    return 0;
  });
}
int dw_matrix_rows(const void* matrix, int64_t count, const int64_t* row, float* out, int threads) {
  return guarded(1, [&] {
    const Matrix& m = *static_cast<const Matrix*>(matrix);
    for (int64_t i = 0; i < count; i++)
      if (row[i] < 0 || row[i] >= m.n) throw std::out_of_range("a row is asked for that the matrix does not have");
    together(count < 8 ? 1 : threads, [&](Crew& crew) {
      for (int64_t i; (i = crew.claim(count, 4)) >= 0;)
        for (int64_t j = i; j < std::min(count, i + 4); j++) unpack(m, row[j], out + j * m.k);
    });
    return 0;
  });
}
size_t dw_matrix_bytes(const void* m) { return static_cast<const Matrix*>(m)->bytes; }
void dw_matrix_free(void* m) { release(static_cast<Matrix*>(m)); }

int dw_matrix_apply(const void* matrix, int64_t rows, const float* x, float* out, int threads) {
  return guarded(1, [&] {
    const Matrix& m = *static_cast<const Matrix*>(matrix);
    const Kernels& k = kernels();
    const int64_t wide = m.panels * PANEL;
    Buffer operand, found;
    char* in = operand.room<char>(k.operand_bytes(m, rows));
    float* to = wide == m.n ? out : found.room<float>(rows * wide);
    together(threads, [&](Crew& crew) {
      for (int64_t i = crew.me; i < rows; i += crew.threads) k.convert(m, x + i * m.k, in, i, rows);
      crew.barrier();
      for (int64_t p; (p = crew.claim(m.panels, 8)) >= 0;) k.multiply(m, rows, in, to, wide, p, p + 8 < m.panels ? p + 8 : m.panels);
    });
    for (int64_t i = 0; to != out && i < rows; i++) std::memcpy(out + i * m.n, to + i * wide, 4 * m.n);
    return 0;
  });
}

int dw_softmax(int64_t rows, int64_t n, const float* x, float scale, float* out) {
  return guarded(1, [&] {
    for (int64_t i = 0; i < rows; i++) kernels().softmax(x + i * n, n, scale, out + i * n);
    return 0;
  });
}
int dw_block_sums(int64_t n, int64_t block, const float* weight, double* sums) {
  return guarded(1, [&] {
    for (int64_t i = 0; i * block < n; i++) sums[i] = kernels().whole_sum(weight + i * block, std::min(block, n - i * block));
    return 0;
  });
}
int dw_draws(int64_t n, const float* weight, int64_t count, const double* u, int64_t* place) {
  return guarded(1, [&] { return possible(drawn(n, count, u, place, [&](int64_t first, int64_t) { return weight + first; })) ? 0 : 1; });
}
int64_t dw_draw_logits(int64_t n, const float* x, int64_t best, float scale, double u, double* log_prob) {
  return guarded<int64_t>(-1, [&] {
    float made[BLOCK];
    int64_t token = -1;
    const double sum = drawn(n, 1, &u, &token, [&](int64_t first, int64_t count) {
      kernels().exps(x + first, count, x[best], scale, made);
      return made;
    });
    if (token >= 0) *log_prob = static_cast<double>(scale) * (x[token] - x[best]) - std::log(sum);
    return token;
  });
}
int dw_shares(int64_t beams, int64_t n, const float* const* x, const double* score, const double* log_sum, float scale, double* top, double* factor, double* sums) {
  return guarded(1, [&] { return share(beams, n, x, score, log_sum, scale, top, factor, sums) ? 0 : 1; });
}
int dw_shares_all(int64_t beams, int64_t n, int ends, const float* const* x, float scale, const double* top, const double* factor, float* out) {
  return guarded(1, [&] {
    for (int64_t beam = 0; beam < beams; beam++) all_shares({beams, n, x, scale, top, factor, nullptr}, beam, ends, out + beam * (ends + n));
    return 0;
  });
}
int dw_shares_draws(int64_t beams, int64_t n, int ends, const float* const* x, float scale, const double* top, const double* factor, const double* sums,
                    int64_t changed, const int64_t* where, const double* weight, int64_t draws, const double* u, int64_t* place) {
  return guarded(1, [&] { return draw_shares({beams, n, x, scale, top, factor, sums}, ends, changed, where, weight, draws, u, place) ? 0 : 1; });
}
double dw_excess(int64_t n, const float* p, const float* q, float factor, int64_t without, float* out) {
  return guarded<double>(0, [&] {
    double sum = kernels().excess(p, q, factor, n, out);
    if (0 <= without && without < n && out[without] != 0) {
      out[without] = 0;
      sum = 0;
      for (int64_t first = 0; first < n; first += BLOCK) sum += kernels().whole_sum(out + first, std::min(BLOCK, n - first));
    }
    return sum;
  });
}
int dw_leading(int64_t rows, int64_t n, const float* const* x, int64_t count, int64_t* place, float* value) {
  return guarded(1, [&] {
    for (int64_t i = 0; i < rows; i++) leading(n, x[i], count, place + i * count, value + i * count);
    return 0;
  });
}

void* dw_model(const dw_shape* shape, int layers) {
  return guarded<void*>(nullptr, [&] { return new Model(*shape, layers); });
}
int dw_model_part(void* model, int layer, const dw_part* part) {
  return guarded(1, [&] {
    std::vector<dw_part>& parts = static_cast<Model*>(model)->layers.at(layer);
    parts.push_back(*part);
    if (!part->value_dim) parts.back().value_dim = part->head_dim;
    if (!part->group_top) parts.back().group_top = 2;
    return 0;
  });
}
int dw_model_recurrence(void* model, int layer, const dw_part* part, const dw_recurrence* recurrence) {
  return guarded(1, [&] {
    Model& made = *static_cast<Model*>(model);
    dw_part own = *part;
    own.kind = DW_RECURRENT;
    own.rope = static_cast<int32_t>(made.recurrences.size());
    made.recurrences.emplace_back(*recurrence);
    made.layers.at(layer).push_back(own);
    return 0;
  });
}
int dw_model_embedding_norm(void* model, const float* weight, const float* bias) {
  return guarded(1, [&] {
    static_cast<Model*>(model)->embedding_norm = weight;
    static_cast<Model*>(model)->embedding_norm_bias = bias;
    return 0;
  });
}
int dw_model_entry(void* model, const dw_entry* entry) {
  return guarded(1, [&] {
    static_cast<Model*>(model)->entry = *entry;
    return 0;
  });
}
int dw_model_tokens(void* model, const int64_t* token, int64_t count, float absent) {
  return guarded(1, [&] {
    Model& made = *static_cast<Model*>(model);
    const int64_t known = made.shape.vocabulary;
    for (int64_t i = 0; i < known; i++)
      if (token[i] < 0 || token[i] >= count) throw std::out_of_range("an output's token is not in the vocabulary");
    made.tokens.assign(token, token + known);
    made.vocabulary = count;
    made.absent = absent;
    return 0;
  });
}
void dw_model_free(void* model) { delete static_cast<Model*>(model); }
int dw_forward_walks(void* model, const dw_batch* batch, const dw_walks* walks) {
  return guarded(1, [&] {
    static_cast<Model*>(model)->forward(*batch, walks);
    return 0;
  });
}
int dw_forward(void* model, const dw_batch* batch) {
  return guarded(1, [&] {
    static_cast<Model*>(model)->forward(*batch);
    return 0;
  });
}
