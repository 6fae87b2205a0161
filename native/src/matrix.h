// Matrices as the kernels read them.
#pragma once
#include "kernels.h"

namespace dw {

// Repack a weight [n][k] of floats or of bfloat16; INT8 rounds each output to 255 steps of its largest weight.
Matrix* pack(Type type, int64_t n, int64_t k, const void* weight, bool half, const float* bias);
void release(Matrix* m);

}  // namespace dw
