// AVX2 with FMA: Haswell and later, every Zen.
#define PLIMSOLL_ISA plimsoll_avx2
#define LANES 8
#include "kernels.h"

extern const PlimsollKernels plimsoll_float32_avx2, plimsoll_bfloat16_avx2;
const PlimsollKernels plimsoll_float32_avx2 = PLIMSOLL_ISA::Kernels<PLIMSOLL_ISA::Float32>::table("avx2");
const PlimsollKernels plimsoll_bfloat16_avx2 = PLIMSOLL_ISA::Kernels<PLIMSOLL_ISA::BFloat16>::table("avx2");
