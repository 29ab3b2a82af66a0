/* kern.c — which kernels this machine can run. */
#include "compute/kern.h"

/* In the order of preference. */
static const struct variant {
  const struct kern *kern;
  unsigned needs;
} variants[] = {
    {&kern_ref, 0},
#if defined(__x86_64__)
    {&kern_avx2, CPU_AVX2},
    {&kern_avxvnni, CPU_AVX2 | CPU_AVX_VNNI},
    {&kern_avx512, CPU_AVX2 | CPU_AVX512},
    {&kern_avx512bf16, CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16},
    {&kern_amx, CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16 | CPU_AMX},
#endif
};

/* Bits as the processor manuals number them. */
enum {
  LEAF1_ECX_AVX2 = 1 << 12 | 1 << 27 | 1 << 28 | 1 << 29, /* FMA, OSXSAVE, AVX, F16C */
  LEAF7_EBX_AVX2 = 1 << 5 | 1 << 8,                       /* AVX2, BMI2 */
  LEAF7_ECX_VNNI = 1 << 11,
  LEAF7_ECX_VBMI = 1 << 1,
  LEAF7_EDX_AMX = 1 << 22 | 1 << 23 | 1 << 24 | 1 << 25, /* BF16, AVX512_FP16, TILE, INT8 */
  LEAF7_1_EAX_AVX_VNNI = 1 << 4,
  LEAF7_1_EAX_BF16 = 1 << 5,
  XCR0_AVX = 0x06,
  XCR0_AVX512 = 0xe6,
  XCR0_AMX = 0x60000,
};
#define LEAF7_EBX_AVX512 (1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) /* F, DQ, BW, VL */

static bool all(unsigned word, unsigned bits) { return (word & bits) == bits; }

unsigned kern_features(const struct cpu_words *w) {
  unsigned f = 0;
  if (!all(w->leaf1_ecx, LEAF1_ECX_AVX2) || !all(w->leaf7_ebx, LEAF7_EBX_AVX2) || !all(w->xcr0, XCR0_AVX)) return 0;
  f |= CPU_AVX2;
  if (all(w->leaf7_1_eax, LEAF7_1_EAX_AVX_VNNI)) f |= CPU_AVX_VNNI;
  if (!all(w->leaf7_ebx, LEAF7_EBX_AVX512) || !all(w->leaf7_ecx, LEAF7_ECX_VNNI) || !all(w->xcr0, XCR0_AVX512)) return f;
  f |= CPU_AVX512;
  if (all(w->leaf7_1_eax, LEAF7_1_EAX_BF16)) f |= CPU_AVX512_BF16;
  if (all(w->leaf7_edx, LEAF7_EDX_AMX) && all(w->leaf7_ecx, LEAF7_ECX_VBMI) && all(w->xcr0, XCR0_AMX)) f |= CPU_AMX;
  return f;
}

const struct kern *kern_choose(enum isa isa, unsigned features) {
  const struct kern *best = NULL;
  for (size_t i = 0; i < ARRAY_LEN(variants); i++) {
    const struct variant *v = &variants[i];
    if ((isa == ISA_AUTO || isa == v->kern->isa) && all(features, v->needs)) best = v->kern;
  }
  return best;
}

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__) && !defined(CYGNET_SIMDE)
#define ASK_FOR_TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Linux lets a process use tiles once it has asked: from then on each of its threads has room for them. To ask again is a system call and no more. */
static bool tiles_granted(void) {
#ifdef ASK_FOR_TILES
  enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
  return false;
#endif
}

static unsigned features_here(void) {
  struct cpu_words w = {0};
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &w.leaf1_ecx, &d)) return 0;
  if (w.leaf1_ecx & bit_OSXSAVE) __asm__ volatile("xgetbv" : "=a"(w.xcr0), "=d"(d) : "c"(0));
  if (!__get_cpuid_count(7, 0, &a, &w.leaf7_ebx, &w.leaf7_ecx, &w.leaf7_edx)) return 0;
  if (a >= 1) __get_cpuid_count(7, 1, &w.leaf7_1_eax, &b, &c, &d);
  unsigned f = kern_features(&w);
  return f & CPU_AMX && !tiles_granted() ? f & ~(unsigned)CPU_AMX : f;
}
#else
static unsigned features_here(void) { return 0; }
#endif

/* Emulation runs on AVX2; what it emulates is never chosen by itself. */
static unsigned features_run(void) {
  unsigned f = features_here();
#ifdef CYGNET_SIMDE
  if (f & CPU_AVX2) f |= CPU_AVX_VNNI | CPU_AVX512 | CPU_AVX512_BF16 | CPU_AMX;
#endif
  return f;
}

const struct kern *kern_variant(int i) {
  unsigned features = features_run();
  for (size_t v = 0; v < ARRAY_LEN(variants); v++) {
    if (all(features, variants[v].needs) && i-- == 0) return variants[v].kern;
  }
  return NULL;
}

bool kern_available(enum isa isa) { return kern_choose(isa, features_run()); }

const struct kern *kern_select(enum isa isa, struct err *e) {
  const struct kern *k = kern_choose(isa, features_here());
  if (!k) k = kern_choose(isa, features_run());
  if (k) return k;
  if (isa == ISA_AVX2) err_set(e, ERR_UNSUPPORTED, "--isa avx2: this machine lacks AVX2, FMA, F16C or BMI2; use --isa ref");
  else
    err_set(e, ERR_UNSUPPORTED, "--isa avx512: this machine lacks AVX-512 F, BW, DQ, VL or VNNI; use --isa %s",
            kern_available(ISA_AVX2) ? "avx2" : "ref");
  return NULL;
}
