// AVX-512 with bfloat16, and products in tiles: Sapphire Rapids and later.
#define PLIMSOLL_ISA plimsoll_amx
#define LANES 16
#include "kernels.h"

extern const PlimsollKernels plimsoll_bfloat16_amx;
const PlimsollKernels plimsoll_bfloat16_amx = PLIMSOLL_ISA::Kernels<PLIMSOLL_ISA::BFloat16>::table("amx");
