#define DW_EMULATED
#define DW_TILES
#define DW_SET tiles
#define DW_WIDTH 16
#include "kernels/all.h"
