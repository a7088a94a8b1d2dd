// AVX-512: Skylake-X and later, Zen 4 and later.
#define PLIMSOLL_ISA plimsoll_avx512
#define LANES 16
#include "kernels.h"

extern const PlimsollKernels plimsoll_float32_avx512, plimsoll_bfloat16_avx512;
const PlimsollKernels plimsoll_float32_avx512 = PLIMSOLL_ISA::Kernels<PLIMSOLL_ISA::Float32>::table("avx512");
const PlimsollKernels plimsoll_bfloat16_avx512 = PLIMSOLL_ISA::Kernels<PLIMSOLL_ISA::BFloat16>::table("avx512");
