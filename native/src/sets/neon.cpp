#define DW_SET neon
#define DW_WIDTH 4
#include "../kernels/all.h"
