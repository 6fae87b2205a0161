#define DW_SET avx2
#define DW_WIDTH 8
#include "../kernels/all.h"
