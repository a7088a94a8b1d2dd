// Selects the kernels that this processor can run. Compiled for any x86-64, because it runs before the processor is
// known.
#include <cpuid.h>
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "crew.h"
#include "interface.h"

extern const PlimsollKernels plimsoll_float32_avx2, plimsoll_float32_avx512;
extern const PlimsollKernels plimsoll_bfloat16_avx2, plimsoll_bfloat16_avx512, plimsoll_bfloat16_avx512_bf16,
    plimsoll_bfloat16_amx;

namespace {

// An instruction set and its kernels for both kinds of elements.
struct Set {
  const char *name;
  bool (*runs)();
  const PlimsollKernels *float32, *bfloat16;
  bool (*granted)(); // whether the system lets the process use it for bfloat16; null: always
};

// The features of x86-64-v3 that the compiler may use (see compile.py) and that some processors with AVX2 lack.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
}

// The same for x86-64-v4.
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd");
}

bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }

// AMX with products of bfloat16.
bool has_amx() {
  constexpr uint32_t BFLOAT16 = 1u << 22, TILES = 1u << 24;
  uint32_t a, b, c, d;
  if (!has_avx512_bf16() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  return (d & (BFLOAT16 | TILES)) == (BFLOAT16 | TILES);
}

// Asks Linux for tiles, which it grants to a whole process: 0, or the error (Documentation/arch/x86/xstate.rst). A
// kernel without support for tiles does not save them (in XCR0, bit 17 is their configuration, bit 18 their data).
int ask_for_tiles() {
  constexpr uint32_t SAVED = 3u << 17;
  constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18;
  uint32_t low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & SAVED) != SAVED) return ENOSYS;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) ? errno : 0;
}

bool may_use_tiles() { return ask_for_tiles() == 0; }

// The best first; each includes those after it.
const Set sets[] = {
    {"amx", has_amx, &plimsoll_float32_avx512, &plimsoll_bfloat16_amx, may_use_tiles},
    {"avx512_bf16", has_avx512_bf16, &plimsoll_float32_avx512, &plimsoll_bfloat16_avx512_bf16, nullptr},
    {"avx512", has_avx512, &plimsoll_float32_avx512, &plimsoll_bfloat16_avx512, nullptr},
    {"avx2", has_avx2, &plimsoll_float32_avx2, &plimsoll_bfloat16_avx2, nullptr},
};

}  // namespace

// Returns the kernels for "float32" or "bfloat16" of the named instruction set or (null) of the best; null if this
// processor lacks it.
extern "C" __attribute__((visibility("default"))) const PlimsollKernels *plimsoll_kernels(const char *dtype, const char *name) {
  __builtin_cpu_init();
  for (const Set &set : sets) {
    if ((name && std::strcmp(name, set.name) != 0) || !set.runs()) continue;
    if (std::strcmp(dtype, "float32") == 0) return set.float32;
    if (std::strcmp(dtype, "bfloat16") == 0 && (!set.granted || set.granted())) return set.bfloat16;
  }
  return nullptr;
}

// Returns 0 if this processor has AMX and may use it, -1 if it has none, or the errno with which the system refuses it.
extern "C" __attribute__((visibility("default"))) int32_t plimsoll_amx() {
  __builtin_cpu_init();
  return has_amx() ? ask_for_tiles() : -1;
}

// Leaves `cores` cores of this process's crews to other work from here on (crew.h).
extern "C" __attribute__((visibility("default"))) void plimsoll_leave(int32_t cores) { plimsoll::leave(cores); }
