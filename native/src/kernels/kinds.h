// How the weights of WIDTH outputs gain sums, 64 bytes of a panel (a step) at a time. Included inside a set's namespace.
// A kind has INPUTS in a step and PARTS of it, each with an operand `X` of a row; part<h>() makes a part's weights once for
// all rows. CHAINS: vectors of sums that the registers hold beside the rest.

constexpr int VECTORS = PANEL / WIDTH;
constexpr int64_t STEP = 4 * PANEL;  // bytes of a panel that go together
#if DW_WIDTH == 16 || defined(__aarch64__)
constexpr int REGISTERS = 32;
#else
constexpr int REGISTERS = 16;
#endif
#ifdef DW_EMULATED  // instructions that this build does not have, computed in C++: to test what is around them
#define DW_VNNI
#define DW_BF16
#else
#ifdef __AVX512VNNI__
#define DW_VNNI
#endif
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define DW_BF16
#endif
#endif
typedef int8_t Chars __attribute__((vector_size(DW_WIDTH)));

struct Given {  // of a group of a row's whole numbers: x = factor * number; total = factor * sum
  float factor, total;
  int32_t sum;
};

// rounded to a bfloat16's digits, to nearest even; a NaN stays one
static inline Floats shortened(Floats x) {
  Words w = (Words)x;
  Words near = (w + 0x7fff + (w >> 16 & 1)) & 0xffff0000u;
  return bits((w & 0x7fffffff) > 0x7f800000 ? (w | 0x400000) & 0xffff0000u : near);
}

// WIDTH numbers of float16 as floats
static inline Floats halves(const uint16_t* p) {
#if DW_WIDTH == 16 && defined(__AVX512F__)
  return (Floats)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif DW_WIDTH == 8 && defined(__F16C__)
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif DW_WIDTH == 4 && defined(__aarch64__)
  return (Floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
  Words w = __builtin_convertvector(*reinterpret_cast<const Shorts*>(p), Words);
  Words size = (Words)(bits((w & 0x7fff) << 13) * 0x1p112f) | ((w & 0x7c00) == 0x7c00 ? 0x7f800000 : Words{});
  return bits(size | (w & 0x8000) << 16);
#endif
}

struct Float32 {
  typedef Floats Sum;
  typedef float X;
  static constexpr bool WHOLE = false;
  static constexpr int INPUTS = 1, PARTS = 1, CHAINS = REGISTERS * 3 / 4;
  template <int> static inline Floats part(const uint8_t* w) { return load(reinterpret_cast<const float*>(w)); }
  static inline Floats every(float x) { return all(x); }
  static inline Floats gain(Floats sum, Floats w, Floats x) { return fma(x, w, sum); }
};

#ifdef DW_BF16
struct Bfloat16 : Float32 {  // an operand is a pair of bfloat16
  typedef int32_t X;
  static constexpr int INPUTS = 2;
  static inline Floats every(int32_t x) { return bits(x - Ints{}); }
  static inline Floats gain(Floats sum, Floats w, Floats x) {
#if defined(__AVX512BF16__) && DW_WIDTH == 16
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)x);
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    return (Floats)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)w, (bfloat16x8_t)x);
#else
    sum = fma(bits((Words)w & 0xffff0000u), bits((Words)x & 0xffff0000u), sum);
    return fma(bits((Words)w << 16), bits((Words)x << 16), sum);
#endif
  }
  static inline void put(const float* x, int64_t k, int64_t kp, int32_t* to) {
    bf16* at = reinterpret_cast<bf16*>(to);
    vectors(k, [&](int64_t i, int64_t c) {
      Shorts digits = __builtin_convertvector((Words)shortened(some(x + i, c)) >> 16, Shorts);
      std::memcpy(at + i, &digits, 2 * c);
    });
    std::memset(at + k, 0, 2 * (kp - k));
  }
};
#else
struct Bfloat16 : Float32 {  // an operand is a float with the digits of a bfloat16
  static constexpr int INPUTS = 2, PARTS = 2, CHAINS = REGISTERS == 16 ? 12 : 24;
  template <int h> static inline Floats part(const uint8_t* w) {
    Words both = *reinterpret_cast<const Words*>(w);
    return bits(h ? both & 0xffff0000u : both << 16);
  }
  static inline void put(const float* x, int64_t k, int64_t kp, float* to) {
    vectors(k, [&](int64_t i, int64_t c) { ::dw::DW_SET::put(to + i, shortened(some(x + i, c)), c); });
    std::memset(to + k, 0, 4 * (kp - k));
  }
};
#endif

// Whole numbers, four inputs at a time: lane n of a sum gains x0 w[n][0] + .. + x3 w[n][3], exactly, so every set has the
// same. Int8: weights of 8 bits; Int4: of 4 bits without sign, in a step those of four inputs in the low and of four in
// the high bits.
struct Whole {
  typedef Ints Sum;
  typedef int32_t X;
  static constexpr bool WHOLE = true, PUT = false, SHIFTS = false;
  static inline Ints every(int32_t x) { return x - Ints{}; }
  static inline Ints total(Ints sum, const Given&) { return sum; }
};

#ifdef DW_VNNI  // bytes of w without sign
static inline Ints dot(Ints sum, Ints w, Ints x) {
#ifdef __AVX512VNNI__
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x);
#else
  return sum + (w & 255) * (x << 24 >> 24) + (w >> 8 & 255) * (x << 16 >> 24) + (w >> 16 & 255) * (x << 8 >> 24) + (w >> 24 & 255) * (x >> 24);
#endif
}
#elif defined(__aarch64__)
static inline Ints dot(Ints sum, Ints w, Ints x) {
#ifdef __ARM_FEATURE_DOTPROD
  return (Ints)vdotq_s32((int32x4_t)sum, (int8x16_t)w, (int8x16_t)x);
#else
  int16x8_t low = vmull_s8(vget_low_s8((int8x16_t)w), vget_low_s8((int8x16_t)x)), high = vmull_high_s8((int8x16_t)w, (int8x16_t)x);
  return sum + (Ints)vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
#endif
}
#else
static inline Ints dot(Ints sum, Ints w, Ints x) {
  return sum + (w << 24 >> 24) * (x << 24 >> 24) + (w << 16 >> 24) * (x << 16 >> 24) + (w << 8 >> 24) * (x << 8 >> 24) + (w >> 24) * (x >> 24);
}
#endif

#if defined(__SSE2__) && !defined(DW_VNNI)
#if DW_WIDTH == 16
typedef __m512i Vector;
#define DW_VECTOR(name) _mm512_##name
#elif DW_WIDTH == 8
typedef __m256i Vector;
#define DW_VECTOR(name) _mm256_##name
#else
typedef __m128i Vector;
#define DW_VECTOR(name) _mm_##name
#endif

struct Int8 : Whole {  // an operand has int16: inputs 0 and 2, then 1 and 3: what the even and the odd bytes of weights meet
  static constexpr bool PUT = true;
  static constexpr int INPUTS = 4, PARTS = 2, CHAINS = REGISTERS == 16 ? 12 : 24;
  template <int h> static inline Ints part(const uint8_t* w) {
    Vector all = (Vector)*reinterpret_cast<const Ints*>(w);
    return (Ints)DW_VECTOR(srai_epi16)(h ? all : DW_VECTOR(slli_epi16)(all, 8), 8);
  }
  static inline Ints gain(Ints sum, Ints w, Ints x) { return sum + (Ints)DW_VECTOR(madd_epi16)((Vector)w, (Vector)x); }
  static inline void put(const int8_t* x, int32_t* to) {
    for (int h = 0; h < 2; h++) to[h] = (x[h] & 0xffff) | static_cast<int32_t>(static_cast<uint32_t>(x[h + 2]) << 16);
  }
};
#else
struct Int8 : Whole {
  static constexpr int INPUTS = 4, PARTS = 1, CHAINS = REGISTERS * 3 / 4;
  template <int> static inline Ints part(const uint8_t* w) {
    Ints all = *reinterpret_cast<const Ints*>(w);
#ifdef DW_VNNI
    return all ^ static_cast<int32_t>(0x80808080u);  // 128 more; total() takes that back
  }
  static inline Ints total(Ints sum, const Given& given) {
    return sum - 128 * given.sum;
#else
    return all;
#endif
  }
  static inline Ints gain(Ints sum, Ints w, Ints x) { return dot(sum, w, x); }
};
#endif

struct Int4 : Whole {
  static constexpr bool SHIFTS = true;
  static constexpr int INPUTS = 8, PARTS = 2, CHAINS = REGISTERS == 16 ? 10 : 16;
  template <int h> static inline Ints part(const uint8_t* w) {
    return (*reinterpret_cast<const Ints*>(w) >> (h ? 4 : 0)) & 0x0f0f0f0f;
  }
#if DW_WIDTH > 4 && defined(__AVX2__) && !defined(DW_VNNI)  // sums of int16: those of a group are at most 8 * 2 * 15 * 127
  static inline Ints gain(Ints sum, Ints w, Ints x) {
    return (Ints)DW_VECTOR(add_epi16)((Vector)sum, DW_VECTOR(maddubs_epi16)((Vector)w, (Vector)x));
  }
  static inline Ints total(Ints sum, const Given&) { return (Ints)DW_VECTOR(madd_epi16)((Vector)sum, DW_VECTOR(set1_epi16)(1)); }
#else
  static inline Ints gain(Ints sum, Ints w, Ints x) { return dot(sum, w, x); }
#endif
};
