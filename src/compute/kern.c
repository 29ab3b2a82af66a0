/* kern.c — which kernels this machine can run. */
#include "compute/kern.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* Register state that the operating system saves: XCR0 bits. */
enum { XCR0_AVX = 0x06, XCR0_AVX512 = 0xe6 };

static bool os_saves(unsigned wanted) {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return false;
  __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return (a & wanted) == wanted;
}

static bool has_avx2(void) {
  unsigned a, b, c, d, want = bit_AVX | bit_FMA | bit_F16C;
  if (!os_saves(XCR0_AVX) || !__get_cpuid(1, &a, &b, &c, &d) || (c & want) != want) return false;
  want = bit_AVX2 | bit_BMI2;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & want) == want;
}

static bool has_avx512(void) {
  unsigned a, b, c, d, want = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
  if (!has_avx2() || !os_saves(XCR0_AVX512) || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  if ((b & want) != want || !(c & bit_AVX512VNNI)) return false;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & bit_AVX512BF16);
}
#else
static bool has_avx2(void) { return false; }
static bool has_avx512(void) { return false; }
#endif

static const struct kern *table_of(enum isa isa) {
  switch (isa) {
#if defined(__x86_64__)
  case ISA_AVX2: return &kern_avx2;
  case ISA_AVX512: return &kern_avx512;
#endif
  default: return &kern_ref;
  }
}

bool kern_available(enum isa isa) {
  switch (isa) {
  case ISA_AUTO:
  case ISA_REF: return true;
  case ISA_AVX2: return has_avx2();
#if defined(CYGNET_SIMDE)
  case ISA_AVX512: return has_avx2(); /* emulated with it; never chosen by itself */
#else
  case ISA_AVX512: return has_avx512();
#endif
  }
  return false;
}

const struct kern *kern_select(enum isa isa, struct err *e) {
  if (isa == ISA_AUTO) isa = has_avx512() ? ISA_AVX512 : has_avx2() ? ISA_AVX2 : ISA_REF;
  if (kern_available(isa)) return table_of(isa);
  if (isa == ISA_AVX2) err_set(e, ERR_UNSUPPORTED, "--isa avx2: this machine lacks AVX2, FMA, F16C or BMI2; use --isa ref");
  else
    err_set(e, ERR_UNSUPPORTED, "--isa avx512: this machine lacks AVX-512 F, BW, DQ, VL, VNNI or BF16; use --isa %s",
            has_avx2() ? "avx2" : "ref");
  return NULL;
}
