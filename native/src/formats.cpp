#include "formats.h"

#include <cmath>

namespace dw {

uint16_t to_half(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  const uint16_t sign = u >> 16 & 0x8000;
  const float size = std::fabs(f);
  if (!(size < 65520)) return sign | (size == size ? 0x7c00 : 0x7e00);
  if (size < 0x1p-14f) return sign | static_cast<uint16_t>(std::lrintf(size * 0x1p24f));
  u &= 0x7fffffff;
  return sign | static_cast<uint16_t>((u + 0xfff + (u >> 13 & 1) - (112u << 23)) >> 13);
}

float from_half(uint16_t h) {
  const float size = (h & 0x7c00) == 0x7c00 ? (h & 0x3ff ? NAN : INFINITY)
                     : h & 0x7c00           ? std::ldexp(1024.f + (h & 0x3ff), (h >> 10 & 31) - 25)
                                            : (h & 0x3ff) * 0x1p-24f;
  return h & 0x8000 ? -size : size;
}

static uint16_t half(const uint8_t* at) {
  uint16_t h;
  std::memcpy(&h, at, 2);
  return h;
}

// Codes of `count` bytes' low halves, then of their high ones.
static void nibbles(const uint8_t* at, int count, uint8_t* code) {
  for (int i = 0; i < count; i++) code[i] = at[i] & 15, code[count + i] = at[i] >> 4;
}

static void q8_0(const uint8_t* at, Block& to) {
  to.scale = half(at);
  for (int i = 0; i < 32; i++) to.code[i] = at[2 + i] ^ 0x80;
}

static void q4_0(const uint8_t* at, Block& to) {
  to.scale = half(at);
  nibbles(at + 2, 16, to.code);
}

static void q4_1(const uint8_t* at, Block& to) {
  to.scale = half(at), to.shift = half(at + 2);
  nibbles(at + 4, 16, to.code);
}

// the fifth bits of 32 codes
static void fifth(const uint8_t* bits, uint8_t* code) {
  for (int i = 0; i < 32; i++) code[i] |= (bits[i / 8] >> i % 8 & 1) << 4;
}

static void q5_0(const uint8_t* at, Block& to) {
  to.scale = half(at);
  nibbles(at + 6, 16, to.code);
  fifth(at + 2, to.code);
}

static void q5_1(const uint8_t* at, Block& to) {
  to.scale = half(at), to.shift = half(at + 2);
  nibbles(at + 8, 16, to.code);
  fifth(at + 4, to.code);
}

// 8 scales and 8 shifts of 6 bits each, the last four of both split into 4 and 2 bits
static void sixes(const uint8_t* at, Block& to) {
  for (int i = 0; i < 4; i++) {
    to.scales[i] = at[i] & 63, to.shifts[i] = at[4 + i] & 63;
    to.scales[4 + i] = (at[8 + i] & 15) | at[i] >> 6 << 4, to.shifts[4 + i] = at[8 + i] >> 4 | at[4 + i] >> 6 << 4;
  }
}

static void q4_k(const uint8_t* at, Block& to) {
  to.scale = half(at), to.shift = half(at + 2);
  sixes(at + 4, to);
  for (int i = 0; i < 4; i++) nibbles(at + 16 + 32 * i, 32, to.code + 64 * i);
}

static void q5_k(const uint8_t* at, Block& to) {
  to.scale = half(at), to.shift = half(at + 2);
  sixes(at + 4, to);
  for (int i = 0; i < 4; i++) nibbles(at + 48 + 32 * i, 32, to.code + 64 * i);
  for (int i = 0; i < 256; i++) to.code[i] |= (at[16 + i % 32] >> i / 32 & 1) << 4;
}

static void q6_k(const uint8_t* at, Block& to) {
  for (int i = 0; i < 256; i++) {
    const int part = i / 128, j = i % 128;
    const int low = at[64 * part + j % 64] >> (j / 64 * 4) & 15, high = at[128 + 32 * part + j % 32] >> (j / 32 * 2) & 3;
    to.code[i] = low | high << 4;
  }
  std::memcpy(to.scales, at + 192, 16);
  to.scale = half(at + 208);
}

static void q2_k(const uint8_t* at, Block& to) {
  for (int i = 0; i < 16; i++) to.scales[i] = at[i] & 15, to.shifts[i] = at[i] >> 4;
  for (int i = 0; i < 256; i++) to.code[i] = at[16 + 32 * (i / 128) + i % 32] >> (i % 128 / 32 * 2) & 3;
  to.scale = half(at + 80), to.shift = half(at + 82);
}

static void q3_k(const uint8_t* at, Block& to) {
  for (int i = 0; i < 256; i++)
    to.code[i] = (at[32 + 32 * (i / 128) + i % 32] >> (i % 128 / 32 * 2) & 3) | (at[i % 32] >> i / 32 & 1) << 2;
  for (int i = 0; i < 16; i++) {  // six bits less 32: four in the first 8 bytes, two in the last 4
    const int low = at[96 + i % 8] >> (i / 8 * 4) & 15, high = at[104 + i % 4] >> (i / 4 * 2) & 3;
    to.scales[i] = static_cast<uint8_t>((low | high << 4) - 32);
  }
  to.scale = half(at + 108);
}

static void iq4_xs(const uint8_t* at, Block& to) {
  to.scale = half(at);
  const int high = half(at + 2);
  for (int i = 0; i < 8; i++)
    to.scales[i] = static_cast<uint8_t>(((at[4 + i / 2] >> (i % 2 * 4) & 15) | (high >> 2 * i & 3) << 4) - 32);
  for (int i = 0; i < 8; i++) nibbles(at + 8 + 16 * i, 16, to.code + 32 * i);
}

static void mxfp4(const uint8_t* at, Block& to) {
  to.scale = rounded(std::ldexp(0.5f, at[0] - 127));  // the table has twice the values
  nibbles(at + 1, 16, to.code);
}

const Format* format(int number) {
  static const Format f32{F32, 1, 4, nullptr}, f16{F16, 1, 2, nullptr}, bfloat16{BF16, 1, 2, nullptr}, f4_0{Q4_0, 32, 18, q4_0},
      f4_1{INT4, 32, 20, q4_1}, f5_0{Q5_0, 32, 22, q5_0}, f5_1{Q5_1, 32, 24, q5_1}, f8_0{INT8, 32, 34, q8_0}, f2_k{Q2_K, 256, 84, q2_k},
      f3_k{Q3_K, 256, 110, q3_k}, f4_k{Q4_K, 256, 144, q4_k}, f5_k{Q5_K, 256, 176, q5_k}, f6_k{Q6_K, 256, 210, q6_k},
      nl{IQ4_NL, 32, 18, q4_0}, xs{IQ4_XS, 256, 136, iq4_xs}, fp4{MXFP4, 32, 17, mxfp4}, fp8{FP8, FP8_INPUTS, 4 + FP8_INPUTS, nullptr};
  switch (number) {
    case 0: return &f32;
    case 1: return &f16;
    case 2: return &f4_0;
    case 3: return &f4_1;
    case 6: return &f5_0;
    case 7: return &f5_1;
    case 8: return &f8_0;
    case 10: return &f2_k;
    case 11: return &f3_k;
    case 12: return &f4_k;
    case 13: return &f5_k;
    case 14: return &f6_k;
    case 20: return &nl;
    case 23: return &xs;
    case 30: return &bfloat16;
    case 39: return &fp4;
    case FP8_FORMAT: return &fp8;
    default: return nullptr;
  }
}

}  // namespace dw
