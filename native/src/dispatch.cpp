// Chooses the kernel set when it is first needed.
#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace dw {

namespace portable { extern const Kernels table; }
#if defined(__x86_64__)
namespace avx2 { extern const Kernels table; }
namespace avx512 { extern const Kernels table; }
#elif defined(__aarch64__)
namespace neon { extern const Kernels table; }
#endif

struct Choice {
  const Kernels* table;
  bool (*runs)();  // whether this processor can
};

// the best first
static const Choice CHOICES[] = {
#if defined(__x86_64__)
    {&avx512::table,
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl");
     }},
    {&avx2::table, [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }},
#elif defined(__aarch64__)
    {&neon::table, [] { return true; }},
#endif
    {&portable::table, [] { return true; }},
};

static const Kernels* chosen() {
  const char* wanted = std::getenv("DRAFTWOOD_KERNELS");
  for (const Choice& choice : CHOICES)
    if (wanted && *wanted ? !std::strcmp(wanted, choice.table->name) && choice.runs() : choice.runs()) return choice.table;
  return nullptr;  // the named one is not there, or cannot run here
}

static const Kernels* used() {
  static const Kernels* table = chosen();
  return table;
}

bool ready() { return used() != nullptr; }
const Kernels& kernels() { return *used(); }

// Names of the sets that this processor can run, the best first, with spaces between.
const char* runnable() {
  static char names[128] = "";
  if (!*names)
    for (const Choice& choice : CHOICES)
      if (choice.runs()) {
        if (*names) std::strcat(names, " ");
        std::strcat(names, choice.table->name);
      }
  return names;
}

}  // namespace dw
