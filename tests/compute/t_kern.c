/* t_kern.c — every level's elementwise kernels against double arithmetic, for all lengths, up against inaccessible pages. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compute/gemm_kern.h"
#include "compute/kern.h"

enum { N_MOST = 1153 };

static const struct kern *levels[8];
static int n_levels;

static int start(void **state) {
  (void)state;
  while ((levels[n_levels] = kern_variant(n_levels))) n_levels++;
  return 0;
}

/* Arrays of exactly n floats whose next byte is out of bounds. */
struct arrays {
  float *x, *w, *y, *before;
  int n;
};
static struct arrays new_arrays(int n, uint64_t *rand, float size) {
  size_t n_bytes = sizeof(float) * (size_t)n;
  struct arrays a = {test_guard_alloc(n_bytes), test_guard_alloc(n_bytes), test_guard_alloc(n_bytes), test_guard_alloc(n_bytes), n};
  for (int i = 0; i < n; i++) {
    a.x[i] = size * test_rand_normal(rand), a.w[i] = test_rand_normal(rand), a.y[i] = test_rand_normal(rand);
    a.before[i] = a.y[i];
  }
  return a;
}
static void free_arrays(struct arrays *a) {
  size_t n_bytes = sizeof(float) * (size_t)a->n;
  test_guard_free(a->x, n_bytes);
  test_guard_free(a->w, n_bytes);
  test_guard_free(a->y, n_bytes);
  test_guard_free(a->before, n_bytes);
}

static double worst;
/* |got - want| <= rel |want| + abs */
static void expect(const struct kern *k, const char *what, int n, int i, float got, double want, double rel, double abs_tolerance) {
  double d = fabs((double)got - want);
  worst = MAX(worst, d / (fabs(want) + abs_tolerance / rel));
  if (!(d <= rel * fabs(want) + abs_tolerance)) fail_msg("%s %s n %d at %d: %.9g, expected %.9g", k->name, what, n, i, (double)got, want);
}

static int length(int i) {
  static const int more[] = {127, 128, 129, 256, 640, 1000, 1152, N_MOST};
  return i <= 70 ? i : more[i - 71];
}
#define FOR_EACH_LENGTH(level, n)                                                                                                          \
  for (int level = 0; level < n_levels; level++)                                                                                           \
    for (int at_ = 1, n; at_ <= 78 && (n = length(at_)); at_++)

static double norm_factor(const float *x, int n, double eps) {
  double sum = 0;
  for (int i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
  return 1 / sqrt(sum / n + eps);
}

static void rmsnorm(void **state) {
  (void)state;
  uint64_t rand = 1;
  FOR_EACH_LENGTH(level, n) {
    const struct kern *k = levels[level];
    struct arrays a = new_arrays(n, &rand, n % 3 ? 1 : 1e-4f);
    double f = norm_factor(a.x, n, (double)1e-6f);
    for (int with_w = 0; with_w < 2; with_w++) {
      const float *w = with_w ? a.w : NULL;
      k->rmsnorm(a.y, a.x, w, n, 1e-6f);
      for (int i = 0; i < n; i++) expect(k, "rmsnorm", n, i, a.y[i], (double)a.x[i] * f * (w ? (double)w[i] : 1), 1e-6, 0);
      memcpy(a.y, a.before, sizeof(float) * (size_t)n);
      k->add_rmsnorm(a.y, a.x, w, n, 1e-6f);
      for (int i = 0; i < n; i++) {
        double term = (double)a.x[i] * f * (w ? (double)w[i] : 1);
        expect(k, "add_rmsnorm", n, i, a.y[i], (double)a.before[i] + term, 1e-6, 1e-6 * fabs(term));
      }
    }
    float *same = a.x; /* in place */
    k->rmsnorm(a.y, a.x, a.w, n, 1e-6f);
    k->rmsnorm(same, same, a.w, n, 1e-6f);
    assert_memory_equal(same, a.y, sizeof(float) * (size_t)n);
    free_arrays(&a);
  }
}

static void add_and_scale(void **state) {
  (void)state;
  uint64_t rand = 2;
  FOR_EACH_LENGTH(level, n) {
    struct arrays a = new_arrays(n, &rand, 1);
    levels[level]->add(a.y, a.x, n);
    for (int i = 0; i < n; i++) assert_true(a.y[i] == a.before[i] + a.x[i]);
    levels[level]->scale(a.y, a.x, 1.7f, n);
    for (int i = 0; i < n; i++) assert_true(a.y[i] == a.x[i] * 1.7f);
    levels[level]->scale(a.x, a.x, 1.7f, n);
    assert_memory_equal(a.x, a.y, sizeof(float) * (size_t)n);
    free_arrays(&a);
  }
}

static double gelu(double x) { return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x))); }
static double silu(double x) { return x / (1 + exp(-x)); }

static void gated(void **state) {
  (void)state;
  uint64_t rand = 3;
  FOR_EACH_LENGTH(level, n) {
    const struct kern *k = levels[level];
    for (int act = ACT_GELU_TANH; act <= ACT_SILU; act++) {
      struct arrays a = new_arrays(n, &rand, 2);
      k->gated(a.y, a.x, a.w, (enum act)act, n);
      for (int i = 0; i < n; i++) {
        double x = (double)a.x[i], want = (act == ACT_SILU ? silu(x) : gelu(x)) * (double)a.w[i];
        expect(k, act == ACT_SILU ? "silu" : "gelu", n, i, a.y[i], want, 2e-6, 2e-7 * fabs((double)a.w[i]));
      }
      k->gated(a.x, a.x, a.w, (enum act)act, n); /* in place */
      assert_memory_equal(a.x, a.y, sizeof(float) * (size_t)n);
      free_arrays(&a);
    }
  }
}

/* The whole range of an activation, and the relative error where the fast levels promise one. */
static void activations_over_their_range(void **state) {
  (void)state;
  for (int level = 0; level < n_levels; level++) {
    const struct kern *k = levels[level];
    worst = 0;
    for (int i = -130000; i <= 130000; i++) {
      float x = (float)i * 1e-3f, one = 1, y;
      k->gated(&y, &x, &one, ACT_SILU, 1);
      expect(k, "silu", 1, i, y, silu((double)x), x > -80 ? 1e-6 : 1, 1e-35);
      k->gated(&y, &x, &one, ACT_GELU_TANH, 1);
      expect(k, "gelu", 1, i, y, gelu((double)x), 1e-6, 2e-7);
    }
    printf("%s: activations within %.2g\n", k->name, worst);
    for (float x = 1e-30f; x < 1e30f; x *= 1.01f) {
      for (int sign = -1; sign <= 1; sign += 2) {
        float in = x * (float)sign, y;
        k->softcap(&y, &in, 30, 1);
        expect(k, "softcap", 1, 0, y, 30 * tanh((double)in / 30), 1e-6, 0);
      }
    }
    float nan = NAN, one = 1, y = 0;
    k->gated(&y, &nan, &one, ACT_SILU, 1);
    assert_true(isnan(y));
    k->gated(&y, &nan, &one, ACT_GELU_TANH, 1);
    assert_true(isnan(y));
    k->softcap(&y, &nan, 30, 1);
    assert_true(isnan(y));
  }
}

static void softcap(void **state) {
  (void)state;
  uint64_t rand = 4;
  FOR_EACH_LENGTH(level, n) {
    const struct kern *k = levels[level];
    struct arrays a = new_arrays(n, &rand, n % 2 ? 20 : 1);
    k->softcap(a.y, a.x, 30, n);
    for (int i = 0; i < n; i++) expect(k, "softcap", n, i, a.y[i], 30 * tanh((double)a.x[i] / 30), 1e-6, 0);
    k->softcap(a.x, a.x, 30, n);
    assert_memory_equal(a.x, a.y, sizeof(float) * (size_t)n);
    free_arrays(&a);
  }
}

static void rope(void **state) {
  (void)state;
  uint64_t rand = 5;
  FOR_EACH_LENGTH(level, n) {
    if (n % 2) continue;
    const struct kern *k = levels[level];
    int half = n / 2;
    struct arrays a = new_arrays(n, &rand, 1), angle = new_arrays(half, &rand, 1);
    for (int i = 0; i < half; i++) angle.y[i] = cosf(angle.x[i]), angle.w[i] = sinf(angle.x[i]);
    memcpy(a.y, a.x, sizeof(float) * (size_t)n);
    k->rope(a.y, angle.y, angle.w, n);
    for (int i = 0; i < half; i++) {
      double p = (double)a.x[i], q = (double)a.x[i + half], c = (double)angle.y[i], s = (double)angle.w[i];
      expect(k, "rope", n, i, a.y[i], p * c - q * s, 1e-6, 2e-7 * (fabs(p) + fabs(q)));
      expect(k, "rope", n, i + half, a.y[i + half], q * c + p * s, 1e-6, 2e-7 * (fabs(p) + fabs(q)));
    }
    free_arrays(&a);
    free_arrays(&angle);
  }
}

/* A number's bits do not depend on its lane, on the length, or on alignment. */
static void bits_do_not_depend_on_the_place(void **state) {
  (void)state;
  uint64_t rand = 6;
  for (int level = 0; level < n_levels; level++) {
    const struct kern *k = levels[level];
    float x[67], w[67], c[67], y[67], one[4];
    for (int i = 0; i < 67; i++) x[i] = 3 * test_rand_normal(&rand), w[i] = test_rand_normal(&rand), c[i] = test_rand_normal(&rand);
    for (int act = ACT_GELU_TANH; act <= ACT_SILU; act++) {
      k->gated(y, x, w, (enum act)act, 67);
      for (int i = 0; i < 67; i++) {
        k->gated(one, x + i, w + i, (enum act)act, 1);
        assert_memory_equal(one, y + i, sizeof(float));
      }
    }
    k->softcap(y, x, 5, 67);
    for (int i = 0; i < 67; i++) {
      k->softcap(one, x + i, 5, 1);
      assert_memory_equal(one, y + i, sizeof(float));
    }
    memcpy(y, x, sizeof x);
    k->rope(y, w, c, 66);
    for (int i = 0; i < 33; i++) {
      one[0] = x[i], one[1] = x[i + 33];
      k->rope(one, w + i, c + i, 2);
      assert_memory_equal(one, y + i, sizeof(float));
      assert_memory_equal(one + 1, y + i + 33, sizeof(float));
    }
    float buffer[67 + 16], z[67 + 16];
    k->rmsnorm(y, x, w, 67, 1e-6f);
    for (int shift = 0; shift < 16; shift++) {
      memcpy(buffer + shift, x, sizeof x);
      k->rmsnorm(z + shift, buffer + shift, w, 67, 1e-6f);
      assert_memory_equal(z + shift, y, sizeof y);
    }
  }
}

static void argmax(void **state) {
  (void)state;
  uint64_t rand = 7;
  FOR_EACH_LENGTH(level, n) {
    const struct kern *k = levels[level];
    struct arrays a = new_arrays(n, &rand, 1);
    for (int round = 0; round < 6; round++) {
      if (round & 1) { /* many ties, and masked entries */
        for (int i = 0; i < n; i++) a.x[i] = test_rand_int(&rand, 0, 3) ? (float)test_rand_int(&rand, -3, -1) : -INFINITY;
      }
      int want = 0;
      for (int i = 1; i < n; i++) want = a.x[i] > a.x[want] ? i : want;
      bool bad = true;
      assert_int_equal(k->argmax(a.x, n, &bad), want);
      assert_false(bad);
      for (int i = 0; i < n; i++) a.x[i] = test_rand_normal(&rand);
    }
    for (int i = 0; i < n; i++) a.x[i] = -INFINITY;
    bool bad = true;
    assert_int_equal(k->argmax(a.x, n, &bad), 0);
    assert_false(bad);
    a.x[n - 1] = -1;
    assert_int_equal(k->argmax(a.x, n, &bad), n - 1);
    for (int i = 0; i < n; i++) {
      float keep = a.x[i];
      const float strange[] = {NAN, -NAN, INFINITY};
      for (size_t s = 0; s < ARRAY_LEN(strange); s++) {
        a.x[i] = strange[s];
        int got = k->argmax(a.x, n, &bad);
        assert_true(bad && got >= 0 && got < n);
      }
      a.x[i] = keep;
    }
    free_arrays(&a);
  }
}

/* Also of rows in which only one place, any of them, is not finite. */
static void peaks(void **state) {
  (void)state;
  uint64_t rand = 8;
  FOR_EACH_LENGTH(level, n) {
    const struct kern *k = levels[level];
    struct arrays a = new_arrays(n, &rand, 1);
    int n_blocks = div_up(n, PEAK_BLOCK);
    float *got = test_guard_alloc((size_t)n_blocks * sizeof *got);
    for (int i = -1; i < n; i++) {
      const float strange[] = {NAN, -NAN, INFINITY, -INFINITY};
      for (size_t s = 0; s < ARRAY_LEN(strange) && (i >= 0 || s == 0); s++) {
        float keep = i >= 0 ? a.x[i] : 0;
        if (i >= 0) a.x[i] = strange[s];
        k->peaks(got, a.x, n);
        for (int b = 0; b < n_blocks; b++) {
          float want = -INFINITY;
          for (int j = b * PEAK_BLOCK; j < MIN(n, (b + 1) * PEAK_BLOCK); j++)
            if (isnan(a.x[j]) || a.x[j] > want) want = a.x[j];
          assert_true(isnan(want) ? isnan(got[b]) : got[b] == want);
        }
        if (i >= 0) a.x[i] = keep;
      }
      if (i >= 0) a.x[i] = test_rand_int(&rand, 0, 1) ? -INFINITY : test_rand_normal(&rand);
    }
    test_guard_free(got, (size_t)n_blocks * sizeof *got);
    free_arrays(&a);
  }
}

static void selection(void **state) {
  (void)state;
  struct err e = {0};
  assert_true(kern_available(ISA_REF));
  const struct kern *best = kern_select(ISA_AUTO, &e);
  assert_non_null(best);
  assert_ptr_equal(best, kern_select(best->isa, &e));
  for (int level = 0; level < n_levels; level++) {
    assert_non_null(levels[level]->gemm);
    assert_non_null(levels[level]->attn);
  }
  if (!kern_available(ISA_AVX512)) {
    assert_null(kern_select(ISA_AVX512, &e));
    assert_true(e.msg[0] != 0);
  }
}

/* What CPUID and XGETBV say on processors of each kind, by the bits in the manuals: what they have, whatever the system saves. */
#if defined(__x86_64__)
static void choice_by_processor(void **state) {
  (void)state;
  enum { SSE = 1u << 0 | 1u << 9 | 1u << 19 | 1u << 20, OSXSAVE = 1u << 27, AVX = 1u << 28, FMA = 1u << 12, F16C = 1u << 29 };
  enum { V3 = SSE | OSXSAVE | AVX | FMA | F16C, YMM = 0x07, ZMM = 0xe7, VNNI = 1u << 11, AVX_VNNI = 1u << 4, BF16 = 1u << 5 };
  enum { AMX = 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25, VBMI = 1u << 1, TMM = 0x600e7 };
  const unsigned avx2 = 1u << 5 | 1u << 8, skx = avx2 | 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;
  static const char *const none = "none";
  const struct {
    const char *processor;
    struct cpu_words words;
    const char *automatic, *level_avx2, *level_avx512;
  } cases[] = {
      {"Nehalem", {SSE, 0, 0, 0, 0, 0}, "ref", none, none},
      {"Sandy Bridge", {SSE | OSXSAVE | AVX, 0, 0, 0, 0, YMM}, "ref", none, none},
      {"Haswell, Zen 3", {V3, avx2, 0, 0, 0, YMM}, "avx2", "avx2", none},
      {"Haswell whose system saves no YMM", {V3, avx2, 0, 0, 0, 0x03}, "ref", none, none},
      {"Haswell without OSXSAVE", {V3 & ~OSXSAVE, avx2, 0, 0, 0, 0}, "ref", none, none},
      {"Haswell without FMA", {V3 & ~FMA, avx2, 0, 0, 0, YMM}, "ref", none, none},
      {"AVX2 without BMI2", {V3, 1u << 5, 0, 0, 0, YMM}, "ref", none, none},
      {"Skylake-X", {V3, skx, 0, 0, 0, ZMM}, "avx2", "avx2", none},
      {"Cascade Lake, Ice Lake", {V3, skx, VNNI, 0, 0, ZMM}, "avx512", "avx2", "avx512"},
      {"Ice Lake whose system saves no ZMM", {V3, skx, VNNI, 0, 0, YMM}, "avx2", "avx2", none},
      {"Ice Lake without VL", {V3, skx & ~(1u << 31), VNNI, 0, 0, ZMM}, "avx2", "avx2", none},
      {"Knights Landing", {V3, avx2 | 1u << 16 | 1u << 26 | 1u << 27 | 1u << 28, 0, 0, 0, ZMM}, "avx2", "avx2", none},
      {"Cooper Lake, Zen 4", {V3, skx, VNNI, 0, BF16, ZMM}, "avx512+bf16", "avx2", "avx512+bf16"},
      {"Alder Lake", {V3, avx2, 0, 0, AVX_VNNI, YMM}, "avx2+vnni", "avx2+vnni", none},
      {"Zen 5", {V3, skx, VNNI, 0, AVX_VNNI | BF16, ZMM}, "avx512+bf16", "avx2+vnni", "avx512+bf16"},
      {"Zen 5 whose system saves no ZMM", {V3, skx, VNNI, 0, AVX_VNNI | BF16, YMM}, "avx2+vnni", "avx2+vnni", none},
      {"BF16 without VNNI", {V3, skx, 0, 0, BF16, ZMM}, "avx2", "avx2", none},
      {"Sapphire Rapids", {V3, skx, VNNI | VBMI, AMX, AVX_VNNI | BF16, TMM}, "avx512+amx", "avx2+vnni", "avx512+amx"},
      {"Sapphire Rapids whose system saves no tiles",
       {V3, skx, VNNI | VBMI, AMX, AVX_VNNI | BF16, ZMM},
       "avx512+bf16",
       "avx2+vnni",
       "avx512+bf16"},
      {"Tiles without products of bytes", {V3, skx, VNNI | VBMI, AMX & ~(1u << 25), BF16, TMM}, "avx512+bf16", "avx2", "avx512+bf16"},
      {"Tiles without half precision", {V3, skx, VNNI | VBMI, AMX & ~(1u << 23), BF16, TMM}, "avx512+bf16", "avx2", "avx512+bf16"},
      {"Tiles without VBMI", {V3, skx, VNNI, AMX, BF16, TMM}, "avx512+bf16", "avx2", "avx512+bf16"},
      {"Tiles without BF16", {V3, skx, VNNI | VBMI, AMX, 0, TMM}, "avx512", "avx2", "avx512"},
      {"Tiles whose system saves no ZMM", {V3, skx, VNNI | VBMI, AMX, AVX_VNNI | BF16, 0x60007}, "avx2+vnni", "avx2+vnni", none},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    const char *want[] = {cases[i].automatic, "ref", cases[i].level_avx2, cases[i].level_avx512};
    static const enum isa isas[] = {ISA_AUTO, ISA_REF, ISA_AVX2, ISA_AVX512};
    for (size_t j = 0; j < ARRAY_LEN(isas); j++) {
      const struct kern *k = kern_choose(isas[j], kern_features(&cases[i].words));
      if (strcmp(k ? k->name : none, want[j]))
        fail_msg("%s, level %zu: %s instead of %s", cases[i].processor, j, k ? k->name : none, want[j]);
    }
  }
}

/* Any bit that is missing loses what needs it and nothing else; whatever the bits, the choice needs no feature that is not there. */
static void choice_by_bits(void **state) {
  (void)state;
  uint64_t rand = 3;
  for (int n = 0; n < 20000; n++) {
    const struct cpu_words full = {~0u, ~0u, ~0u, ~0u, ~0u, ~0u};
    struct cpu_words w = full;
    unsigned *words[] = {&w.leaf1_ecx, &w.leaf7_ebx, &w.leaf7_ecx, &w.leaf7_edx, &w.leaf7_1_eax, &w.xcr0};
    for (int cut = test_rand_int(&rand, 0, 3); cut > 0; cut--) *words[test_rand_int(&rand, 0, 5)] &= ~(1u << test_rand_int(&rand, 0, 31));
    unsigned f = kern_features(&w);
    const bool ymm = w.leaf1_ecx >> 27 & w.leaf1_ecx >> 28 & w.leaf1_ecx >> 12 & w.leaf1_ecx >> 29 & w.leaf7_ebx >> 5 & w.leaf7_ebx >> 8 &
                     w.xcr0 >> 1 & w.xcr0 >> 2 & 1;
    const bool zmm = ymm && (w.leaf7_ebx >> 16 & w.leaf7_ebx >> 17 & w.leaf7_ebx >> 30 & w.leaf7_ebx >> 31 & w.leaf7_ecx >> 11 &
                             w.xcr0 >> 5 & w.xcr0 >> 6 & w.xcr0 >> 7 & 1);
    assert_int_equal((f & CPU_AVX2) != 0, ymm);
    assert_int_equal((f & CPU_AVX_VNNI) != 0, ymm && (w.leaf7_1_eax >> 4 & 1));
    assert_int_equal((f & CPU_AVX512) != 0, zmm);
    assert_int_equal((f & CPU_AVX512_BF16) != 0, zmm && (w.leaf7_1_eax >> 5 & 1));
    assert_int_equal((f & CPU_AMX) != 0, zmm && (w.leaf7_edx >> 22 & w.leaf7_edx >> 23 & w.leaf7_edx >> 24 & w.leaf7_edx >> 25 &
                                                 w.leaf7_ecx >> 1 & w.xcr0 >> 17 & w.xcr0 >> 18 & 1));
    const struct kern *k = kern_choose(ISA_AUTO, f);
    assert_non_null(k);
    assert_true(k == &kern_amx || k == &kern_avx512bf16 || !(f & CPU_AVX512_BF16));
    assert_int_equal(k == &kern_amx, (f & CPU_AVX512_BF16) && (f & CPU_AMX));
    assert_true(k->isa != ISA_AVX512 || zmm);
    assert_true(k->isa != ISA_AVX2 || (ymm && !zmm));
  }
}

/* gemm_avxvnni.c lends its plain numbers to gemm_avx2.c, so what bounds them must be the same. */
static void plain_numbers_alike(void **state) {
  (void)state;
  assert_int_equal(kern_avxvnni.gemm->plain_rows_max, kern_avx2.gemm->plain_rows_max);
  assert_int_equal(kern_avxvnni.gemm->plain_panels_max, kern_avx2.gemm->plain_panels_max);
  assert_int_equal(!kern_avxvnni.gemm->bf16_row, !kern_avx2.gemm->bf16_row);
  assert_int_equal(!kern_avxvnni.gemm->wide_rows, !kern_avx2.gemm->wide_rows);
}
#else
static void choice_by_processor(void **state) { (void)state; }
static void choice_by_bits(void **state) { (void)state; }
static void plain_numbers_alike(void **state) { (void)state; }
#endif

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(rmsnorm),
    cmocka_unit_test(add_and_scale),
    cmocka_unit_test(gated),
    cmocka_unit_test(activations_over_their_range),
    cmocka_unit_test(softcap),
    cmocka_unit_test(rope),
    cmocka_unit_test(bits_do_not_depend_on_the_place),
    cmocka_unit_test(argmax),
    cmocka_unit_test(peaks),
    cmocka_unit_test(selection),
    cmocka_unit_test(choice_by_processor),
    cmocka_unit_test(choice_by_bits),
    cmocka_unit_test(plain_numbers_alike),
};

int main(void) {
  const char *filter = getenv("CYGNET_TEST_FILTER");
  if (filter && *filter) cmocka_set_test_filter(filter);
  return cmocka_run_group_tests(tests, start, NULL) ? 1 : 0;
}
