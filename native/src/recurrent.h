// Recurrent layers: the states behind the tokens of a forward, token by token along its walks.
#pragma once
#include <vector>

#include "abi.h"
#include "kernels.h"
#include "team.h"

namespace dw {

// One recurrent mixer, with what the library has made of the caller's numbers.
struct Recurrence {
  dw_recurrence r;
  std::vector<float> conv;  // [kernel][channels]

  explicit Recurrence(const dw_recurrence& given);
  int64_t values() const { return static_cast<int64_t>(r.value_heads) * r.value_dim; }
  int64_t keys() const { return static_cast<int64_t>(r.key_heads) * r.key_dim; }
  int64_t key_head(int64_t head) const { return r.tiled ? head % r.key_heads : head / (r.value_heads / r.key_heads); }
  bool convolution() const { return r.kind == DW_CONVOLUTION; }
  int64_t outputs() const { return convolution() ? r.channels : values(); }  // of a step
  int64_t made() const { return convolution() ? 3 * static_cast<int64_t>(r.channels) : values() + r.inputs; }  // by the first product
  int64_t items() const;                                 // parts of a state that threads walk by themselves
  int64_t scratch(const dw_walks& walks) const;          // floats that a walk needs
  // Walk part `item` of a state along walk `walk`: made [rows][stride] -> out [rows][outputs].
  void walk(const Kernels& k, const dw_walks& walks, int64_t walk, int64_t item, const float* made, int64_t stride, float* out, float* tmp) const;
  // Keep the inputs of rows that may be folded once more.
  void save(const dw_walks& walks, int64_t number, const float* made, int64_t stride) const;
  // What the steps of a row have given [outputs], gated and normalised -> out; `made` is its row of the first product.
  void finish(const Kernels& k, const float* made, float* given, float* out) const;
};

// Refuse walks that would read or write what is not their own.
const char* wrong(const dw_walks& walks, int64_t rows);

}  // namespace dw
