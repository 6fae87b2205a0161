// How the weights of WIDTH outputs gain sums, 64 bytes of a panel (a step) at a time. Included inside a set's namespace.
// A kind has INPUTS in a step and PARTS of it, each with an operand `X` of a row; part<h>() makes its weights once for all rows.

// CHAINS: vectors of sums that the registers hold beside the rest.
#if DW_WIDTH == 16 || defined(__aarch64__)
constexpr int REGISTERS = 32;
#else
constexpr int REGISTERS = 16;
#endif

struct Float32 {
  typedef Floats Sum;
  typedef float X;
  static constexpr int INPUTS = 1, PARTS = 1, CHAINS = REGISTERS * 3 / 4;
  template <int> static inline Floats part(const uint8_t* w) { return load(reinterpret_cast<const float*>(w)); }
  static inline Floats every(float x) { return all(x); }
  static inline Floats gain(Floats sum, Floats w, Floats x) { return fma(x, w, sum); }
};

struct Bfloat16 : Float32 {  // an operand is a float with the digits of a bfloat16
  static constexpr int INPUTS = 2, PARTS = 2, CHAINS = REGISTERS == 16 ? 10 : 24;
  template <int h> static inline Floats part(const uint8_t* w) {
    Words both = *reinterpret_cast<const Words*>(w);
    return bits(h ? both & 0xffff0000u : both << 16);
  }
};

// Lane n of a sum gains x0 w[n][0] + .. + x3 w[n][3], exactly, so every set has the same.
#if defined(__SSE2__) && DW_WIDTH < 16
struct Int8 {
  typedef Ints Sum;
  typedef int32_t X;  // as int16: inputs 0 and 2, then 1 and 3: what the even and the odd bytes of weights meet
  static constexpr int INPUTS = 4, PARTS = 2, CHAINS = 10;
#if DW_WIDTH == 8
  template <int h> static inline Ints part(const uint8_t* w) {
    __m256i all = *reinterpret_cast<const __m256i_u*>(w);
    return (Ints)_mm256_srai_epi16(h ? all : _mm256_slli_epi16(all, 8), 8);
  }
  static inline Ints gain(Ints sum, Ints w, Ints x) { return sum + (Ints)_mm256_madd_epi16((__m256i)w, (__m256i)x); }
#else
  template <int h> static inline Ints part(const uint8_t* w) {
    __m128i all = *reinterpret_cast<const __m128i_u*>(w);
    return (Ints)_mm_srai_epi16(h ? all : _mm_slli_epi16(all, 8), 8);
  }
  static inline Ints gain(Ints sum, Ints w, Ints x) { return sum + (Ints)_mm_madd_epi16((__m128i)w, (__m128i)x); }
#endif
  static inline Ints every(int32_t x) { return x - Ints{}; }
  static inline void put(const int8_t* x, int32_t* to) {
    for (int h = 0; h < 2; h++) to[h] = (x[h] & 0xffff) | static_cast<int32_t>(static_cast<uint32_t>(x[h + 2]) << 16);
  }
};
#else
struct Int8 {
  typedef Ints Sum;
  typedef int32_t X;
  static constexpr int INPUTS = 4, PARTS = 1, CHAINS = REGISTERS * 3 / 4;
  template <int> static inline Ints part(const uint8_t* w) { return *reinterpret_cast<const Ints*>(w); }
  static inline Ints every(int32_t x) { return x - Ints{}; }
  static inline Ints gain(Ints sum, Ints w, Ints x) {
    return sum + (w << 24 >> 24) * (x << 24 >> 24) + (w << 16 >> 24) * (x << 16 >> 24) + (w << 8 >> 24) * (x << 8 >> 24) + (w >> 24) * (x >> 24);
  }
  static inline void put(const int8_t* x, int32_t* to) { std::memcpy(to, x, 4); }
};
#endif
