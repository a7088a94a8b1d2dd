// log(1 + e^x), which makes time steps positive.
#pragma once

#include "vector.h"

namespace PLIMSOLL_ISA {

// log x of a normal x to about 2 units in the last place: x = m 2^n with m from the root of 1/2 to that of 2, and a
// polynomial in m - 1 (Cephes).
inline floats logarithm(floats x) {
  const ints u = bits<ints>(x);
  ints n = ((u >> 23) & 0xff) - 126;
  floats m = bits<floats>((u & 0x7fffff) | 0x3f000000);
  const ints low = m < 0.707106781186547524f;
  n += low;  // a true lane is -1
  m = (low ? m + m : m) - 1.0f;
  floats p = broadcast(7.0376836292e-2f);
  p = p * m + -1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m + -1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m + -1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m + -2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const floats square = m * m, exponent = __builtin_convertvector(n, floats);
  const floats rest = p * m * square + exponent * -2.12194440e-4f - 0.5f * square;
  return m + rest + exponent * 0.693359375f;
}

// Above 20 it is x. The quotient restores the digits that are lost when 1 is added to e^x (Kahan).
inline floats softplus(floats x) {
  const floats e = exponential(x), u = e + 1.0f, gone = u - 1.0f;
  const ints tiny = gone == 0.0f, same = x > 20.0f;
  const floats found = logarithm(u) * (e / (tiny ? broadcast(1.0f) : gone));
  return same ? x : tiny ? e : found;
}

}  // namespace PLIMSOLL_ISA
