#define DW_SET amx
#define DW_WIDTH 16
#define DW_TILES
#include "../kernels/all.h"
