// Which kernels this processor can run. Compiled for any x86-64: the only code that runs before the question.
#include <cstring>

#include "interface.h"

extern const PlimsollKernels plimsoll_bfloat16_avx512, plimsoll_float32_avx512, plimsoll_float32_avx2;

namespace {

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
}

}  // namespace

// The kernels for "float32" or "bfloat16", the named ones or (null) the best; null where this processor has none.
extern "C" __attribute__((visibility("default"))) const PlimsollKernels *plimsoll_kernels(const char *dtype, const char *name) {
  __builtin_cpu_init();
  const bool any = name == nullptr;
  if (std::strcmp(dtype, "bfloat16") == 0) {
    const bool can = has_avx512() && __builtin_cpu_supports("avx512bf16");
    return can && (any || std::strcmp(name, plimsoll_bfloat16_avx512.name) == 0) ? &plimsoll_bfloat16_avx512 : nullptr;
  }
  if (std::strcmp(dtype, "float32") != 0) return nullptr;
  if (has_avx512() && (any || std::strcmp(name, plimsoll_float32_avx512.name) == 0)) return &plimsoll_float32_avx512;
  const bool can = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return can && (any || std::strcmp(name, plimsoll_float32_avx2.name) == 0) ? &plimsoll_float32_avx2 : nullptr;
}
