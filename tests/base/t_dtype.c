/* t_dtype.c — number formats against the answers of the `gguf` package (tools/golden/gen_dtype.py), bit for bit. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"

struct record {
  uint32_t ggml_type, direction, n, n_bytes;
  const char *blocks, *values;
};

/* The next record at *p; false at the end. */
static bool next_record(const char **p, const char *end, struct record *r) {
  if (*p == end) return false;
  assert_true(end - *p >= 16);
  memcpy(r, *p, 16);
  r->blocks = *p + 16;
  r->values = r->blocks + r->n_bytes;
  *p = r->values + (size_t)r->n * 4;
  assert_true(*p <= end);
  return true;
}

static void report_difference(const struct record *r, const float *got) {
  for (uint32_t i = 0; i < r->n; i++) {
    float want;
    memcpy(&want, r->values + (size_t)i * 4, 4);
    if (memcmp(&want, &got[i], 4) == 0) continue;
    print_message("%s element %u: want %.9g got %.9g\n", dtype_gguf_name(r->ggml_type), i, (double)want, (double)got[i]);
    return;
  }
}

/* Both ends stand against an inaccessible page, so a conversion that reads or writes one byte too far faults. */
static void check_to_f32(enum dtype t, const struct record *r) {
  void *src = test_guard_alloc(r->n_bytes);
  float *dst = test_guard_alloc((size_t)r->n * 4);
  memcpy(src, r->blocks, r->n_bytes);
  dtype_to_f32(t, src, dst, r->n);
  if (memcmp(dst, r->values, (size_t)r->n * 4) != 0) report_difference(r, dst);
  assert_memory_equal(dst, r->values, (size_t)r->n * 4);
  test_guard_free(src, r->n_bytes);
  test_guard_free(dst, (size_t)r->n * 4);
}

static void check_from_f32(enum dtype t, const struct record *r) {
  float *src = test_guard_alloc((size_t)r->n * 4);
  void *dst = test_guard_alloc(r->n_bytes);
  memcpy(src, r->values, (size_t)r->n * 4);
  dtype_from_f32(t, src, dst, r->n);
  assert_memory_equal(dst, r->blocks, r->n_bytes);
  test_guard_free(src, (size_t)r->n * 4);
  test_guard_free(dst, r->n_bytes);
}

static void golden(void **state) {
  (void)state;
  size_t n_bytes;
  char *file = test_read(test_path("golden/dtype.bin"), &n_bytes);
  const char *p = file + 8, *end = file + n_bytes;
  assert_memory_equal(file, "dtype 1\n", 8);
  int seen[2][DTYPE_COUNT] = {{0}};
  for (struct record r; next_record(&p, end, &r);) {
    enum dtype t = dtype_from_gguf(r.ggml_type);
    size_t row_bytes;
    assert_int_not_equal(t, DTYPE_NONE);
    assert_true(dtype_row_bytes(t, r.n, &row_bytes));
    assert_int_equal(row_bytes, r.n_bytes);
    assert_true(r.direction < 2);
    if (r.direction == 0) check_to_f32(t, &r);
    else check_from_f32(t, &r);
    seen[r.direction][t]++;
  }
  for (int t = DTYPE_F32; t <= DTYPE_IQ4_XS; t++) assert_int_equal(seen[0][t], 1);
  assert_int_equal(seen[1][DTYPE_Q8_0] + seen[1][DTYPE_Q4_0] + seen[1][DTYPE_F16] + seen[1][DTYPE_BF16], 4);
  free(file);
}

/* Value of a finite half from its definition. */
static double half_value(uint16_t h) {
  int exponent = h >> 10 & 31, fraction = h & 1023;
  double v = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
  return h & 0x8000 ? -v : v;
}

static void every_half(void **state) {
  (void)state;
  for (uint32_t h = 0; h < 65536; h++) {
    float f = f16_to_f32((uint16_t)h);
    if ((h & 0x7c00) == 0x7c00) {
      assert_true((h & 0x3ff) ? isnan(f) : isinf(f));
      if (h & 0x3ff) assert_true(isnan(f16_to_f32(f32_to_f16(f))));
      else assert_int_equal(f32_to_f16(f), h);
      continue;
    }
    assert_true((double)f == half_value((uint16_t)h) && !signbit(f) == !(h & 0x8000));
    assert_int_equal(f32_to_f16(f), h);
  }
}

/* Nearest half by looking at the neighbours; ties go to the even one. */
static void half_rounds_to_nearest(void **state) {
  (void)state;
  uint64_t seed = 7;
  for (int i = 0; i < 300000; i++) {
    uint32_t bits = (uint32_t)test_rand(&seed);
    if (i % 2) bits = (bits & 0x807fffff) | (uint32_t)test_rand_int(&seed, 100, 144) << 23; /* around the range of halves */
    float f;
    memcpy(&f, &bits, 4);
    if (isnan(f)) continue;
    uint16_t h = f32_to_f16(f);
    if ((h & 0x7fff) == 0x7c00) {
      assert_true(fabsf(f) >= 65520.0f);
      continue;
    }
    double error = fabs((double)f - half_value(h));
    for (int step = -1; step <= 1; step += 2) {
      int near = (h & 0x7fff) + step;
      if (near < 0 || near >= 0x7c00) continue;
      double other = fabs((double)f - half_value((uint16_t)(near | (h & 0x8000))));
      assert_true(error < other || (error == other && h % 2 == 0));
    }
    assert_true(fabsf(f) < 65520.0f && !signbit(f) == !(h & 0x8000));
  }
}

static void bf16_edges(void **state) {
  (void)state;
  assert_int_equal(f32_to_bf16(1.0f), 0x3f80);
  assert_int_equal(f32_to_bf16(-INFINITY), 0xff80);
  assert_int_equal(f32_to_bf16(3.4e38f), 0x7f80); /* rounds to infinity */
  assert_int_equal(f32_to_bf16(-0.0f), 0x8000);
  uint32_t bits = 0x7f800001; /* a NaN whose upper half alone would be infinity */
  float f;
  memcpy(&f, &bits, 4);
  assert_true(isnan(bf16_to_f32(f32_to_bf16(f))));
  for (uint32_t h = 0; h < 65536; h++) {
    if ((h & 0x7f80) != 0x7f80) assert_int_equal(f32_to_bf16(bf16_to_f32((uint16_t)h)), h);
  }
}

/* Values nobody can round well must at least not be undefined: sanitizer builds watch this one. */
static void wild_values_are_survived(void **state) {
  (void)state;
  const float wild[] = {INFINITY, -INFINITY, NAN, 3.4e38f, -3.4e38f, 1e-45f, -1e-45f, 0.0f};
  uint64_t seed = 3;
  uint8_t out[34];
  for (int i = 0; i < 2000; i++) {
    float x[32];
    for (int k = 0; k < 32; k++) x[k] = wild[test_rand_int(&seed, 0, (int)ARRAY_LEN(wild) - 1)];
    dtype_from_f32(DTYPE_Q8_0, x, out, 32);
    dtype_from_f32(DTYPE_Q4_0, x, out, 32);
    dtype_from_f32(DTYPE_F16, x, out, 16);
  }
}

/* Rounded as the `gguf` package rounds: halves, equal magnitudes, zeros. */
static void rounds_like_the_package(void **state) {
  (void)state;
  static const char *const q8_0[] = {"08288518ad40d467fc9124b94be073089d30c457ec7f14a93cd063f88d20b547dc6f",
                                     "231d8698cf29a34608eef8277aeb81411f22498efd8b431a153477d96510ded1e924",
                                     "0038f10e0c0a0806048100fefcfaf8f6f4f20f0d0b097f050301fffdfbf9f7f5f3f1",
                                     "00000000000000000000000000000000000000000000000000000000000000000000",
                                     "0c267f817f817f817f817f817f817f817f817f817f817f817f817f817f817f817f81"};
  static const char *const q4_0[] = {"00b8cf379d047be248bf269df36ad148ae15", "192dd011851bc2ac98b7f86aef97605c7aaa",
                                     "f04797999999f98888808888888877777777", "008088888888888888888888888888888888",
                                     "00b600ff00ff00ff00ff00ff00ff00ff00ff"};
  for (size_t c = 0; c < ARRAY_LEN(q8_0); c++) {
    float x[32];
    for (int i = 0; i < 32; i++) {
      const float forms[] = {(float)(i * 37 % 64 - 31) / 8, (float)((i * i * 7 + 3) % 101 - 50) * 0.013f, (float)(i * 29 % 31 - 15) / 2, 0,
                             i % 2 ? -3 : 3};
      x[i] = forms[c];
      if (c == 2 && i == 7) x[i] = -63.5f;
      if (c == 2 && i == 20) x[i] = 63.5f;
    }
    uint8_t block[34];
    char hex[69];
    dtype_from_f32(DTYPE_Q8_0, x, block, 32);
    for (int i = 0; i < 34; i++) snprintf(hex + 2 * i, 3, "%02x", block[i]);
    assert_string_equal(hex, q8_0[c]);
    dtype_from_f32(DTYPE_Q4_0, x, block, 32);
    for (int i = 0; i < 18; i++) snprintf(hex + 2 * i, 3, "%02x", block[i]);
    assert_string_equal(hex, q4_0[c]);
  }
}

/* What is not finite stays so: the whole block. */
static void rounding_hides_no_nan(void **state) {
  (void)state;
  const float bad[] = {NAN, INFINITY, -INFINITY};
  const enum dtype types[] = {DTYPE_Q8_0, DTYPE_Q4_0};
  for (int i = 0; i < 2 * 3 * 32; i++) {
    float x[32] = {1, -2, 3}, y[32];
    uint8_t block[34];
    x[i % 32] = bad[i / 32 % 3];
    dtype_from_f32(types[i / 96], x, block, 32);
    dtype_to_f32(types[i / 96], block, y, 32);
    for (int k = 0; k < 32; k++) assert_true(isnan(y[k]));
  }
}

static void plain_numbers(void **state) {
  (void)state;
  const int32_t i32[] = {0, -1, 1 << 30, INT32_MIN};
  const int64_t i64[] = {0, -1, (int64_t)1 << 60, INT64_MIN};
  const uint8_t u8[] = {0, 1, 128, 255};
  const double f64[] = {0, -1.5, 1e300, 0.1};
  float y[4];
  dtype_to_f32(DTYPE_I32, i32, y, 4);
  for (int i = 0; i < 4; i++) assert_true(y[i] == (float)i32[i]);
  dtype_to_f32(DTYPE_I64, i64, y, 4);
  for (int i = 0; i < 4; i++) assert_true(y[i] == (float)i64[i]);
  dtype_to_f32(DTYPE_U8, u8, y, 4);
  for (int i = 0; i < 4; i++) assert_true(y[i] == (float)u8[i]);
  dtype_to_f32(DTYPE_F64, f64, y, 4);
  assert_true(y[1] == -1.5f && isinf(y[2]) && y[3] == 0.1f);
}

static void names_and_sizes(void **state) {
  (void)state;
  for (int t = DTYPE_NONE + 1; t < DTYPE_COUNT; t++) {
    const struct dtype_info *info = dtype_info((enum dtype)t);
    assert_non_null(info->name);
    assert_int_equal(dtype_by_name(info->name), t);
    assert_true(info->block_elems > 0 && info->block_bytes > 0);
    assert_int_equal(info->quantised, info->block_elems > 1);
  }
  assert_int_equal(dtype_by_name("q4_k"), DTYPE_Q4_K);
  assert_int_equal(dtype_by_name("Q4"), DTYPE_NONE);
  assert_int_equal(dtype_by_name(""), DTYPE_NONE);

  int supported = 0;
  for (uint32_t g = 0; g < 64; g++) {
    enum dtype t = dtype_from_gguf(g);
    if (t == DTYPE_NONE) continue;
    supported++;
    assert_string_equal(dtype_gguf_name(g), dtype_info(t)->name);
  }
  assert_int_equal(supported, DTYPE_COUNT - 2); /* all but NONE and U8, which GGUF does not have */
  assert_string_equal(dtype_gguf_name(19), "IQ1_S");
  assert_string_equal(dtype_gguf_name(250), "type 250");
  assert_string_equal(dtype_gguf_name(UINT32_MAX), "type 4294967295");
  assert_int_equal(dtype_from_gguf(UINT32_MAX), DTYPE_NONE);

  size_t n = 77;
  assert_true(dtype_row_bytes(DTYPE_Q6_K, 512, &n));
  assert_int_equal(n, 420);
  assert_true(dtype_row_bytes(DTYPE_Q6_K, 0, &n));
  assert_int_equal(n, 0);
  assert_false(dtype_row_bytes(DTYPE_Q6_K, 511, &n));
  assert_false(dtype_row_bytes(DTYPE_F32, SIZE_MAX / 4 + 1, &n));
  assert_false(dtype_row_bytes(DTYPE_Q8_0, SIZE_MAX - 31, &n));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(golden),
    cmocka_unit_test(every_half),
    cmocka_unit_test(half_rounds_to_nearest),
    cmocka_unit_test(bf16_edges),
    cmocka_unit_test(wild_values_are_survived),
    cmocka_unit_test(rounds_like_the_package),
    cmocka_unit_test(rounding_hides_no_nan),
    cmocka_unit_test(plain_numbers),
    cmocka_unit_test(names_and_sizes),
};
TEST_MAIN(tests)
