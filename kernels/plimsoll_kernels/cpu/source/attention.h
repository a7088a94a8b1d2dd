// Attention's products, by what the processor has for them.
#pragma once

#if defined(__AMX_BF16__)
#include "tile_attention.h"
#else
#include "vector_attention.h"
#endif
