#define DW_SET avx512vnni
#define DW_WIDTH 16
#include "../kernels/all.h"
