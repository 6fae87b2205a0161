// What a kernel set offers, and the data that all sets share. A set is compiled once per instruction set
// (sets/*.cpp) and chosen when the library is first asked (dispatch.cpp).
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

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

enum Type : int { F32 = 0, BF16 = 1, INT4 = 3, INT8 = 4 };

constexpr int PANEL = 16;   // outputs that lie together
constexpr int GROUP = 32;   // inputs that share a scale, in INT4 and INT8

// Bytes of two groups of a panel: float16 scales [2][16], for INT4 shifts [2][16], then the weights.
constexpr int64_t pair_bytes(Type type) { return type == INT4 ? PANEL * (8 + GROUP) : PANEL * (4 + 2 * GROUP); }

// A weight W [n][k], repacked into panels of 16 outputs (matrix.cpp says how).
struct Matrix {
  Type type;
  int64_t n, k;
  int64_t panels;   // ceil(n / PANEL)
  int64_t kp;       // k rounded up to what the type packs together; the rest is zero
  uint8_t* data;    // 64-byte aligned
  float* bias;      // [panels * PANEL], or null
  size_t bytes;     // of all of these
};

// One head of one row: what it asks for [dim], the slots that it sees in order of position, and room for up(n, PANEL)
// scores and for what it gets [dim]. Queries that see the same slots have the same list.
struct Query {
  const float* q;
  const int32_t* list;
  int64_t n;
  float *scores, *out;
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
  // out[i] = act(gate[i]) * up[i], or act(gate[i]) where up is null.
  void (*activate)(int activation, const float* gate, const float* up, int64_t n, float* out);
  // Turn the first 2 * half components of a head: x[i], x[half + i] by cos[i], sin[i].
  void (*rotate)(float* x, const float* cos, const float* sin, int64_t half);
  // x[i] += y[i]
  void (*add)(float* x, const float* y, int64_t n);
  // x[i] = cap * tanh(x[i] / cap)
  void (*cap)(float* x, float cap, int64_t n);
  // Put x [dim] into a row of a plane.
  void (*keep)(PlaneType type, const float* x, int64_t dim, void* row);
  // Attention of `count` queries to the rows of one head of keys and values.
  // All lists begin with the same `shared` slots: those of the first query, or a multiple of PANEL.
  void (*attend)(const Query* query, int count, int64_t shared, const void* keys, const void* values, PlaneType type, int64_t dim,
                 float scale, float cap);
};

enum Activation : int { SILU = 0, GELU = 1, GELU_TANH = 2, RELU = 3 };

// The set in use: the best proven one that this processor has, or the one that DRAFTWOOD_KERNELS names.
const Kernels& kernels();

}  // namespace dw
