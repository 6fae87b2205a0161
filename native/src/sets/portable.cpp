#define DW_SET portable
#define DW_WIDTH 4
#include "../kernels/all.h"
