// What the threads of one forward share, and what each part of a layer has to do with the rows.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "matrix.h"
#include "model.h"
#include "rows.h"
#include "team.h"

namespace dw {

inline const Matrix& matrix(const void* p) { return *static_cast<const Matrix*>(p); }
inline int64_t padded(const Matrix& m) { return m.panels * PANEL; }

// How many slots row i sees.
inline int64_t length(const dw_batch& batch, int64_t i) {
  return batch.seen[i] + batch.path_end[i] - (i ? batch.path_end[i - 1] : 0);
}

constexpr int64_t QUERIES = 24;  // that attend to a head together

// What the threads of one forward share.
struct Forward {
  const Model& model;
  const dw_batch& batch;
  const Kernels& k;
  float* x;          // [rows][width] residual stream
  float* branch;     // [rows][wide] output of a product
  float* inner;      // [rows][heads * head_dim] attention
  float* inputs;     // [rows][inputs * input_width] of layers, beside the rows; or null
  void* operand;     // input of a product
  int32_t* lists;    // the rows' slots in order of position
  const int64_t* list_at;  // [rows] where each begins
  const std::vector<int64_t>& bundles;  // where rows that attend together begin; the end
  float* scratch;    // [threads][scratch_size]
  int64_t wide, head_wide;  // floats between rows of branch, and of logits there
  int64_t scratch_size;
  const dw_walks* walks;  // of recurrent layers, or null
  float* latents;    // [rows][latent_wide] of keys and values
  int64_t latent_wide;
  float* beside;     // [rows][width] of the model's entry, or null: the batch's
  int64_t rows;      // that are computed: all, or from the last layer's attention on the wanted ones alone

  const dw_shape& s() const { return model.shape; }

  int64_t wanted_row(int64_t i) const { return batch.wanted ? batch.wanted[i] : batch.wanted_first + i; }
  const float* wanted(int64_t i) const { return x + (rows < batch.rows ? i : wanted_row(i)) * s().width; }

  // Whether of rows that nobody wants only the keys and values of a layer are needed: nothing reads the others' output.
  bool ends_at_wanted(int layer) const {
    const auto& parts = model.layers[layer];
    bool plain = batch.stop == static_cast<int>(model.layers.size()) && batch.wanted_count < batch.rows && !batch.output;
    for (int above = layer + 1; plain && above < batch.stop; above++) plain = model.layers[above].empty();
    for (int n = 0; n < batch.reads_count; n++) plain = plain && batch.reads_after[n] <= layer;
    for (size_t n = 0; n < parts.size(); n++)
      plain = plain && !parts[n].joined && (n ? parts[n].kind == DW_FEED_FORWARD || parts[n].kind == DW_EXPERTS : parts[n].kind == DW_ATTENTION);
    for (int64_t i = 1; plain && i < batch.wanted_count; i++) plain = wanted_row(i - 1) < wanted_row(i);
    return plain;
  }

  float* own(const Crew& crew) const { return scratch + crew.me * scratch_size; }

  void norm(const dw_part& part, const float* in, const float* weight, const float* bias, int64_t n, float* out) const {
    k.norm(part.layer_norm, in, weight, bias, n, part.eps, out);
  }
  void last_norm(const float* row, float* out) const { k.norm(s().layer_norm, row, s().norm, s().norm_bias, s().width, s().eps, out); }

  // One product, put from `first` on in the rows of branch; the rows' operand is ready. Threads take panels as they come.
  void multiply(Crew& crew, const Matrix& m, int64_t rows, int64_t ldo, int64_t first = 0) const {
    if (!rows) return;
    int64_t step = std::max<int64_t>(4, m.panels / (4 * crew.threads) / 4 * 4);
    if (crew.threads == 1) step = m.panels;
    for (int64_t from; (from = crew.claim(m.panels, step)) >= 0;)
      k.multiply(m, rows, operand, branch + first, ldo, from, std::min(m.panels, from + step));
    crew.barrier();
  }

  // Add what the part before left to row i.
  void settle(int64_t i, const dw_part* part, float* tmp) const {
    if (!part) return;
    float *row = x + i * s().width, *out = branch + i * wide;
    if (part->post_norm) {
      norm(*part, out, part->post_norm, part->post_norm_bias, s().width, tmp);
      out = tmp;
    }
    k.add(row, out, part->multiplier, s().width);
    for (int64_t d = 0; part->scalar && d < s().width; d++) row[d] *= *part->scalar;
  }

  // f(row) for all rows, shared out; then all threads meet.
  template <class F> void each(Crew& crew, int64_t count, F f) const {
    for (int64_t i = crew.me; i < count; i += crew.threads) f(i);
    crew.barrier();
  }

  // Rows settled, normalised and made the operand of a part's first product, behind what it reads beside them.
  void enter(Crew& crew, const dw_part* last, const dw_part& part) const {
    const Matrix& m = matrix(part.up);
    each(crew, rows, [&](int64_t i) {
      float* tmp = own(crew);
      const int64_t width = s().width, ahead = m.k - width;
      if (!part.joined) settle(i, last, tmp);
      if (ahead) std::memcpy(tmp, (beside ? beside : batch.beside) + i * width, 4 * width);
      if (part.norm) norm(part, x + i * width, part.norm, part.norm_bias, width, tmp + ahead);
      else std::memcpy(tmp + ahead, x + i * width, 4 * width);
      k.convert(m, tmp, operand, i, rows);
      if (part.joined) settle(i, last, tmp);
    });
    multiply(crew, m, rows, wide);
  }

  PlaneType plane_type() const { return static_cast<PlaneType>(batch.plane_type); }

  // The row of a slot of a segment's extent in a plane, of one head.
  char* plane_row(const dw_part& part, int32_t plane, int64_t segment, int64_t head, int64_t slot) const {
    const int64_t row = static_cast<int64_t>(batch.base[segment]) * part.kv_heads + head * batch.capacity[segment] + slot;
    return static_cast<char*>(batch.planes[plane]) + row * row_bytes(plane_type(), plane == part.keys ? part.head_dim : part.value_dim);
  }

  void turn(const dw_part& part, int64_t i, float* x) const {
    const int64_t half = part.rotary_dim / 2, at = batch.position[i] * half;
    k.rotate(x, batch.cos[part.rope] + at, batch.sin[part.rope] + at, half);
  }

  // Queries [count] that lie `stride` apart, times what they grow by with their position.
  void grow(const dw_part& part, int64_t i, float* first, int64_t count, int64_t stride) const {
    if (!part.growth) return;
    const float factor = 1 + part.growth * std::log1p(static_cast<float>((batch.position[i] + part.growth_start) / part.growth_length));
    for (int64_t h = 0; h < count; h++)
      for (int64_t d = 0; d < part.head_dim; d++) first[h * stride + d] *= factor;
  }

  // Norms of queries, or of keys: of each of `count` heads that lie `stride` apart, or of all of them together.
  void normalise_heads(const dw_part& part, float* first, int64_t count, int64_t stride, const float* weight, const float* bias, float* tmp) const {
    const int64_t dim = part.head_dim, each = part.qk_norm == DW_HEAD_NORMS ? dim : 0;
    if (part.qk_norm == DW_WHOLE_NORM) {
      norm(part, first, weight, bias, count * dim, tmp);
      std::memcpy(first, tmp, 4 * count * dim);
      return;
    }
    for (int64_t h = 0; h < count; h++) {
      norm(part, first + h * stride, weight + h * each, bias ? bias + h * each : nullptr, dim, tmp);
      std::memcpy(first + h * stride, tmp, 4 * dim);
    }
  }

  // Queries and keys of row i normalised and turned; key and value put into the planes, unless an earlier layer did.
  void place(const dw_part& part, int64_t i, float* tmp) const {
    const int64_t dim = part.head_dim, heads = part.heads, kv = part.borrowed ? 0 : part.kv_heads;
    const int64_t stride = part.gate ? 2 * dim : dim;
    float *row = branch + i * wide, *keys = row + heads * stride, *values = keys + kv * dim;
    auto norms = [&] {
      if (!part.q_norm) return;
      normalise_heads(part, row, heads, stride, part.q_norm, part.q_norm_bias, tmp);
      if (kv) normalise_heads(part, keys, kv, dim, part.k_norm, part.k_norm_bias, tmp);
    };
    for (float* v = row; part.clip && v < values + kv * part.value_dim; v++) *v = std::min(std::max(*v, -part.clip), part.clip);
    if (!part.late_norm) norms();
    for (int64_t h = 0; part.rotary_dim && h < heads + kv; h++) turn(part, i, h < heads ? row + h * stride : keys + (h - heads) * dim);
    if (part.late_norm) norms();
    grow(part, i, row, heads, stride);
    const int64_t segment = batch.segment[i];
    for (int64_t h = 0; h < kv; h++) {
      float* value = values + h * part.value_dim;
      if (part.value_norm) k.norm(false, value, nullptr, nullptr, part.value_dim, part.eps, value);
      k.keep(plane_type(), keys + h * dim, dim, plane_row(part, part.keys, segment, h, batch.slot[i]));
      k.keep(plane_type(), value, part.value_dim, plane_row(part, part.values, segment, h, batch.slot[i]));
    }
  }

  // How many of the first of `all` positions the last one does not see.
  static int64_t out_of_sight(const dw_part& part, int64_t all) {
    if (part.window < 0) return (all - 1) / -part.window * -part.window;
    return part.window && all > part.window ? all - part.window : 0;
  }

  // Attention of rows [first, last) of a segment with the query heads of one head of keys and values.
  void attend(const dw_part& part, int64_t first, int64_t last, int64_t h, float* scores) const {
    const int64_t dim = part.head_dim, value_dim = part.value_dim, group = part.heads / part.kv_heads, segment = batch.segment[first];
    const char *keys = plane_row(part, part.keys, segment, h, 0), *values = plane_row(part, part.values, segment, h, 0);
    for (int64_t from = 0; from < group; from += QUERIES) {
      Query query[QUERIES];
      int count = 0;
      int64_t shared = 0, room = 0;
      for (int64_t i = first; i < last; i++) {
        const int64_t all = length(batch, i), hidden = out_of_sight(part, all), n = all - hidden;
        const int64_t trunk = last == first + 1 ? n : hidden ? 0 : batch.seen[i] / PANEL * PANEL;
        shared = i == first ? trunk : std::min(shared, trunk);
        for (int64_t g = from; g < std::min(from + QUERIES, group); g++, room += up(n, PANEL))
          query[count++] = {branch + i * wide + (h * group + g) * (part.gate ? 2 * dim : dim), lists + list_at[i] + hidden, n,
                            scores + room, inner + (i * part.heads + h * group + g) * value_dim, part.sinks ? part.sinks + h * group + g : nullptr,
                            part.bias ? part.bias + (h * group + g) * part.bias_stride + hidden : nullptr};
      }
      k.attend(query, count, shared, keys, values, plane_type(), dim, value_dim, part.scale, part.softcap);
      for (int q = 0; part.gate && q < count; q++) k.damp(query[q].out, query[q].q + dim, dim);
    }
  }

  // The heads' queries, and the rest of their keys, then their values, from latents: to the rows of branch.
  void expand(Crew& crew, const dw_part& part) const {
    const dw_latent& latent = *part.latent;
    float* tmp = own(crew);
    const int64_t first = latent.q_up ? latent.q_rank : part.heads * part.head_dim;  // of what is about keys and values
    auto normed = [&](const Matrix& m, const float* row, const float* weight, int64_t i) {
      k.norm(false, row, weight, nullptr, m.k, latent.eps, tmp);
      k.convert(m, tmp, operand, i, batch.rows);
    };
    each(crew, batch.rows, [&](int64_t i) {
      std::memcpy(latents + i * latent_wide, branch + i * wide + first, 4 * (latent.kv_rank + part.rotary_dim));
      if (latent.q_up) normed(matrix(latent.q_up), branch + i * wide, latent.q_norm, i);
    });
    if (latent.q_up) multiply(crew, matrix(latent.q_up), batch.rows, wide);
    each(crew, batch.rows, [&](int64_t i) { normed(matrix(latent.kv_up), latents + i * latent_wide, latent.kv_norm, i); });
    multiply(crew, matrix(latent.kv_up), batch.rows, wide, part.heads * part.head_dim);
  }

  // `place` of a row that `expand` has made.
  void place_latent(const dw_part& part, int64_t i, float* key) const {
    const int64_t dim = part.head_dim, turned = part.rotary_dim, rest = dim - turned, segment = batch.segment[i];
    float *row = branch + i * wide, *rests = row + part.heads * dim, *values = rests + part.heads * rest;
    std::memcpy(key, latents + i * latent_wide + part.latent->kv_rank, 4 * turned);
    turn(part, i, key);
    for (int64_t h = 0; h < part.heads; h++) {
      turn(part, i, row + h * dim);
      std::memcpy(key + turned, rests + h * rest, 4 * rest);
      k.keep(plane_type(), key, dim, plane_row(part, part.keys, segment, h, batch.slot[i]));
      k.keep(plane_type(), values + h * part.value_dim, part.value_dim, plane_row(part, part.values, segment, h, batch.slot[i]));
    }
    grow(part, i, row, part.heads, dim);
  }

  // With `ends` the wanted rows alone are answered, side by side, and the others' places are free.
  void attention(Crew& crew, const dw_part* last, const dw_part& part, bool ends) const {
    enter(crew, last, part);
    float* tmp = own(crew);
    if (part.latent) expand(crew, part);
    each(crew, batch.rows, [&](int64_t i) { part.latent ? place_latent(part, i, tmp) : place(part, i, tmp); });
    const int64_t kv = part.kv_heads, count = ends ? batch.wanted_count : bundles.size() - 1, going_on = ends ? count : rows;
    for (int64_t item; (item = crew.claim(count * kv, 1)) >= 0;) {
      const int64_t n = item / kv, first = ends ? wanted_row(n) : bundles[n];
      attend(part, first, ends ? first + 1 : bundles[n + 1], item % kv, tmp);
    }
    crew.barrier();
    const Matrix& m = matrix(part.down);
    each(crew, going_on, [&](int64_t i) {
      float* row = inner + (ends ? wanted_row(i) : i) * m.k;
      if (part.inner_norm) norm(part, row, part.inner_norm, nullptr, m.k, row);
      k.convert(m, row, operand, i, going_on);
    });
    for (int64_t i = 0; ends && !crew.me && i < count; i++)  // nobody reads x before all have met
      if (i != wanted_row(i)) std::memcpy(x + i * s().width, x + wanted_row(i) * s().width, 4 * s().width);
    multiply(crew, m, going_on, wide);
  }

  void recur(Crew& crew, const dw_part* last, const dw_part& part) const {
    enter(crew, last, part);
    const Recurrence& recurrence = model.recurrences[part.rope];
    const int64_t items = recurrence.items();
    float* tmp = own(crew);
    if (recurrence.r.scale)
      each(crew, batch.rows, [&](int64_t i) {
        for (int64_t d = 0; d < recurrence.made(); d++) branch[i * wide + d] *= recurrence.r.scale[d];
      });
    for (int64_t i = crew.me; i < walks->saved_count; i += crew.threads) recurrence.save(*walks, i, branch, wide);
    for (int64_t item; (item = crew.claim(walks->walks * items, 1)) >= 0;)
      recurrence.walk(k, *walks, item / items, item % items, branch, wide, inner, tmp);
    crew.barrier();
    const Matrix& m = matrix(part.down);
    each(crew, batch.rows, [&](int64_t i) {
      recurrence.finish(k, branch + i * wide, inner + i * recurrence.outputs(), tmp);
      k.convert(m, tmp, operand, i, batch.rows);
    });
    multiply(crew, m, batch.rows, wide);
  }

  void feed(Crew& crew, const dw_part* last, const dw_part& part) const {
    enter(crew, last, part);
    const Matrix& m = matrix(part.down);
    each(crew, rows, [&](int64_t i) {
      float *gate = branch + i * wide, *tmp = own(crew);
      for (int64_t d = 0; part.gate_scale != 1 && part.gate_scale && d < m.k; d++) gate[d] *= part.gate_scale;
      const float* up = part.kind == DW_PER_LAYER_INPUT ? input(i) + part.input * m.k : part.gated ? gate + m.k : nullptr;
      k.activate(part.activation, part.numbers, gate, up, m.k, tmp);
      if (part.inner_norm) norm(part, tmp, part.inner_norm, nullptr, m.k, tmp);
      k.convert(m, tmp, operand, i, rows);
    });
    multiply(crew, m, rows, wide);
  }

  // Rows, and what lies beside them, from what is given of another model.
  void begin(Crew& crew) const {
    const dw_entry& e = model.entry;
    const Matrix& m = matrix(e.fc);
    const int64_t width = s().width, columns = m.k;
    auto is_state = [&](int64_t i) { return std::isnan(batch.given[(i + 1) * columns - 1]); };
    bool states = true;
    for (int64_t i = 0; i < batch.rows; i++) states = states && is_state(i);
    each(crew, batch.rows, [&](int64_t i) {
      float *tmp = own(crew), *by = beside + i * width;
      const float* given = batch.given + i * columns;
      if (batch.beside) std::memcpy(tmp, batch.beside + i * width, 4 * width);
      else unpack(matrix(e.embeddings), batch.token[i], tmp);
      k.norm(false, tmp, e.beside_norm, nullptr, width, e.eps, by);
      if (states) return;
      if (is_state(i)) std::fill(tmp, tmp + columns, 0.0f);
      else if (!e.given_norm) std::memcpy(tmp, given, 4 * columns);
      else
        for (int64_t n = columns / e.groups, at = 0; at < columns; at += n) k.norm(false, given + at, e.given_norm + at, nullptr, n, e.eps, tmp + at);
      k.convert(m, tmp, operand, i, batch.rows);
    });
    if (!states) multiply(crew, m, batch.rows, wide);
    each(crew, batch.rows, [&](int64_t i) {
      const float* from = is_state(i) ? batch.given + i * columns : branch + i * wide;
      if (e.state_norm) k.norm(false, from, e.state_norm, nullptr, width, e.eps, x + i * width);
      else std::memcpy(x + i * width, from, 4 * width);
    });
  }

  void embed(int64_t i) const {
    if (batch.given) return;
    float* row = x + i * s().width;
    if (batch.hidden) {
      std::memcpy(row, batch.hidden + i * s().width, 4 * s().width);
      return;
    }
    scaled(i, row);
    for (int64_t d = 0; s().positions && d < s().width; d++) row[d] += position(i, d);
    if (model.embedding_norm) k.norm(s().layer_norm, row, model.embedding_norm, model.embedding_norm_bias, s().width, s().eps, row);
  }

  // The token's embedding.
  void scaled(int64_t i, float* row) const {
    unpack(matrix(s().embeddings), batch.token[i], row);
    for (int64_t d = 0; d < s().width; d++) row[d] *= s().embedding_scale;
  }

  float* input(int64_t i) const { return inputs + i * s().inputs * s().input_width; }

  // What the layers get of the rows' tokens beside the rows.
  void give_inputs(Crew& crew) const {
    const Matrix& m = matrix(s().input_projection);
    const int64_t width = s().input_width;
    const float scale = 1 / std::sqrt(static_cast<float>(s().width)), half = std::sqrt(0.5f);
    each(crew, batch.rows, [&](int64_t i) {
      scaled(i, own(crew));
      k.convert(m, own(crew), operand, i, batch.rows);
    });
    multiply(crew, m, batch.rows, wide);
    each(crew, batch.rows, [&](int64_t i) {
      float *made = branch + i * wide, *given = input(i), *tmp = own(crew);
      unpack(matrix(s().input_table), batch.token[i], given);
      for (int64_t d = 0; d < m.n; d++) made[d] *= scale;
      for (int64_t at = 0; at < m.n; at += width) {
        k.norm(false, made + at, s().input_norm, nullptr, width, s().eps, tmp);
        for (int64_t d = 0; d < width; d++) given[at + d] = (given[at + d] * s().input_scale + tmp[d]) * half;
      }
    });
  }

  float position(int64_t i, int64_t d) const {
    const int64_t at = (batch.position[i] + s().position_offset) * s().width + d;
    return s().half_positions ? widened(static_cast<const bf16*>(s().positions)[at]) : static_cast<const float*>(s().positions)[at];
  }

  // The slots that row i sees, in order of position.
  void list(int64_t i) const {
    int64_t seen = batch.seen[i], from = i ? batch.path_end[i - 1] : 0;
    int32_t* to = lists + list_at[i];
    std::memcpy(to, batch.trunk[batch.segment[i]], 4 * seen);
    std::memcpy(to + seen, batch.path + from, 4 * (batch.path_end[i] - from));
  }

  // States that are asked for after so many layers: of the wanted rows, and of all.
  void keep(Crew& crew, int after) const {
    auto copy = [&](const float* row, float* to) {
      if (after == static_cast<int>(model.layers.size())) last_norm(row, to);
      else std::memcpy(to, row, 4 * s().width);
    };
    for (int n = 0; n < batch.reads_count; n++)
      for (int64_t i = crew.me; batch.reads_after[n] == after && i < batch.rows; i += crew.threads)
        copy(x + i * s().width, batch.reads[n] + i * s().width);
    for (int n = 0; n < batch.states_count; n++)
      for (int64_t i = crew.me; batch.states_after[n] == after && i < batch.wanted_count; i += crew.threads)
        copy(wanted(i), batch.states[n] + i * s().width);
  }

  void logits(Crew& crew) const {
    const Matrix& m = matrix(s().head);
    each(crew, batch.wanted_count, [&](int64_t i) {
      float* tmp = own(crew);
      last_norm(wanted(i), tmp);
      k.convert(m, tmp, operand, i, batch.wanted_count);
    });
    multiply(crew, m, batch.wanted_count, head_wide);
    each(crew, batch.wanted_count, [&](int64_t i) {
      float* row = branch + i * head_wide;
      for (int64_t d = 0; s().logit_scale != 1 && d < s().vocabulary; d++) row[d] *= s().logit_scale;
      if (s().logit_softcap) k.cap(row, s().logit_softcap, s().vocabulary);
      k.top(row, s().vocabulary, batch.best + i, batch.log_sums + i);
      const int64_t size = model.tokens.empty() ? s().vocabulary : model.vocabulary, count = batch.leading_count;
      float* to = batch.logits + i * size;
      if (model.tokens.empty()) {
        std::memcpy(to, row, 4 * size);
      } else {
        std::fill(to, to + size, model.absent);
        for (int64_t d = 0; d < s().vocabulary; d++) to[model.tokens[d]] = row[d];
        batch.best[i] = model.tokens[batch.best[i]];
      }
      if (count) leading(size, to, count, batch.leading + i * count, batch.leading_logits + i * count);
    });
  }
};

}  // namespace dw
