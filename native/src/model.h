// A decoder: layers of parts, and the forward over them.
#pragma once
#include <mutex>
#include <vector>

#include "abi.h"
#include "kernels.h"
#include "recurrent.h"

namespace dw {

// Aligned memory that grows and is kept for the next forward.
class Buffer {
 public:
  ~Buffer();
  template <class T> T* room(size_t count) { return static_cast<T*>(bytes(count * sizeof(T))); }

 private:
  void* bytes(size_t wanted);
  void* data = nullptr;
  size_t size = 0;
};

class Model {
 public:
  Model(const dw_shape& shape, int layers) : shape(shape), layers(layers) {}
  void forward(const dw_batch& batch, const dw_walks* walks = nullptr);

  const dw_shape shape;
  std::vector<std::vector<dw_part>> layers;
  const float *embedding_norm = nullptr, *embedding_norm_bias = nullptr;  // null where there is none
  dw_entry entry{};                      // its fc is null where there is none
  std::vector<int64_t> tokens;           // of the head's outputs, in a vocabulary of `vocabulary`; empty: their numbers
  int64_t vocabulary = 0;
  float absent = 0;
  std::vector<Recurrence> recurrences;  // of recurrent parts, whose `rope` is the number here

 private:
  void check(const dw_batch& batch, const dw_walks* walks) const;

  std::mutex mutex;  // one forward at a time
  Buffer x, branch, inner, inputs, operand, lists, scratch, pairs, latents, beside;
};

}  // namespace dw
