// Matrices as the kernels read them. Panel after panel, each in steps of 64 bytes: the weights of 16 outputs for as many
// inputs as fit, so that a step is a vector of AVX-512 and a row of a tile of AMX:
//   F32 [k][16], BF16 [k / 2][16][2].
// Of whole numbers two groups lie together, kernels.h says how: INT8 [group][8][16][4]; INT4 [group][4][16][4] with the
// first four inputs of eight in the low bits.
#pragma once
#include "kernels.h"

namespace dw {

// Repack a weight [n][k] of floats or of bfloat16, with so many threads. INT8 rounds each group of 32 inputs
// to 255 steps of its largest weight, INT4 to 16 steps between its extremes.
Matrix* pack(Type type, int64_t n, int64_t k, const void* weight, bool half, const float* bias, int threads);
// INT4 or INT8 of whole numbers [n][k] (0..15, or int8) with float16 scales and shifts [n][ceil(k / 32)]; w = scale *
// number + shift. shift may be null.
Matrix* pack_grouped(Type type, int64_t n, int64_t k, const uint8_t* numbers, const uint16_t* scale, const uint16_t* shift,
                     const float* bias, int threads);
void release(Matrix* m);

}  // namespace dw
