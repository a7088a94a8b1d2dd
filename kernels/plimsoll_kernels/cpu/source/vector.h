// Vectors of one instruction set: LANES floats, their loads, stores, reductions and elementary functions.
//
// Every translation unit that includes this first defines PLIMSOLL_ISA (a namespace of its own) and LANES, and is
// compiled with the instruction set that it names: nothing here may be called before the processor was checked.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace PLIMSOLL_ISA {

using floats = float __attribute__((vector_size(LANES * 4)));
using ints = int32_t __attribute__((vector_size(LANES * 4)));
using halves = uint16_t __attribute__((vector_size(LANES * 2)));

constexpr float INFINITE = std::numeric_limits<float>::infinity();

template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

#if LANES == 16
constexpr ints LANE_NUMBERS = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#else
constexpr ints LANE_NUMBERS = {0, 1, 2, 3, 4, 5, 6, 7};
#endif

inline floats broadcast(float x) { return floats{} + x; }

inline floats load(const float *p) {
  floats v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline void store(float *p, floats v) { std::memcpy(p, &v, sizeof v); }

// bfloat16 is the upper half of a float.
inline floats load(const uint16_t *p) {
  halves h;
  std::memcpy(&h, p, sizeof h);
  return bits<floats>(__builtin_convertvector(h, ints) << 16);
}

inline float widen(uint16_t x) { return bits<float>(static_cast<uint32_t>(x) << 16); }
inline float widen(float x) { return x; }

// Rounds to the nearest bfloat16, ties to even; a NaN stays one.
inline uint16_t narrow(float x) {
  const uint32_t u = bits<uint32_t>(x);
  if (x != x) return static_cast<uint16_t>((u >> 16) | 0x40);
  return static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

inline void store(uint16_t *p, floats v) {
#if defined(__AVX512BF16__)
  const __m256bh h = _mm512_cvtneps_pbh(bits<__m512>(v));
  std::memcpy(p, &h, sizeof h);
#else
  ints u = bits<ints>(v);
  const ints rounded = u + 0x7fff + ((u >> 16) & 1);
  u = (v != v) ? (u | 0x400000) : rounded;
  const halves h = __builtin_convertvector(u >> 16, halves);
  std::memcpy(p, &h, sizeof h);
#endif
}

template <class T>
inline void put(T *p, float x);
template <>
inline void put<float>(float *p, float x) { *p = x; }
template <>
inline void put<uint16_t>(uint16_t *p, float x) { *p = narrow(x); }

inline floats largest(floats a, floats b) { return a > b ? a : b; }

inline float sum(__m128 v) {
  v = _mm_add_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)));
}

inline float maximum(__m128 v) {
  v = _mm_max_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)));
}

inline __m256 upper(floats v) {
#if LANES == 16
  return _mm256_castpd_ps(_mm512_extractf64x4_pd(bits<__m512d>(v), 1));
#else
  return bits<__m256>(v);
#endif
}

// Halves are added to halves, always in the same order.
inline float sum(floats v) {
#if LANES == 16
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(bits<__m512>(v)), upper(v));
#else
  const __m256 half = upper(v);
#endif
  return sum(_mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

inline float maximum(floats v) {
#if LANES == 16
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(bits<__m512>(v)), upper(v));
#else
  const __m256 half = upper(v);
#endif
  return maximum(_mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

// Prefetches into the first or the second level cache. Not with the compiler's builtin, which is removed from functions
// that seem to have no other effect.
inline __attribute__((always_inline)) void prefetch_near(const void *p) {
  asm volatile("prefetcht0 (%0)" : : "r"(p));
}
inline __attribute__((always_inline)) void prefetch_far(const void *p) {
  asm volatile("prefetcht1 (%0)" : : "r"(p));
}
inline __attribute__((always_inline)) void prefetch_to_write(const void *p) {
  asm volatile("prefetchw (%0)" : : "r"(p));
}

inline bool any(ints mask) {
  int32_t parts[LANES];
  std::memcpy(parts, &mask, sizeof mask);
  int32_t found = 0;
  for (int i = 0; i < LANES; i++) found |= parts[i];
  return found != 0;
}

// e^x to about 2 units in the last place: x = n ln 2 + r, a polynomial in r (Cephes), and n into the exponent. Below
// -87 the result is 0, and so is e^-inf.
inline floats exponential(floats x) {
  const floats low = broadcast(-87.0f), high = broadcast(88.0f);
  const ints none = x < low;
  x = x > high ? high : x;
  x = none ? low : x;
  const floats magic = broadcast(12582912.0f);  // 1.5 x 2^23: adding it rounds to an integer
  const floats n = (x * 1.44269504088896341f + magic) - magic;
  const floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  floats p = broadcast(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const ints scale = (__builtin_convertvector(n, ints) + 127) << 23;
  const floats result = p * bits<floats>(scale);
  return none ? floats{} : result;
}

// tanh(x) = 1 - 2 / (e^2x + 1): near 0 it loses relative accuracy, never absolute.
inline floats hyperbolic_tangent(floats x) { return 1.0f - 2.0f / (exponential(x + x) + 1.0f); }

inline floats silu(floats x) { return x / (exponential(-x) + 1.0f); }

inline floats gelu_tanh(floats x) {
  const floats inner = 0.7978845608028654f * (x + 0.044715f * (x * x * x));
  return 0.5f * x * (1.0f + hyperbolic_tangent(inner));
}

// erf(x) to some units in the last place: a quotient of polynomials (as in Eigen), which is 1 in float32 beyond 4.
inline floats error_function(floats x) {
  const floats end = broadcast(4.0f);
  x = x > end ? end : x;
  x = x < -end ? -end : x;
  const floats square = x * x;
  floats above = broadcast(-2.72614225801306e-10f);
  above = above * square + 2.77068142495902e-08f;
  above = above * square + -2.10102402082508e-06f;
  above = above * square + -5.69250639462346e-05f;
  above = above * square + -7.34990630326855e-04f;
  above = above * square + -2.95459980854025e-03f;
  above = above * square + -1.60960333262415e-02f;
  floats below = broadcast(-1.45660718464996e-05f);
  below = below * square + -2.13374055278905e-04f;
  below = below * square + -1.68282697438203e-03f;
  below = below * square + -7.37332916720468e-03f;
  below = below * square + -1.42647390514189e-02f;
  return x * above / below;
}

inline floats gelu(floats x) { return 0.5f * x * (1.0f + error_function(x * 0.70710678118654752f)); }

inline floats relu(floats x) { return x < 0 ? floats{} : x; }

}  // namespace PLIMSOLL_ISA
