#define DW_SET neondot
#define DW_WIDTH 4
#include "../kernels/all.h"
