// Work on rows of logits as long as a vocabulary.
#pragma once
#include <cmath>
#include <cstdint>

namespace dw {

// Whether one of some weights of this sum can be drawn.
inline bool possible(double total) { return total > 0 && std::isfinite(total); }

// The row's part of dw_leading.
void leading(int64_t n, const float* x, int64_t count, int64_t* place, float* value);

// The shares of beams and tokens, as of dw_shares.
struct Shares {
  int64_t beams, n;
  const float* const* x;
  float scale;
  const double *top, *factor, *sums;
};

constexpr int64_t BLOCK = 512;  // tokens whose shares are summed up together

// As dw_shares; false where shares are not finite.
bool share(int64_t beams, int64_t n, const float* const* x, const double* score, const double* log_sum, float scale, double* top, double* factor, double* sums);

// The part of dw_shares_all for one beam.
void all_shares(const Shares& of, int64_t beam, int64_t ends, float* out);

// As dw_shares_draws; false where nothing can be drawn.
bool draw_shares(const Shares& of, int64_t ends, int64_t changed, const int64_t* where, const double* weight, int64_t draws, const double* u, int64_t* place);

}  // namespace dw
