// AVX-512 with its bfloat16 dot product: Zen 4 and later, Cooper Lake, Sapphire Rapids and later. For float32 it is the
// same as AVX-512.
#define PLIMSOLL_ISA plimsoll_avx512_bf16
#define LANES 16
#include "kernels.h"

extern const PlimsollKernels plimsoll_bfloat16_avx512_bf16;
const PlimsollKernels plimsoll_bfloat16_avx512_bf16 =
    PLIMSOLL_ISA::Kernels<PLIMSOLL_ISA::BFloat16>::table("avx512_bf16");
