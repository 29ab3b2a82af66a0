/* vec_exp.h — exp and tanh over a vector, the same in every lane; included after vec_avx2.h or vec_avx512.h.
 *
 * exp x = 2^n e^r with n the integer nearest x / ln 2 and |r| <= ln 2 / 2; e^r = 1 + r + r² Q(r), Q of degree 4 fitted to 3e-9.
 * The result is within 2 units in the last place for x in [-87.3, 88.3], 0 below, e^88.3 above; NaN stays NaN.
 */
#ifndef CYGNET_VEC_EXP_H
#define CYGNET_VEC_EXP_H

#define EXP_LOWEST  (-87.33f) /* 2^-126 and a little more: no denormal numbers */
#define EXP_HIGHEST 88.37f    /* n stays <= 127 */

/* e^x - 1 = 2^n m + (2^n - 1), where m = e^r - 1 is returned and x is within the limits above. */
static ALWAYS_INLINE vec vec_exp_parts(vec x, vec *two_n) {
  const vec magic = vec_set1(0x1.8p23f);
  vec t = vec_fma(x, vec_set1(0x1.715476p0f), magic), n = vec_sub(t, magic);
  vec r = vec_fnma(n, vec_set1(0x1.62p-1f), x); /* exact: ln 2 in two parts, the first of 8 bits */
  r = vec_fnma(n, vec_set1(0x1.c85fdfp-10f), r);
  vec q = vec_set1(0x1.6a23cep-10f);
  q = vec_fma(q, r, vec_set1(0x1.123a20p-7f));
  q = vec_fma(q, r, vec_set1(0x1.5558f2p-5f));
  q = vec_fma(q, r, vec_set1(0x1.555492p-3f));
  q = vec_fma(q, r, vec_set1(0x1.fffffcp-2f));
  *two_n = vec_pow2_of_magic(t);
  return vec_fma(vec_mul(q, r), r, r);
}

static ALWAYS_INLINE vec vec_exp(vec x) {
  vec two_n, in = vec_min(vec_set1(EXP_HIGHEST), vec_max(vec_set1(EXP_LOWEST), x));
  vec m = vec_exp_parts(in, &two_n);
  return vec_zero_below(vec_fma(two_n, m, two_n), x, vec_set1(EXP_LOWEST));
}

/* e / (e + 2) with e = exp(2x) - 1, which keeps the relative accuracy near 0. */
static ALWAYS_INLINE vec vec_tanh(vec x) {
  vec two_n, one = vec_set1(1);
  vec in = vec_min(vec_set1(40), vec_max(vec_set1(-40), vec_add(x, x)));
  vec m = vec_exp_parts(in, &two_n);
  vec e = vec_fma(two_n, m, vec_sub(two_n, one));
  return vec_div(e, vec_add(e, vec_set1(2)));
}

#endif
