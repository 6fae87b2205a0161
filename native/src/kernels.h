// What a kernel set offers, and the data that all sets share. A set is compiled once per instruction set
// (sets/*.cpp) and chosen when the library is first asked (dispatch.cpp).
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace dw {

typedef uint16_t bf16;

inline float widened(bf16 v) {
  uint32_t u = static_cast<uint32_t>(v) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

inline bf16 rounded(float f) {  // to nearest even; a NaN stays one
  uint32_t u;
  std::memcpy(&u, &f, 4);
  if ((u & 0x7fffffff) > 0x7f800000) return static_cast<bf16>((u >> 16) | 0x40);
  return static_cast<bf16>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

inline size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Types of weights. Whole numbers have the names of the GGUF types that they hold; INT4 is also Q4_1, INT8 also Q8_0. UINT4 is
// that of AWQ and GPTQ; _BF16: with scales of that type. FP8: floats of 8 bits (e4m3), with a scale for 128 inputs.
enum Type : int {
  F32, BF16, F16, INT4, INT8, Q4_0, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4,
  UINT4, UINT4_BF16, INT8_BF16, FP8, TYPES
};

constexpr int PANEL = 16;   // outputs that lie together
constexpr int GROUP = 32;   // inputs whose codes lie together, and inputs of a row that share a factor

// weight = scale * (code - zero) + shift, with one scale and shift for every `group` inputs. Of a panel `inputs` lie
// together: first the scales, then codes. Scales: float16 (or bfloat16) [inputs / 32][16] and such shifts,
// or bytes [inputs / 32][16] that are the codes' zeros; or as products:
// float16 [16] (of scales), float16 [16] (of minus shifts), bytes [inputs / group][16] of scales, such bytes of shifts.
struct Layout {
  int low = 0, high = 0;   // bits of a code: its lower ones, and those that lie apart
  int group = GROUP, zero = 0;
  enum Scales { HALVES, BFLOATS, PRODUCTS } scales = HALVES;
  bool shifts = false, negative = false /* bytes of scales have signs */, zeros = false /* one a group, beside `zero` */;
  const int8_t* table = nullptr;  // what a code stands for; plus 128 it is what a kernel computes with, and `zero` is 128

  constexpr bool products() const { return scales == PRODUCTS; }
  constexpr int inputs() const { return products() ? 256 : zeros ? 128 : 64; }
  constexpr int groups() const { return inputs() / group; }
  constexpr int head() const { return products() ? 64 + PANEL * groups() * (1 + shifts) : PANEL * groups() * (2 + 2 * shifts + zeros); }
  constexpr int codes() const { return PANEL * GROUP * (low + high) / 8; }  // bytes of 32 inputs
  constexpr int bytes() const { return head() + inputs() / GROUP * codes(); }
};

constexpr int8_t NL_TABLE[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t FP4_TABLE[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // twice what is meant

constexpr Layout layout(Type type) {
  switch (type) {
    case INT4: return {4, 0, 32, 0, Layout::HALVES, true};
    case INT8: return {8, 0, 32, 128};
    case Q4_0: return {4, 0, 32, 8};
    case Q5_0: return {4, 1, 32, 16};
    case Q5_1: return {4, 1, 32, 0, Layout::HALVES, true};
    case Q2_K: return {2, 0, 16, 0, Layout::PRODUCTS, true};
    case Q3_K: return {2, 1, 16, 4, Layout::PRODUCTS, false, true};
    case Q4_K: return {4, 0, 32, 0, Layout::PRODUCTS, true};
    case Q5_K: return {4, 1, 32, 0, Layout::PRODUCTS, true};
    case Q6_K: return {4, 2, 16, 32, Layout::PRODUCTS, false, true};
    case IQ4_NL: return {4, 0, 32, 128, Layout::HALVES, false, false, false, NL_TABLE};
    case IQ4_XS: return {4, 0, 32, 128, Layout::PRODUCTS, false, true, false, NL_TABLE};
    case MXFP4: return {4, 0, 32, 128, Layout::BFLOATS, false, false, false, FP4_TABLE};
    case UINT4: return {4, 0, 32, 0, Layout::HALVES, false, false, true};
    case UINT4_BF16: return {4, 0, 32, 0, Layout::BFLOATS, false, false, true};
    case INT8_BF16: return {8, 0, 32, 128, Layout::BFLOATS};
    default: return {};
  }
}
constexpr bool whole(Type type) { return type > F16 && type < FP8; }

// Of a panel of FP8, inputs that lie together: float scales [16], then [inputs / 4][2][16][2] numbers.
constexpr int FP8_INPUTS = 128, FP8_BYTES = 4 * PANEL + FP8_INPUTS * PANEL;

// Panels of a matrix that have one type.
struct Section {
  Type type;
  int64_t panel, panels;  // the first of them, and how many
  uint8_t* data;          // 64-byte aligned
};

constexpr int SECTIONS = 4;

// A weight W [n][k], repacked into panels of 16 outputs (matrix.cpp says how).
struct Matrix {
  int64_t n, k;
  int64_t panels;   // ceil(n / PANEL)
  int64_t kp;       // k rounded up to what its types pack together; the rest is zero
  int sections;
  Section section[SECTIONS];
  float* bias;      // [panels * PANEL], or null
  int32_t* order;   // [k] which input of a row each of these is, where all types are whole; null: as they come
  size_t bytes;     // of all of these
  std::vector<std::shared_ptr<void>> rooms;  // that they lie in

  bool has(bool (*is)(Type)) const {
    for (int i = 0; i < sections; i++)
      if (is(section[i].type)) return true;
    return false;
  }
};

// One head of one row: what it asks for [dim], the slots that it sees in order of position, and room for up(n, PANEL)
// scores and for what it gets [value_dim]. Queries that see the same slots have the same list. A sink is one score more, of nothing.
struct Query {
  const float* q;
  const int32_t* list;
  int64_t n;
  float *scores, *out;
  const float* sink;  // or null
  const float* bias;  // of a head at each position, to which scores get the difference from the last one's; or null
};

// What a head's row of a plane of keys or values holds: dim numbers; whole ones behind the float that scales them, and the
// row ends at a multiple of its size.
enum PlaneType : int { PLANE_F32, PLANE_BF16, PLANE_INT8 };
constexpr int64_t SCALE_BYTES = 4;
inline int64_t row_bytes(PlaneType type, int64_t dim) {
  return type == PLANE_INT8 ? SCALE_BYTES + up(dim, SCALE_BYTES) : type == PLANE_BF16 ? 2 * dim : 4 * dim;
}

struct Kernels {
  const char* name;

  // Bytes of `rows` rows of input as multiply() wants them; 64-byte aligned memory.
  size_t (*operand_bytes)(const Matrix& m, int64_t rows);
  // Put row `row` (of `rows`), x [m.k], into an operand.
  void (*convert)(const Matrix& m, const float* x, void* operand, int64_t row, int64_t rows);
  // out[i * ldo + n] = sum_k x[i][k] W[n][k] + bias[n] for all rows i and the outputs of panels [from, to), n < m.n
  // rounded up to whole panels: ldo >= panels * PANEL. One order of sums for every element, whatever `rows` is.
  void (*multiply)(const Matrix& m, int64_t rows, const void* operand, float* out, int64_t ldo, int64_t from, int64_t to);

  // out[n] = (x - mean) / deviation * weight + bias; `layer`: with the mean (bias may be null), else root mean square.
  void (*norm)(bool layer, const float* x, const float* weight, const float* bias, int64_t n, float eps, float* out);
  // out[i] = act(gate[i]) * up[i], or act(gate[i]) where up is null. `numbers`: those of XIELU, or null.
  void (*activate)(int activation, const float* numbers, const float* gate, const float* up, int64_t n, float* out);
  // Turn the first 2 * half components of a head: x[i], x[half + i] by cos[i], sin[i].
  void (*rotate)(float* x, const float* cos, const float* sin, int64_t half);
  // x[i] += factor * y[i]
  void (*add)(float* x, const float* y, float factor, int64_t n);
  // out[c] = sum_j weight[j * stride + c] * input[j][c] + bias[c] (or null) of `kernel` inputs [n], then maybe silu.
  void (*convolve)(const float* const* input, int kernel, const float* weight, int64_t stride, const float* bias, int64_t n, bool silu,
                   float* out);
  // A step of a recurrent head: memory [keys][values] = decay * before + key value^T; out = query memory; `before` may be
  // `memory`. With beta the value is first replaced by beta * (value - what decay * before answers to the key).
  void (*recur)(const float* before, float* memory, int64_t keys, int64_t values, const float* key, const float* query,
                const float* value, float decay, const float* beta, float* out);
  // x[i] *= sigmoid(gate[i])
  void (*damp)(float* x, const float* gate, int64_t n);
  // x[i] = cap * tanh(x[i] / cap)
  void (*cap)(float* x, float cap, int64_t n);
  // Of x [n] the place of the largest, the first among equals, and log sum e^x.
  void (*top)(const float* x, int64_t n, int64_t* best, float* log_sum);
  // The largest of each `block` neighbours of x [n], and of those left.
  void (*tops)(const float* x, int64_t n, int64_t block, float* out);
  // out[i] = e^(scale * x[i]) over the sum of all, 0 where that is less than e^-87 of the largest; NaNs where a number is NaN.
  void (*softmax)(const float* x, int64_t n, float scale, float* out);
  // out[i] = e^(scale * (x[i] - largest)), 0 where that is less than e^-87.
  void (*exps)(const float* x, int64_t n, float largest, float scale, float* out);
  // The sum of w [n], added up as doubles.
  double (*whole_sum)(const float* w, int64_t n);
  // out[i] = max(0, factor * p[i] - q[i]), q or null for zeros; returns the sum. A NaN stays one.
  double (*excess)(const float* p, const float* q, float factor, int64_t n, float* out);
  // Put x [dim] into a row of a plane.
  void (*keep)(PlaneType type, const float* x, int64_t dim, void* row);
  // Attention of `count` queries to the rows of one head of keys and values.
  // All lists begin with the same `shared` slots: those of the first query, or a multiple of PANEL.
  void (*attend)(const Query* query, int count, int64_t shared, const void* keys, const void* values, PlaneType type, int64_t dim,
                 int64_t value_dim, float scale, float cap);
};

enum Activation : int { SILU = 0, GELU = 1, GELU_TANH = 2, RELU = 3, RELU_SQUARED = 4, STEEP_SILU = 5, XIELU = 6 };

// The set in use: the best proven one that this processor has, or the one that DRAFTWOOD_KERNELS names.
const Kernels& kernels();

}  // namespace dw
