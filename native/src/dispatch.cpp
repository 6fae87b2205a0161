// Chooses the kernel set when it is first needed.
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "kernels.h"

namespace dw {

bool exact(const Kernels& set, int64_t n, int64_t k, int64_t rows);  // check.cpp

namespace portable { extern const Kernels table; }
#if defined(__x86_64__)
namespace avx2 { extern const Kernels table; }
namespace avx512 { extern const Kernels table; }
namespace avx512vnni { extern const Kernels table; }
namespace avx512bf16 { extern const Kernels table; }
namespace amx { extern const Kernels table; }

static bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
static bool has_vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
static bool has_bf16() { return has_vnni() && __builtin_cpu_supports("avx512bf16"); }

// Linux lets a process use tiles when it asks.
static bool has_tiles() {
#if defined(__linux__)
  unsigned a = 7, b, c = 0, d;
  asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  const bool has = d >> 22 & d >> 24 & d >> 25 & 1;  // AMX-BF16, AMX-TILE, AMX-INT8
  return has && has_bf16() && !syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */);
#else
  return false;
#endif
}
#elif defined(__aarch64__)
namespace neon { extern const Kernels table; }
namespace neondot { extern const Kernels table; }
namespace neonbf16 { extern const Kernels table; }

#if defined(__linux__)
static bool has_dot() { return getauxval(AT_HWCAP) >> 20 & 1; }           // HWCAP_ASIMDDP
static bool has_bf16() { return has_dot() && getauxval(AT_HWCAP2) >> 14 & 1; }  // HWCAP2_BF16
#else
static bool has(const char* name) {
  int found = 0;
  size_t size = sizeof found;
  return !sysctlbyname(name, &found, &size, nullptr, 0) && found;
}
static bool has_dot() { return has("hw.optional.arm.FEAT_DotProd"); }
static bool has_bf16() { return has_dot() && has("hw.optional.arm.FEAT_BF16"); }
#endif
#endif

struct Choice {
  const Kernels* table;
  bool (*runs)();  // whether this processor can
  bool proven;     // it has run on such a processor; others are taken where they are named only
};

// the best first
static const Choice CHOICES[] = {
#if defined(__x86_64__)
    {&amx::table, has_tiles, true},
    {&avx512bf16::table, has_bf16, true},
    {&avx512vnni::table, has_vnni, true},
    {&avx512::table, has_avx512, true},
    {&avx2::table, [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }, true},
#elif defined(__aarch64__)
    {&neonbf16::table, has_bf16, true},
    {&neondot::table, has_dot, true},
    {&neon::table, [] { return true; }, true},
#endif
    {&portable::table, [] { return true; }, true},
};

static const Kernels* chosen() {
  const char* wanted = std::getenv("DRAFTWOOD_KERNELS");
  for (const Choice& choice : CHOICES) {
    const bool asked = wanted && *wanted ? !std::strcmp(wanted, choice.table->name) : choice.proven;
    if (asked && choice.runs() && exact(*choice.table, 40, 70, 7)) return choice.table;
  }
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
