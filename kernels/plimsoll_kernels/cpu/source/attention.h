// Attention's products: in tiles or in vectors, depending on the instruction set.
#pragma once

#if defined(__AMX_BF16__)
#include "tile_attention.h"
#else
#include "vector_attention.h"
#endif
