#define DW_SET neonbf16
#define DW_WIDTH 4
#include "../kernels/all.h"
