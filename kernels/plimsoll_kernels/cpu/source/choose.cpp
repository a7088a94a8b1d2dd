// Which kernels this processor can run. Compiled for any x86-64: the only code that runs before the question.
#include <cstring>

#include "interface.h"

extern const PlimsollKernels plimsoll_float32_avx2, plimsoll_float32_avx512;
extern const PlimsollKernels plimsoll_bfloat16_avx2, plimsoll_bfloat16_avx512, plimsoll_bfloat16_avx512_bf16;

namespace {

// An instruction set and its kernels for both kinds of elements.
struct Set {
  const char *name;
  bool (*runs)();
  const PlimsollKernels *float32, *bfloat16;
};

// All that the compiler may use of x86-64-v3 (see compile.py), as far as processors with AVX2 differ.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
}

// And of x86-64-v4.
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd");
}

bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }

// The best first; each includes those below it.
const Set sets[] = {
    {"avx512_bf16", has_avx512_bf16, &plimsoll_float32_avx512, &plimsoll_bfloat16_avx512_bf16},
    {"avx512", has_avx512, &plimsoll_float32_avx512, &plimsoll_bfloat16_avx512},
    {"avx2", has_avx2, &plimsoll_float32_avx2, &plimsoll_bfloat16_avx2},
};

}  // namespace

// The kernels for "float32" or "bfloat16" of the named instruction set or (null) of the best; null where this processor
// does not have it.
extern "C" __attribute__((visibility("default"))) const PlimsollKernels *plimsoll_kernels(const char *dtype, const char *name) {
  __builtin_cpu_init();
  for (const Set &set : sets) {
    if (!set.runs() || (name && std::strcmp(name, set.name) != 0)) continue;
    if (std::strcmp(dtype, "float32") == 0) return set.float32;
    if (std::strcmp(dtype, "bfloat16") == 0) return set.bfloat16;
  }
  return nullptr;
}
