// Products of a kernel set with weights of every type of GGUF files, against sums in double of what unpack() says.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "formats.h"
#include "matrix.h"

namespace dw {

// Random rows of a type with scales of about 1/64.
inline std::vector<uint8_t> random_rows(int number, int64_t n, int64_t k, std::mt19937& random) {
  const Format& f = *format(number);
  std::vector<uint8_t> data(n * ((k + f.inputs - 1) / f.inputs) * f.bytes);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  for (uint8_t* at = data.data(); at < data.data() + data.size(); at += f.bytes) {
    const float v = (random() % 64 + 1) / 4096.f;
    const uint16_t h = number == 30 ? rounded(v) : to_half(v);
    const auto set = [&](int place) { std::memcpy(at + place, &h, 2); };
    switch (number) {
      case FP8_FORMAT:
        for (int i = 4; i < f.bytes; i++) at[i] ^= (at[i] & 0x7f) == 0x7f;  // not a number
        [[fallthrough]];
      case 0: std::memcpy(at, &v, 4); break;
      case 3: case 7: case 12: case 13: set(0), set(2); break;
      case 10: set(80), set(82); break;
      case 11: set(108); break;
      case 14: set(208); break;
      case 39: at[0] = 121; break;
      default: set(0);
    }
  }
  return data;
}

// How many products of a set are wrong.
inline int wrong_products(const Kernels& set) {
  constexpr int64_t n = 33, k = 512, rows = 13;
  std::mt19937 random(7);
  std::vector<float> x(rows * k), w(k);
  for (int64_t i = 0; i < rows * k; i++) x[i] = i % GROUP == 0 ? 127.f : static_cast<float>(static_cast<int>(random() % 255) - 127);
  int wrong = 0;
  for (int number : {0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 30, 39, FP8_FORMAT}) {
    const std::vector<uint8_t> data = random_rows(number, n, k, random);
    const Stored part{number, n, static_cast<int64_t>(data.size()) / n, data.data(), nullptr, false};
    Matrix* m = pack_stored(&part, 1, k, nullptr, 1);
    const int64_t wide = m->panels * PANEL;
    std::vector<float> out(rows * wide);
    void* in = std::aligned_alloc(64, up(set.operand_bytes(*m, rows), 64));
    for (int64_t i = 0; i < rows; i++) set.convert(*m, &x[i * k], in, i, rows);
    set.multiply(*m, rows, in, out.data(), wide, 0, m->panels);
    for (int64_t j = 0; j < n; j++) {
      unpack(*m, j, w.data());
      for (int64_t i = 0; i < rows; i++) {
        double right = 0, size = 0;
        for (int64_t t = 0; t < k; t++) right += w[t] * static_cast<double>(x[i * k + t]), size += std::fabs(w[t] * x[i * k + t]);
        if (!(std::fabs(out[i * wide + j] - right) <= 2e-6 * size))
          if (wrong++ < 5) std::printf("type %d, row %ld, output %ld: %g is not %g\n", number, static_cast<long>(i), static_cast<long>(j), out[i * wide + j], right);
      }
    }
    std::free(in);
    release(m);
  }
  return wrong;
}

}  // namespace dw
