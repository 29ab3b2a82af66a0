/* t_rng.c — Philox against the published known answers, and uniforms that look uniform. */
#include "test.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"

/* A twin that takes all four counter words, so that it can be checked against the known answers with nonzero ones. */
static void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t x[4], k[2] = {key[0], key[1]};
  memcpy(x, counter, sizeof x);
  for (int round = 0; round < 10; round++) {
    uint64_t left = (uint64_t)x[0] * 0xD2511F53u, right = (uint64_t)x[2] * 0xCD9E8D57u;
    uint32_t next[4] = {(uint32_t)(right / 0x100000000u) ^ x[1] ^ k[0], (uint32_t)(right % 0x100000000u),
                        (uint32_t)(left / 0x100000000u) ^ x[3] ^ k[1], (uint32_t)(left % 0x100000000u)};
    memcpy(x, next, sizeof x);
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  memcpy(out, x, sizeof x);
}

static void known_answers(void **state) {
  (void)state;
  static const struct {
    uint32_t counter[4], key[2], want[4];
  } rows[] = {
      /* Random123 kat_vectors, philox4x32 10 */
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  uint32_t out[4];
  for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
    philox(rows[i].counter, rows[i].key, out);
    assert_memory_equal(out, rows[i].want, sizeof out);
  }
  rng_block(0, 0, 0, out);
  assert_memory_equal(out, rows[0].want, sizeof out);
}

static void counter_and_key_layout(void **state) {
  (void)state;
  uint64_t seed = 4;
  for (int i = 0; i < 1000; i++) {
    uint64_t key = test_rand(&seed), position = test_rand(&seed);
    uint32_t lane = (uint32_t)test_rand(&seed), got[4], want[4];
    rng_block(key, position, lane, got);
    philox((const uint32_t[]){(uint32_t)position, (uint32_t)(position >> 32), lane, 0},
           (const uint32_t[]){(uint32_t)key, (uint32_t)(key >> 32)}, want);
    assert_memory_equal(got, want, sizeof got);
  }
}

static void uniform(void **state) {
  (void)state;
  enum { N = 200000, BINS = 64 };
  double sum = 0, chi = 0;
  int bins[BINS] = {0};
  for (uint64_t i = 0; i < N; i++) {
    double u = rng_uniform(42, i, 0);
    assert_true(u >= 0 && u < 1);
    assert_true(u == rng_uniform(42, i, 0) && u * 0x1p53 == floor(u * 0x1p53));
    sum += u;
    bins[(int)(u * BINS)]++;
  }
  for (int b = 0; b < BINS; b++) chi += (bins[b] - N / (double)BINS) * (bins[b] - N / (double)BINS) / (N / (double)BINS);
  assert_true(fabs(sum / N - 0.5) < 0.003);
  assert_true(chi > 25 && chi < 125); /* 63 degrees of freedom: 63 +- 11 */
  assert_true(rng_uniform(42, 0, 0) != rng_uniform(42, 0, 1) && rng_uniform(42, 0, 0) != rng_uniform(43, 0, 0));
  assert_true(rng_uniform(42, 1, 0) != rng_uniform(42, (uint64_t)1 << 32, 0));
}

static void system_seeds_differ(void **state) {
  (void)state;
  uint64_t a = rng_system_seed(), b = rng_system_seed();
  assert_true(a != b);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(known_answers),
    cmocka_unit_test(counter_and_key_layout),
    cmocka_unit_test(uniform),
    cmocka_unit_test(system_seeds_differ),
};
TEST_MAIN(tests)
