// Vectors of DW_WIDTH floats in GCC's and Clang's own notation: one source for every instruction set.
// Included once per set, inside its namespace. Products and sums are fused only where fma() says so: compiled with
// -ffp-contract=off, every function gives an element the same bits wherever it is inlined.

#ifdef __clang__
#define DW_UNROLL _Pragma("clang loop unroll(full)")
#else
#define DW_UNROLL _Pragma("GCC unroll 16")
#endif

#define DW_INLINE static inline __attribute__((always_inline))  // where sums passed by reference must stay in registers

template <int N> struct Fixed { static constexpr int value = N; };

// f(Fixed<count>), count <= MOST
template <int MOST, class F> static inline void fixed(int64_t count, F f) {
  if (count == MOST) f(Fixed<MOST>{});
  else if constexpr (MOST > 1) fixed<MOST - 1>(count, f);
}

// f(Fixed<n>, first) for parts of n <= MOST of `count`, as equal as can be
template <int MOST, class F> static inline void portions(int64_t count, F f) {
  const int64_t parts = (count + MOST - 1) / MOST;
  for (int64_t part = 0; part < parts; part++) {
    const int64_t first = count * part / parts;
    fixed<MOST>(count * (part + 1) / parts - first, [&](auto n) { f(n, first); });
  }
}

constexpr int WIDTH = DW_WIDTH;
#if DW_WIDTH == 16 || defined(__aarch64__)
constexpr int REGISTERS = 32;
#else
constexpr int REGISTERS = 16;
#endif
typedef float Floats __attribute__((vector_size(4 * DW_WIDTH), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * DW_WIDTH), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(4 * DW_WIDTH), aligned(4), may_alias));
typedef uint16_t Shorts __attribute__((vector_size(2 * DW_WIDTH), aligned(2), may_alias));

static inline Floats load(const float* p) { return *reinterpret_cast<const Floats*>(p); }
static inline void store(float* p, Floats v) { *reinterpret_cast<Floats*>(p) = v; }
static inline Floats all(float x) { return x - Floats{}; }
static inline Floats bits(Words w) { return reinterpret_cast<Floats&>(w); }
static inline Floats bits(Ints w) { return reinterpret_cast<Floats&>(w); }

// bfloat16 to float
static inline Floats load(const bf16* p) {
#if DW_WIDTH == 16 && defined(__AVX512F__)  // GCC widens in halves
  return bits((Words)_mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))) << 16);
#else
  Shorts s = *reinterpret_cast<const Shorts*>(p);
  return bits(__builtin_convertvector(s, Words) << 16);
#endif
}

// rounded to a bfloat16's digits, to nearest even; a NaN stays one
static inline Floats shortened(Floats x) {
  Words w = (Words)x;
  Words near = (w + 0x7fff + (w >> 16 & 1)) & 0xffff0000u;
  return bits((w & 0x7fffffff) > 0x7f800000 ? (w | 0x400000) & 0xffff0000u : near);
}

static inline Floats fma(Floats a, Floats b, Floats c) {
#if DW_WIDTH == 16 && defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif DW_WIDTH == 8 && defined(__FMA__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif DW_WIDTH == 4 && defined(__ARM_NEON)
  return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

static inline float fma(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_NEON)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// the larger of both; a NaN in b stays
static inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

#if DW_WIDTH == 16
#define DW_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define DW_ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif DW_WIDTH == 8
#define DW_EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define DW_ODD 1, 3, 5, 7, 9, 11, 13, 15
#else
#define DW_EVEN 0, 2, 4, 6
#define DW_ODD 1, 3, 5, 7
#endif

// sums of neighbours: those of a, then those of b
static inline Floats neighbours(Floats a, Floats b) {
  return __builtin_shufflevector(a, b, DW_EVEN) + __builtin_shufflevector(a, b, DW_ODD);
}

// Lane i of v[j] and lane j of v[i] change places.
DW_INLINE void transpose(Words (&v)[WIDTH]) {
  DW_UNROLL for (int n = 1; n < WIDTH; n *= 2) {
    Words w[WIDTH];
    DW_UNROLL for (int i = 0; i < WIDTH / 2; i++) {
      w[i] = __builtin_shufflevector(v[2 * i], v[2 * i + 1], DW_EVEN);
      w[i + WIDTH / 2] = __builtin_shufflevector(v[2 * i], v[2 * i + 1], DW_ODD);
    }
    DW_UNROLL for (int i = 0; i < WIDTH; i++) v[i] = w[i];
  }
}

// lane i: the sum of v[i], always by the same tree; v is overwritten
static inline Floats sums(Floats* v) {
  for (int n = WIDTH; n > 1; n /= 2)
    for (int i = 0; i < n / 2; i++) v[i] = neighbours(v[2 * i], v[2 * i + 1]);
  return v[0];
}

static inline float sum(Floats v) {
  for (int n = WIDTH; n > 1; n /= 2) v = neighbours(v, v);
  return v[0];
}

static inline float most(Floats v) {
  float found = v[0];
  for (int i = 1; i < WIDTH; i++) found = v[i] > found ? v[i] : found;
  return found;
}

// e^x to 2 units in the last place; below -87.3 and above 88 as there
static inline Floats exp(Floats x) {
  x = x > 88.f ? all(88.f) : x;
  x = x < -87.3f ? all(-87.3f) : x;
  Floats scaled = x * 1.44269504f;
  Ints whole = __builtin_convertvector(scaled + (scaled < 0.f ? all(-0.5f) : all(0.5f)), Ints);
  Floats n = __builtin_convertvector(whole, Floats);
  Floats r = fma(n, all(-0.693359375f), x);
  r = fma(n, all(2.12194440e-4f), r);
  Floats p = all(1.9875691500e-4f);
  p = fma(p, r, all(1.3981999507e-3f));
  p = fma(p, r, all(8.3334519073e-3f));
  p = fma(p, r, all(4.1665795894e-2f));
  p = fma(p, r, all(1.6666665459e-1f));
  p = fma(p, r, all(5.0000001201e-1f));
  p = fma(p, r * r, r) + 1.f;
  return p * bits((whole + 127) << 23);
}

static inline Floats tanh(Floats x) {
  Floats size = x < 0.f ? -x : x;
  Floats e = exp(-2.f * size);
  Floats big = (1.f - e) / (1.f + e);
  Floats square = x * x;  // near 0 the quotient would lose digits: a series there
  Floats small = fma(square * size, fma(square, fma(square, all(-17.f / 315), all(2.f / 15)), all(-1.f / 3)), size);
  Floats found = size < 0.25f ? small : big;
  return x < 0.f ? -found : found;
}

// Abramowitz and Stegun 7.1.26, absolute error 1.5e-7
static inline Floats erf(Floats x) {
  Floats size = x < 0.f ? -x : x;
  Floats t = 1.f / fma(size, all(0.3275911f), all(1.f));
  Floats p = fma(t, all(1.061405429f), all(-1.453152027f));
  p = fma(p, t, all(1.421413741f));
  p = fma(p, t, all(-0.284496736f));
  p = fma(p, t, all(0.254829592f)) * t;
  Floats found = 1.f - p * exp(-size * size);
  return x < 0.f ? -found : found;
}
