#define DW_SET avx512
#define DW_WIDTH 16
#include "../kernels/all.h"
