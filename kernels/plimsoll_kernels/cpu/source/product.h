// Matrix products: in tiles or in vectors, depending on the instruction set.
#pragma once

#if defined(__AMX_BF16__)
#include "tile_product.h"
#else
#include "vector_product.h"
#endif
