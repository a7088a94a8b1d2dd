// Matrix products, by what the processor has for them.
#pragma once

#if defined(__AMX_BF16__)
#include "tile_product.h"
#else
#include "vector_product.h"
#endif
