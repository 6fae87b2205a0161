// Matrices as the kernels read them. Panel after panel, each in steps of 64 bytes: the weights of 16 outputs [16] for as
// many inputs as fit, so that a step is a vector of AVX-512 and a row of a tile of AMX:
//   F32 [k][16], BF16 [k / 2][16][2], INT8 [k / 4][16][4].
#pragma once
#include "kernels.h"

namespace dw {

// Repack a weight [n][k] of floats or of bfloat16; INT8 rounds each output to 255 steps of its largest weight.
Matrix* pack(Type type, int64_t n, int64_t k, const void* weight, bool half, const float* bias);
void release(Matrix* m);

}  // namespace dw
