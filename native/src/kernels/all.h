// A whole kernel set: the includer sets DW_SET (its namespace and name) and DW_WIDTH (floats in a vector).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif
#include "../kernels.h"

#define DW_TEXT(x) #x
#define DW_NAME(x) DW_TEXT(x)

namespace dw::DW_SET {
#include "vector.h"
#include "elements.h"
#include "attention.h"
#include "kinds.h"
#include "operands.h"
#include "products.h"
#include "recurrent.h"

extern const Kernels table;
const Kernels table = {DW_NAME(DW_SET), operand_bytes, convert, multiply, norm, activate, rotate, add, convolve, recur, damp, cap, top, tops, softmax, exps, whole_sum, excess, keep, attend};
}  // namespace dw::DW_SET
