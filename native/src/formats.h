// Blocks of weights as GGUF files have them.
#pragma once
#include "kernels.h"

namespace dw {

uint16_t to_half(float f);     // to nearest even; beyond the largest: infinity
float from_half(uint16_t h);

// One or several groups of 32 weights of an output, as a panel holds them.
struct Block {
  uint8_t code[256];
  uint16_t scale, shift;              // of the group; or of scales, and of minus shifts
  uint8_t zero;                       // of the group
  uint8_t scales[16], shifts[16];     // of products: of each group
};

constexpr int FP8_FORMAT = 256;  // which GGUF files do not have: a float scale, then the numbers (e4m3) of 128 inputs

// A type of GGUF files, or FP8: how it is packed, and the inputs and bytes of a block.
struct Format {
  Type type;
  int inputs, bytes;
  void (*read)(const uint8_t* at, Block& to);  // null: plain numbers
};

// The format with the number that GGUF files have for it; null where there is none.
const Format* format(int number);

}  // namespace dw
