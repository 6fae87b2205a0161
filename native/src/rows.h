// Work on rows of logits as long as a vocabulary.
#pragma once
#include <cstdint>

namespace dw {

// The row's part of dw_leading.
void leading(int64_t n, const float* x, int64_t count, int64_t* place, float* value);

// As dw_joint; false where shares are not finite.
bool joint(int64_t beams, int64_t n, int64_t ends, const float* const* x, const double* score, const double* log_sum, float scale, float* out);

}  // namespace dw
