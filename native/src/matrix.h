// Matrices as the kernels read them. Panel after panel; those of floats in steps of 64 bytes: the weights of 16 outputs for as
// many inputs as fit, so that a step is a vector of AVX-512 and a row of a tile of AMX:
//   F32 [k][16], F16 [k / 2][2][16], BF16 [k / 2][16][2]; FP8 after its scales (kernels.h).
// Of whole numbers several groups lie together, after their scales (kernels.h). Codes of 32 inputs are planes of vectors of
// 64 bytes [16][4]: byte (i, b) of a plane of n bits has of output i the inputs b, 4 + b, .., 8 / n of them, the first in
// the low bits; first the vectors of low bits, then those of high bits.
#pragma once
#include "kernels.h"

namespace dw {

// Repack a weight [n][k] of floats or of bfloat16, with so many threads. INT8 rounds each group of 32 inputs
// to 255 steps of its largest weight, INT4 to 16 steps between its extremes. Types: F32, BF16, F16, INT4, INT8.
Matrix* pack(Type type, int64_t n, int64_t k, const void* weight, bool half, const float* bias, int threads);
// Whole numbers [n][k] (0..15, or int8) with float16 or bfloat16 scales, shifts and zeros [n][ceil(k / 32)], as the type has
// them, the others null: weight = scale * (number - zero) + shift.
Matrix* pack_grouped(Type type, int64_t n, int64_t k, const uint8_t* numbers, const uint16_t* scale, const uint16_t* shift,
                     const uint8_t* zero, const float* bias, int threads);

// Outputs that lie in memory as a GGUF file has them.
struct Stored {
  int32_t format;        // GGUF's number for its type
  int64_t rows, stride;  // outputs, and bytes from one to the next
  const uint8_t* data;   // of the first one
  const int64_t* order;  // [rows] which row of `data` each output is; null: as they lie
  bool mapped;           // from a file that nobody has written to: pages are let go once read
};

// A weight of k inputs whose outputs are those of the parts, one after the other, without any rounding. Parts of different
// types must begin at a multiple of 16 outputs.
Matrix* pack_stored(const Stored* part, int parts, int64_t k, const float* bias, int threads);
// Input number i of a matrix of whole numbers becomes input number order[i] of a row; order [k] has each of them once.
void reorder(Matrix& m, const int64_t* order);
// Weights [k] of output `row`.
void unpack(const Matrix& m, int64_t row, float* out);
void release(Matrix* m);

}  // namespace dw
