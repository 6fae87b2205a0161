#include "model.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>
#include <stdexcept>

#include "experts.h"
#include "forward.h"
#include "matrix.h"
#include "team.h"

namespace dw {

Buffer::~Buffer() { std::free(data); }

void* Buffer::bytes(size_t wanted) {
  if (wanted > size) {
    std::free(data);
    size = 0;
    data = std::aligned_alloc(64, up(wanted, 4096));
    if (!data) throw std::bad_alloc();
    size = up(wanted, 4096);
  }
  return data;
}

// One thread's share of all layers.
static void run(Forward f, Crew& crew, char* mixture) {
  const dw_batch& batch = f.batch;
  f.each(crew, batch.rows, [&](int64_t i) {
    f.embed(i);
    f.list(i);
  });
  if (f.inputs) f.give_inputs(crew);
  if (batch.given) f.begin(crew);
  const dw_part* last = nullptr;
  for (int layer = batch.start; layer < batch.stop; layer++) {
    const bool ends = f.ends_at_wanted(layer);
    for (const dw_part& part : f.model.layers[layer]) {
      if (part.kind == DW_ATTENTION) f.attention(crew, last, part, ends);
      else if (part.kind == DW_RECURRENT) f.recur(crew, last, part);
      else if (part.kind == DW_EXPERTS) experts(f, crew, last, part, mixture);
      else f.feed(crew, last, part);
      if (ends) f.rows = batch.wanted_count;
      last = f.rows ? &part : nullptr;
      if (!f.rows) break;
    }
    bool asked = layer + 1 == batch.stop || std::count(batch.states_after, batch.states_after + batch.states_count, layer + 1) ||
                 std::count(batch.reads_after, batch.reads_after + batch.reads_count, layer + 1);
    if (!asked) continue;
    f.each(crew, f.rows, [&](int64_t i) { f.settle(i, last, f.own(crew)); });
    last = nullptr;
    f.keep(crew, layer + 1);
  }
  if (batch.output && !crew.me) std::memcpy(batch.output, f.x, 4 * static_cast<size_t>(batch.rows) * f.s().width);
  if (batch.logits && batch.wanted_count) f.logits(crew);
}

static void demand(bool holds, const char* reason) {
  if (!holds) throw std::invalid_argument(reason);
}

// Refuse a batch that would read or write what is not its own.
void Model::check(const dw_batch& batch, const dw_walks* walks) const {
  auto within = [](int64_t i, int64_t count) { return i >= 0 && i < count; };
  demand(0 <= batch.start && batch.start <= batch.stop && batch.stop <= static_cast<int64_t>(layers.size()),
         "there are no such layers");
  if (walks) {
    const char* reason = wrong(*walks, batch.rows);
    demand(!reason, reason);
  }
  demand(within(batch.plane_type, PLANE_INT8 + 1), "keys and values have no such type");
  std::vector<int32_t> longest(batch.segments);
  demand(!batch.given || entry.fc, "states are given to a model that reads none");
  for (int64_t i = 0; i < batch.rows; i++) {
    const int64_t segment = batch.segment[i], from = i ? batch.path_end[i - 1] : 0;
    demand(within(segment, batch.segments) && within(batch.slot[i], batch.capacity[segment]),
           "a slot lies outside of its extent");
    demand(within(batch.seen[i], batch.trunk_length[segment] + 1) && length(batch, i) >= std::max(1, batch.seen[i]),
           "a row sees what is not there");
    longest[segment] = std::max(longest[segment], batch.seen[i]);
    for (int64_t j = from; j < batch.path_end[i]; j++)
      demand(within(batch.path[j], batch.capacity[segment]), "a slot that is seen lies outside of its extent");
    demand(within(batch.position[i], batch.reach), "a position is not below the model's context");
    const bool read = batch.given ? !batch.beside : !batch.hidden || shape.input_table;
    const void* table = batch.given ? entry.embeddings : shape.embeddings;
    demand(!read || (table && within(batch.token[i], batch.given ? matrix(table).n : shape.vocabulary)), "a token is not in the vocabulary");
  }
  for (int64_t n = 0; n < batch.segments; n++) {
    demand(batch.base[n] >= 0 && batch.base[n] + static_cast<int64_t>(batch.capacity[n]) <= batch.slots,
           "an extent lies outside of its cache");
    for (int32_t j = 0; j < longest[n]; j++)
      demand(within(batch.trunk[n][j], batch.capacity[n]), "a slot that is seen lies outside of its extent");
  }
  for (int64_t i = 0; i < batch.wanted_count; i++)
    demand(within(batch.wanted ? batch.wanted[i] : batch.wanted_first + i, batch.rows), "a row that is wanted is not there");
}

void Model::forward(const dw_batch& batch, const dw_walks* walks) {
  std::lock_guard<std::mutex> lock(mutex);
  const Kernels& k = kernels();
  const int64_t rows = batch.rows;
  std::vector<int64_t> at(rows);
  int64_t slots = 0, longest = 0;
  check(batch, walks);
  for (int64_t i = 0; i < rows; i++) {
    at[i] = slots;
    slots += length(batch, i);
    longest = std::max(longest, length(batch, i));
  }
  int64_t wide = 0, widest = shape.width, head = 0, got = 0, group = 1, fewest = INT32_MAX, folded = 0, latent = 0;
  size_t operands = 0, mixed = 0;
  auto product = [&](const void* p, int64_t count) {
    const Matrix& m = matrix(p);
    widest = std::max(widest, m.k);
    operands = std::max(operands, k.operand_bytes(m, count));
    return padded(m);
  };
  for (int layer = batch.start; layer < batch.stop; layer++)
    for (const dw_part& part : layers[layer]) {
      if (part.kind == DW_EXPERTS) {
        const dw_experts& e = *part.experts;
        wide = std::max<int64_t>({wide, product(e.router, rows), static_cast<int64_t>(up(shape.width, PANEL))});
        for (int i = 0; i < e.count + e.shared; i++) widest = std::max({widest, matrix(e.down[i]).k, matrix(e.router).n});
        mixed = std::max(mixed, mixture_bytes(k, e, shape.width, rows));
        continue;
      }
      const int64_t in = matrix(part.up).k;
      demand(in == shape.width || (in == 2 * shape.width && (batch.beside || batch.given)), "a matrix reads what is not there");
      wide = std::max({wide, product(part.up, rows), product(part.down, rows)});
      if (part.kind == DW_RECURRENT) {
        const Recurrence& recurrence = recurrences[part.rope];
        demand(walks, "recurrent layers need walks");
        got = std::max(got, recurrence.outputs());
        folded = std::max({folded, recurrence.scratch(*walks), recurrence.outputs()});
      }
      if (part.kind != DW_ATTENTION) continue;
      got = std::max<int64_t>(got, part.heads * part.value_dim);
      widest = std::max<int64_t>(widest, part.head_dim);
      if (part.latent) {
        if (part.latent->q_up) wide = std::max(wide, product(part.latent->q_up, rows));
        wide = std::max(wide, part.heads * part.head_dim + product(part.latent->kv_up, rows));
        latent = std::max<int64_t>(latent, part.latent->kv_rank + part.rotary_dim);
      }
      group = std::max<int64_t>(group, part.heads / part.kv_heads);
      fewest = std::min<int64_t>(fewest, part.kv_heads);
    }
  if (batch.given) wide = std::max(wide, product(entry.fc, rows));
  if (shape.input_table) wide = std::max(wide, product(shape.input_projection, rows));
  if (batch.logits && batch.wanted_count) head = product(shape.head, batch.wanted_count);
  const int threads = std::max(1, batch.threads);
  const int64_t most = std::max<int64_t>(1, std::min(QUERIES / group, rows * fewest / (2 * threads)));  // two items for each thread at least
  std::vector<int64_t> bundles;
  for (int64_t first = 0, end; first < rows; first = end) {
    for (end = first + 1; end < rows && batch.segment[end] == batch.segment[first];) end++;
    const int64_t count = end - first, parts = (count + most - 1) / most;
    for (int64_t part = 0; part < parts; part++) bundles.push_back(first + count * part / parts);
  }
  bundles.push_back(rows);
  const int64_t own = up(std::max<int64_t>({widest, got, folded, static_cast<int64_t>(QUERIES * up(longest, PANEL))}) + 64, 16);
  const Forward f{*this, batch, k, x.room<float>(rows * shape.width),
                  branch.room<float>(std::max(wide * rows, head * batch.wanted_count)),
                  inner.room<float>(rows * got),
                  shape.input_table ? inputs.room<float>(rows * shape.inputs * shape.input_width) : nullptr, operand.room<char>(operands),
                  lists.room<int32_t>(slots), at.data(), bundles, scratch.room<float>(own * threads), wide, head, own, walks,
                  latents.room<float>(rows * latent), latent, batch.given ? beside.room<float>(rows * shape.width) : nullptr, rows};
  char* mixture = mixed ? pairs.room<char>(mixed) : nullptr;
  together(threads, [&](Crew& crew) { run(f, crew, mixture); });
}

}  // namespace dw
