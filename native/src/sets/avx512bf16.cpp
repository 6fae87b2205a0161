#define DW_SET avx512bf16
#define DW_WIDTH 16
#include "../kernels/all.h"
