// A mixture of experts: rows choose experts, whose matrices are read once for all rows that chose them.
#pragma once
#include "forward.h"

namespace dw {

// What the threads share while a mixture works; a pair is a row and an expert that it chose, the shared one included.
struct Mixture {
  const dw_experts& e;
  int32_t* expert;   // [rows][each]: the experts that a row chose, rising
  float* weight;     // [rows][each]
  int32_t* start;    // [count + 2] where the pairs of each expert begin
  int32_t* row;      // [pairs] whose pair it is, in the order of experts
  int32_t* place;    // [rows][each]: where a row's pairs are in that order
  int64_t* at;       // [2][count + 2] where each expert's operand begins
  float* rows;       // [rows][width] the normalised rows
  float* shared;     // the same of the shared expert
  float *up, *down;  // [pairs][wide_up], [pairs][wide_down]
  char* operand;
  int64_t wide_up, wide_down;

  int64_t count() const { return e.count + e.shared; }   // of experts
  int64_t each() const { return e.chosen + e.shared; }   // pairs of a row
};

// Bytes that a mixture needs for so many rows, beside what forwards have; `wanted`: bytes; `mixture` null: only count.
size_t mixture_bytes(const Kernels& k, const dw_experts& e, int64_t width, int64_t rows);

// The part for all rows of a forward, in memory of mixture_bytes.
void experts(const Forward& f, Crew& crew, const dw_part* last, const dw_part& part, char* memory);

}  // namespace dw
