// Every set that this processor runs is exact; for machines without Python, as under qemu.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "kernels.h"

namespace dw {
bool exact(const Kernels& set, int64_t n, int64_t k, int64_t rows);
bool ready();
const char* runnable();
}  // namespace dw

int main() {
  using namespace dw;
  if (!ready()) return std::puts("none runs"), 1;
  int wrong = 0;
  for (int64_t n : {1, 33, 70})
    for (int64_t k : {1, 64, 333})
      for (int64_t rows : {1, 5, 13, 40}) wrong += !exact(kernels(), n, k, rows);
  std::printf("%s of %s: %d wrong\n", kernels().name, runnable(), wrong);
  return wrong != 0;
}
