// How weights of WIDTH outputs gain sums. Included inside a set's namespace.
// A kind of floats has INPUTS in a step of 64 bytes of a panel and PARTS of it, each with an operand `X` of a row; part<h>()
// makes a part's weights once for all rows. CHAINS: vectors of sums that the registers hold beside the rest.

constexpr int VECTORS = PANEL / WIDTH;
constexpr int64_t STEP = 4 * PANEL;  // bytes of a panel that go together
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
typedef int8_t Chars __attribute__((vector_size(DW_WIDTH), aligned(1), may_alias));
typedef uint8_t Bytes __attribute__((vector_size(DW_WIDTH), aligned(1), may_alias));

// float16 as floats
static inline Floats halves(Shorts s) {
#if DW_WIDTH == 16 && defined(__AVX512F__)
  return (Floats)_mm512_maskz_cvtph_ps(0xffff, (__m256i)s);
#elif DW_WIDTH == 8 && defined(__F16C__)
  return (Floats)_mm256_cvtph_ps((__m128i)s);
#elif DW_WIDTH == 4 && defined(__aarch64__)
  return (Floats)vcvt_f32_f16((float16x4_t)s);
#else
  Words w = __builtin_convertvector(s, Words);
  Words size = (Words)(bits((w & 0x7fff) << 13) * 0x1p112f) | ((w & 0x7c00) == 0x7c00 ? 0x7f800000 : Words{});
  return bits(size | (w & 0x8000) << 16);
#endif
}
static inline Floats halves(const uint16_t* p) { return halves(*reinterpret_cast<const Shorts*>(p)); }

struct Float32 {
  typedef Floats Sum;
  typedef float X;
  static constexpr int INPUTS = 1, PARTS = 1, CHAINS = REGISTERS * 3 / 4;
  template <int> static inline Floats part(const uint8_t* w, int v) { return load(reinterpret_cast<const float*>(w) + v * WIDTH); }
  static inline Floats every(float x) { return all(x); }
  static inline Floats gain(Floats sum, Floats w, Floats x) { return fma(x, w, sum); }
};

struct Float16 : Float32 {  // [2][16] float16 in a step; an operand is a float
  static constexpr int INPUTS = 2, PARTS = 2, CHAINS = REGISTERS == 16 ? 12 : 24;
  template <int h> static inline Floats part(const uint8_t* w, int v) {
    return halves(reinterpret_cast<const uint16_t*>(w) + h * PANEL + v * WIDTH);
  }
};

// Floats of 8 bits, two inputs of an output beside each other: as float16 they are a 256th, which their scale makes up for.
struct Float8 : Float32 {
  typedef int16_t Signed __attribute__((vector_size(2 * DW_WIDTH), aligned(2), may_alias));
  static constexpr int INPUTS = 4, PARTS = 4, CHAINS = Float16::CHAINS;
  template <int h> static inline Floats part(const uint8_t* w, int v) {
    Shorts two = reinterpret_cast<const Shorts*>(w + h / 2 * 2 * PANEL)[v];
    if constexpr (h % 2 == 0) two <<= 8;
    return halves((Shorts)((Signed)two >> 1) & 0xbf80);  // the sign, then four digits of exponent and three more
  }
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
    vectors(k, [&](int64_t i, int64_t c) { ::dw::DW_SET::put(at + i, some(x + i, c), c); });
    std::memset(at + k, 0, 2 * (kp - k));
  }
};
#else
struct Bfloat16 : Float32 {  // an operand is a float with the digits of a bfloat16
  static constexpr int INPUTS = 2, PARTS = 2, CHAINS = REGISTERS == 16 ? 12 : 24;
  template <int h> static inline Floats part(const uint8_t* w, int v) {
    Words both = reinterpret_cast<const Words*>(w)[v];
    return bits(h ? both & 0xffff0000u : both << 16);
  }
  static inline void put(const float* x, int64_t k, int64_t kp, float* to) {
    vectors(k, [&](int64_t i, int64_t c) { ::dw::DW_SET::put(to + i, shortened(some(x + i, c)), c); });
    std::memset(to + k, 0, 4 * (kp - k));
  }
};
#endif

// Whole numbers, four inputs at a time: lane n of a sum gains x0 w[n][0] + .. + x3 w[n][3], exactly, so that every set has
// the same. Codes are bytes without sign; those of 8 bits (WIDE) lose 128 where products want signs.

struct Given {  // of a group of a row's whole numbers: x = factor * number
  float factor, total;   // factor * sum
  int32_t sum, half[2];  // of the numbers, and of each half of them
};

#if defined(__SSE2__)
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
#endif

#if defined(DW_VNNI)
constexpr bool SIGNED = false;  // whether products want codes with signs
#else
constexpr bool SIGNED = true;
#endif

// sum + codes of w times numbers of x; w is below 64 or, if WIDE, has a sign where products want signs
template <bool WIDE> DW_INLINE Ints dot(Ints sum, Ints w, Ints x) {
#if defined(DW_EMULATED)
  return sum + (w & 255) * (x << 24 >> 24) + (w >> 8 & 255) * (x << 16 >> 24) + (w >> 16 & 255) * (x << 8 >> 24) + (w >> 24 & 255) * (x >> 24);
#elif defined(__AVX512VNNI__)
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x);
#elif defined(__ARM_FEATURE_DOTPROD)
  return (Ints)vdotq_s32((int32x4_t)sum, (int8x16_t)w, (int8x16_t)x);
#elif defined(__aarch64__)
  int16x8_t low = vmull_s8(vget_low_s8((int8x16_t)w), vget_low_s8((int8x16_t)x)), high = vmull_high_s8((int8x16_t)w, (int8x16_t)x);
  return sum + (Ints)vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
#elif DW_WIDTH > 4 && defined(__AVX2__)
  if constexpr (WIDE) {  // |w| times x with the sign of w: two products are at most 2 * 128 * 127
#if DW_WIDTH == 16
    x = (Ints)_mm512_mask_sub_epi8((Vector)x, _mm512_movepi8_mask((Vector)w), _mm512_setzero_si512(), (Vector)x);
#else
    x = (Ints)_mm256_sign_epi8((Vector)x, (Vector)w);
#endif
    w = (Ints)DW_VECTOR(abs_epi8)((Vector)w);
  }
  return sum + (Ints)DW_VECTOR(madd_epi16)(DW_VECTOR(maddubs_epi16)((Vector)w, (Vector)x), DW_VECTOR(set1_epi16)(1));
#elif defined(__SSE2__)  // the even and the odd bytes as int16
  const auto even = [](Ints v) { return DW_VECTOR(srai_epi16)(DW_VECTOR(slli_epi16)((Vector)v, 8), 8); };
  const auto odd = [](Ints v) { return DW_VECTOR(srai_epi16)((Vector)v, 8); };
  return sum + (Ints)DW_VECTOR(madd_epi16)(even(w), even(x)) + (Ints)DW_VECTOR(madd_epi16)(odd(w), odd(x));
#else
  return sum + (w << 24 >> 24) * (x << 24 >> 24) + (w << 16 >> 24) * (x << 16 >> 24) + (w << 8 >> 24) * (x << 8 >> 24) + (w >> 24) * (x >> 24);
#endif
}

// bytes below 16 to what a table has for them, plus 128
DW_INLINE Ints looked_up(const int8_t* table, Ints codes) {
#if DW_WIDTH == 16 && defined(__AVX512BW__)
  const Vector t = _mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return (Ints)_mm512_shuffle_epi8(t, (Vector)codes) ^ static_cast<int32_t>(0x80808080u);
#elif DW_WIDTH == 8 && defined(__AVX2__)
  const Vector t = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return (Ints)_mm256_shuffle_epi8(t, (Vector)codes) ^ static_cast<int32_t>(0x80808080u);
#elif defined(__aarch64__) && DW_WIDTH == 4
  return (Ints)vqtbl1q_s8(vld1q_s8(table), (uint8x16_t)codes) ^ static_cast<int32_t>(0x80808080u);
#else
  uint8_t byte[4 * WIDTH];
  std::memcpy(byte, &codes, sizeof byte);
  for (uint8_t& b : byte) b = static_cast<uint8_t>(table[b & 15] + 128);
  Ints made;
  std::memcpy(&made, byte, sizeof byte);
  return made;
#endif
}

template <Type T> struct Numbers {
  static constexpr Layout L = layout(T);
  static constexpr bool WIDE = L.low == 8 || L.table;
  static constexpr int ZERO = L.zero - (WIDE && SIGNED ? 128 : 0);
#if DW_WIDTH > 4 && defined(__AVX2__) && !defined(DW_VNNI)
  static constexpr bool SHORT = L.low + L.high <= 4 && !WIDE;  // sums of int16: those of a group are at most 8 * 2 * 15 * 127
#else
  static constexpr bool SHORT = false;
#endif

  // The codes of inputs 4 s to 4 s + 3 of a group of 32, as bytes of each output.
  template <int s> DW_INLINE Ints code(const uint8_t* w, int v) {
    const auto vector = [&](int i) { return *reinterpret_cast<const Ints*>(w + i * STEP + v * 4 * WIDTH); };
    constexpr int low = s * L.low / 8, shift = s * L.low % 8;
    Ints made = vector(low);
    if constexpr (L.low < 8) made = (shift ? made >> shift : made) & (0x01010101 * ((1 << L.low) - 1));
    if constexpr (L.high > 0) {
      constexpr int at = s * L.high % 8, to = L.low, mask = 0x01010101 * (((1 << L.high) - 1) << L.low);
      const Ints above = vector(L.low + s * L.high / 8);
      made |= (at > to ? above >> (at - to) : above << (to - at)) & mask;
    }
    if constexpr (L.table != nullptr) made = looked_up(L.table, made);
    if constexpr (WIDE && SIGNED) made ^= static_cast<int32_t>(0x80808080u);
    return made;
  }

  DW_INLINE Ints gain(Ints sum, Ints w, Ints x) {
#if DW_WIDTH > 4 && defined(__AVX2__) && !defined(DW_VNNI)
    if constexpr (SHORT) return (Ints)DW_VECTOR(add_epi16)((Vector)sum, DW_VECTOR(maddubs_epi16)((Vector)w, (Vector)x));
#endif
    return dot<WIDE>(sum, w, x);
  }
  // What a sum begins with, and what it is in the end, where `sum` is that of a row's numbers.
  DW_INLINE Ints start(int32_t sum) { return SHORT || !ZERO ? Ints{} : (Ints{} - sum) * ZERO; }
  DW_INLINE Ints finish(Ints total, [[maybe_unused]] int32_t sum) {
#if DW_WIDTH > 4 && defined(__AVX2__) && !defined(DW_VNNI)
    if constexpr (SHORT) return (Ints)DW_VECTOR(madd_epi16)((Vector)total, DW_VECTOR(set1_epi16)(1)) - ZERO * sum;
#endif
    return total;
  }

  // Scales and shifts of group `group` of a block of a panel, for vector v of its outputs.
  DW_INLINE Floats scale(const uint8_t* block, int group, int v) {
    if constexpr (L.scales == Layout::PRODUCTS) return halves(outputs(block, v)) * small(block + 64, group, v, L.negative);
    else if constexpr (L.scales == Layout::BFLOATS) return load(outputs(block, v) + group * PANEL);
    else return halves(outputs(block, v) + group * PANEL);
  }
  DW_INLINE Floats shift(const uint8_t* block, int group, int v) {
    if constexpr (L.products()) return -(halves(outputs(block, v) + PANEL) * small(block + 64 + L.groups() * PANEL, group, v, false));
    else return halves(outputs(block, v) + (L.groups() + group) * PANEL);
  }

  // What codes of group `group` lose, whole.
  DW_INLINE Ints zeros(const uint8_t* block, int group, int v) {
    return __builtin_convertvector(small(block + 2 * L.groups() * PANEL, group, v, false), Ints);
  }

 private:
  static inline const uint16_t* outputs(const uint8_t* block, int v) { return reinterpret_cast<const uint16_t*>(block) + v * WIDTH; }
  DW_INLINE Floats small(const uint8_t* bytes, int group, int v, bool negative) {
    const uint8_t* at = bytes + group * PANEL + v * WIDTH;
#if DW_WIDTH == 16 && defined(__AVX512F__)
    const __m128i byte = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    return (Floats)_mm512_maskz_cvtepi32_ps(0xffff, negative ? _mm512_maskz_cvtepi8_epi32(0xffff, byte) : _mm512_maskz_cvtepu8_epi32(0xffff, byte));
#elif DW_WIDTH == 8 && defined(__AVX2__)
    const __m128i byte = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
    return (Floats)_mm256_cvtepi32_ps(negative ? _mm256_cvtepi8_epi32(byte) : _mm256_cvtepu8_epi32(byte));
#else
    return negative ? __builtin_convertvector(__builtin_convertvector(*reinterpret_cast<const Chars*>(at), Ints), Floats)
                    : __builtin_convertvector(__builtin_convertvector(*reinterpret_cast<const Bytes*>(at), Ints), Floats);
#endif
  }
};
