/* t_gguf.c — good files, files that lie in every way, and every truncation and mutation of a small one. */
#include "test.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "files/gguf.h"
#include "gguf_maker.h"

/* Opens a copy of the file that ends at a guard page. The copy lives until close_copy. */
struct copy {
  struct map map;
  struct gguf g;
  unsigned char *bytes;
  size_t n;
};
static int open_copy(struct copy *c, const void *file, size_t n, struct err *e) {
  c->n = n;
  c->bytes = test_guard_alloc(n);
  memcpy(c->bytes, file, n);
  c->map = (struct map){.data = n ? c->bytes : NULL, .n_bytes = n, .path = (char *)(uintptr_t) "dir/m.gguf"};
  memset(e, 0, sizeof *e);
  return gguf_open(&c->g, &c->map, e);
}
static void close_copy(struct copy *c) {
  gguf_close(&c->g);
  test_guard_free(c->bytes, c->n);
}

/* A small file that has some of everything. */
static unsigned char *good_file(size_t *n) {
  struct gguf_maker m;
  gguf_maker_init(&m);
  gguf_maker_str(&m, "general.architecture", "gemma3");
  gguf_maker_u32(&m, "gemma3.block_count", 18);
  gguf_maker_f32(&m, "gemma3.eps", 0.5f);
  gguf_maker_bool(&m, "yes", 1);
  gguf_maker_strings(&m, "tokens", (const char *const[]){"a", "", "\xc3\xa4"}, 3);
  gguf_maker_array(&m, "scores", GM_F32_KV, (float[]){-1, 0.25f, 3}, 3, 4);
  gguf_maker_array(&m, "pattern", GM_BOOL, (unsigned char[]){1, 0, 1}, 3, 1);
  gguf_maker_array(&m, "nothing", GM_I32, NULL, 0, 4);
  int16_t minus = -5;
  gguf_maker_kv(&m, "minus", 5, GM_I16, &minus, 2);
  uint64_t huge = UINT64_MAX;
  gguf_maker_kv(&m, "huge", 4, GM_U64, &huge, 8);
  double d = 1e300;
  gguf_maker_kv(&m, "d", 1, GM_F64, &d, 8);
  gguf_maker_tensor(&m, "token_embd.weight", GM_F32, 2, (uint64_t[]){4, 3}, (float[12]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 48);
  gguf_maker_tensor(&m, "blk.0.attn_q.weight", GM_Q8_0, 2, (uint64_t[]){64, 2}, NULL, 2 * 2 * 34);
  gguf_maker_tensor(&m, "a.norm", GM_BF16, 1, (uint64_t[]){5}, NULL, 10);
  gguf_maker_tensor(&m, "cube", GM_F16, 3, (uint64_t[]){2, 3, 4}, NULL, 48);
  return gguf_maker_finish(&m, n);
}

static void reads_a_good_file(void **s) {
  (void)s;
  size_t n;
  unsigned char *file = good_file(&n);
  struct copy c;
  struct err e;
  if (open_copy(&c, file, n, &e) != 0) fail_msg("%s", e.msg);
  assert_int_equal(c.g.version, 3);
  assert_int_equal(c.g.n_kv, 11);
  assert_int_equal(c.g.n_tensors, 4);
  for (size_t i = 1; i < c.g.n_kv; i++) assert_true(memcmp(c.g.kv[i - 1].key.p, c.g.kv[i].key.p, 1) <= 0);
  const struct gguf_tensor *t = &c.g.tensors[0]; /* file order */
  assert_true(str_is(t->name, "token_embd.weight"));
  assert_int_equal(t->shape[0], 3);
  assert_int_equal(t->shape[1], 4);
  assert_true(((const float *)t->data)[7] == 7.0f);
  assert_int_equal(t->n_bytes, 48);
  t = gguf_find_tensor(&c.g, "blk.0.attn_q.weight");
  assert_non_null(t);
  assert_int_equal(t->dtype, DTYPE_Q8_0);
  assert_int_equal(t->n_bytes, 136);
  t = gguf_find_tensor(&c.g, "cube");
  assert_int_equal(t->n_dims, 3);
  assert_int_equal(t->shape[0], 4);
  assert_int_equal(t->shape[2], 2);
  assert_null(gguf_find_tensor(&c.g, "cub"));
  assert_null(gguf_find_tensor(&c.g, ""));
  close_copy(&c);
  free(file);
}

static void getters(void **s) {
  (void)s;
  size_t n;
  unsigned char *file = good_file(&n);
  struct copy c;
  struct err e;
  assert_int_equal(open_copy(&c, file, n, &e), 0);
  const struct gguf *g = &c.g;
  uint32_t u = 7;
  float f = 7;
  bool b = false;
  struct str t;
  assert_int_equal(gguf_u32(g, "gemma3.block_count", &u, &e), 1);
  assert_int_equal(u, 18);
  assert_int_equal(gguf_u32(g, "absent", &u, &e), 0);
  assert_int_equal(u, 18);
  assert_int_equal(gguf_u32(g, "general.architecture", &u, &e), -1);
  assert_string_equal(e.msg, "dir/m.gguf: key general.architecture: expected an unsigned integer, file has string");
  assert_int_equal(gguf_u32(g, "pattern", &u, &e), -1);
  assert_string_equal(e.msg, "dir/m.gguf: key pattern: expected an unsigned integer, file has an array of bool");
  assert_int_equal(gguf_u32(g, "minus", &u, &e), -1);
  assert_string_equal(e.msg, "dir/m.gguf: key minus: expected an integer from 0 to 4294967295, file has -5");
  assert_int_equal(gguf_u32(g, "huge", &u, &e), -1);
  assert_int_equal(gguf_u32(g, "gemma3.eps", &u, &e), -1);
  assert_int_equal(gguf_u32(g, "yes", &u, &e), -1);
  assert_int_equal(gguf_f32(g, "gemma3.eps", &f, &e), 1);
  assert_true(f == 0.5f);
  assert_int_equal(gguf_f32(g, "minus", &f, &e), 1);
  assert_true(f == -5.0f);
  assert_int_equal(gguf_f32(g, "huge", &f, &e), 1);
  assert_true(f == 0x1p64f);
  assert_int_equal(gguf_f32(g, "d", &f, &e), -1); /* no float32 */
  assert_int_equal(gguf_f32(g, "scores", &f, &e), -1);
  assert_int_equal(gguf_bool(g, "yes", &b, &e), 1);
  assert_true(b);
  assert_int_equal(gguf_bool(g, "minus", &b, &e), -1);
  assert_int_equal(gguf_str(g, "general.architecture", &t, &e), 1);
  assert_true(str_is(t, "gemma3"));
  assert_int_equal(gguf_str(g, "tokens", &t, &e), -1);
  const struct gguf_kv *kv = gguf_find(g, "scores");
  assert_int_equal(kv->n, 3);
  assert_true(gguf_kv_float(kv, 1) == 0.25 && gguf_kv_int(kv, 2) == 3);
  kv = gguf_find(g, "pattern");
  assert_int_equal(gguf_kv_int(kv, 0), 1);
  assert_int_equal(gguf_kv_int(kv, 1), 0);
  kv = gguf_find(g, "tokens");
  const unsigned char *cursor = NULL;
  assert_true(str_is(gguf_kv_next_string(kv, &cursor), "a"));
  assert_true(str_is(gguf_kv_next_string(kv, &cursor), ""));
  assert_true(str_is(gguf_kv_next_string(kv, &cursor), "\xc3\xa4"));
  assert_int_equal(gguf_kv_next_string(kv, &cursor).n, 0); /* past the end: nothing */
  kv = gguf_find(g, "nothing");
  assert_true(kv->is_array && kv->n == 0);
  kv = gguf_find(g, "huge");
  assert_true(gguf_kv_int(kv, 0) == INT64_MAX);
  close_copy(&c);
  free(file);
}

/* --- bad files ---------------------------------------------------------------------------------------------------------- */

/* Each builds one bad file and names what its error must contain. */
struct bad {
  const char *name;
  void (*make)(struct gguf_maker *m);
  const char *says, *says_too;
};
#define BAD(fn) static void fn(struct gguf_maker *m)
#define ENTRY(m, name, type, offset, ...)                                                                                                  \
  gguf_maker_entry(m, name, strlen(name), type, sizeof((uint64_t[]){__VA_ARGS__}) / 8, (uint64_t[]){__VA_ARGS__}, offset)

BAD(zero_dim) { ENTRY(m, "t0", GM_F32, 0, 32, 0); }
BAD(zero_first_dim) { ENTRY(m, "t0", GM_F32, 0, 0); }
BAD(zero_second) { ENTRY(m, "t0", GM_F32, 0, 1, 0); }
BAD(dim_2_63) { ENTRY(m, "t0", GM_F32, 0, (uint64_t)1 << 63); }
BAD(dim_minus_1) { ENTRY(m, "t0", GM_F32, 0, UINT64_MAX); }
BAD(dims_wrap) { ENTRY(m, "t0", GM_F32, 0, (uint64_t)1 << 33, (uint64_t)1 << 33); }
BAD(dims_wrap_to_0) { ENTRY(m, "t0", GM_F32, 0, 4, (uint64_t)1 << 31, (uint64_t)1 << 31, 4); }
BAD(bytes_wrap) { ENTRY(m, "t0", GM_F32, 0, (uint64_t)1 << 62); }
BAD(end_wraps) { ENTRY(m, "t0", GM_F32, UINT64_MAX - 31, 64); }
BAD(dims_0) {
  gguf_maker_entry(m, "t0", 2, GM_F32, 0, NULL, 0);
  gguf_maker_u32(m, "some key, so that there are bytes enough for one tensor", 1);
}
BAD(dims_5) { ENTRY(m, "t0", GM_F32, 0, 1, 1, 1, 1, 1); }
BAD(dims_9) { ENTRY(m, "t0", GM_F32, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1); }
BAD(dims_million) {
  uint64_t ne[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  gguf_maker_entry(m, "t0", 2, GM_F32, 8, ne, 0);
  uint32_t million = 1000000;
  memcpy(m->info.data + 8 + 2, &million, 4);
}
BAD(type_250) { ENTRY(m, "t0", 250, 0, 32); }
BAD(type_removed) { ENTRY(m, "t0", 4, 0, 32); }
BAD(same_offset) {
  gguf_maker_tensor(m, "t0", GM_F32, 1, (uint64_t[]){32}, NULL, 128);
  ENTRY(m, "t1", GM_F32, 0, 32);
}
BAD(overlap) {
  gguf_maker_tensor(m, "t0", GM_F32, 1, (uint64_t[]){32}, NULL, 128);
  ENTRY(m, "t1", GM_F32, 96, 8);
}
BAD(offset_7) { ENTRY(m, "t0", GM_F32, 7, 1); }
BAD(ragged_row) { ENTRY(m, "t0", GM_Q8_0, 0, 33, 2); }
BAD(past_end) {
  gguf_maker_tensor(m, "t0", GM_F32, 1, (uint64_t[]){32}, NULL, 128);
  ENTRY(m, "t1", GM_F32, 128, 8);
}
BAD(empty_key) { gguf_maker_kv(m, "", 0, GM_U64, "12345678", 8); }
BAD(same_key) {
  gguf_maker_u32(m, "k", 1);
  gguf_maker_u32(m, "j", 1);
  gguf_maker_u32(m, "k", 1);
}
BAD(key_not_utf8) { gguf_maker_kv(m, "k\xff", 2, GM_U64, "12345678", 8); }
BAD(key_with_nul) { gguf_maker_kv(m, "k\0y", 3, GM_U64, "12345678", 8); }
BAD(empty_name) { gguf_maker_entry(m, "", 0, GM_F32, 2, (uint64_t[]){8, 1}, 0); }
BAD(same_name) {
  gguf_maker_tensor(m, "t0", GM_F32, 1, (uint64_t[]){32}, NULL, 128);
  gguf_maker_tensor(m, "t0", GM_F32, 1, (uint64_t[]){32}, NULL, 128);
}
BAD(same_tensor) {
  gguf_maker_tensor(m, "t0", GM_F32, 1, (uint64_t[]){32}, NULL, 128);
  ENTRY(m, "t0", GM_F32, 0, 32);
}
BAD(name_not_utf8) { gguf_maker_entry(m, "t\xff", 2, GM_F32, 1, (uint64_t[]){1}, 0); }
BAD(name_with_nul) { gguf_maker_entry(m, "t\0t", 3, GM_F32, 1, (uint64_t[]){1}, 0); }
BAD(long_name) {
  char name[300];
  memset(name, 'n', sizeof name);
  gguf_maker_entry(m, name, sizeof name, GM_F32, 1, (uint64_t[]){1}, 0);
}
BAD(keys_2_60) { m->claimed_kv = (uint64_t)1 << 60; }
BAD(tensors_2_60) { m->claimed_tensors = (uint64_t)1 << 60; }
BAD(string_2_40) {
  uint64_t n = (uint64_t)1 << 40;
  gguf_maker_kv(m, "k", 1, GM_STR, &n, 8);
}
BAD(string_max) {
  uint64_t n = UINT64_MAX;
  gguf_maker_kv(m, "k", 1, GM_STR, &n, 8);
}
BAD(key_2_40) {
  gguf_maker_kv(m, "k", 1, GM_U64, "12345678", 8);
  uint64_t n = (uint64_t)1 << 40;
  memcpy(m->kv.data, &n, 8);
}
BAD(nested) {
  unsigned char v[12 + 12] = {GM_ARRAY, 0, 0, 0, 1};
  gguf_maker_kv(m, "k", 1, GM_ARRAY, v, sizeof v);
}
BAD(array_2_60) {
  unsigned char v[12] = {GM_F32_KV, [11] = 0x10};
  gguf_maker_kv(m, "k", 1, GM_ARRAY, v, sizeof v);
}
BAD(strings_2_60) {
  unsigned char v[12] = {GM_STR, [11] = 0x10};
  gguf_maker_kv(m, "k", 1, GM_ARRAY, v, sizeof v);
}
BAD(string_in_array) {
  unsigned char v[12 + 16] = {GM_STR, [4] = 2, [12] = 9};
  gguf_maker_kv(m, "k", 1, GM_ARRAY, v, sizeof v);
}
BAD(value_type_13) { gguf_maker_kv(m, "k", 1, 13, "12345678", 8); }
BAD(element_type_99) {
  unsigned char v[12 + 8] = {99, [4] = 1};
  gguf_maker_kv(m, "k", 1, GM_ARRAY, v, sizeof v);
}
BAD(version_1) { m->version = 1; }
BAD(version_4) { m->version = 4; }
BAD(big_endian) { m->version = 0x03000000; }
BAD(alignment_0) { gguf_maker_u32(m, "general.alignment", 0); }
BAD(alignment_24) { gguf_maker_u32(m, "general.alignment", 24); }
BAD(alignment_text) { gguf_maker_str(m, "general.alignment", "32"); }
BAD(alignment_2_31) { gguf_maker_u32(m, "general.alignment", 0x80000000u); }

static const struct bad bad_files[] = {
    {"zero dimension", zero_dim, "tensor t0", "dimension 1 is 0"},
    {"zero first dimension", zero_first_dim, "tensor t0", "dimension 0 is 0"},
    {"zero second dimension", zero_second, "tensor t0", "dimension 1 is 0"},
    {"dimension 2^63", dim_2_63, "tensor t0", "9223372036854775808"},
    {"dimension -1", dim_minus_1, "tensor t0", "18446744073709551615"},
    {"dimensions wrap", dims_wrap, "tensor t0", "multiply to more than 2^64"},
    {"dimensions wrap to 0", dims_wrap_to_0, "tensor t0", "multiply to more than 2^64"},
    {"bytes wrap", bytes_wrap, "tensor t0", "multiply to more than 2^64"},
    {"end wraps", end_wraps, "tensor t0", "past 2^64"},
    {"no dimensions", dims_0, "tensor t0", "expected 1 to 4 dimensions, found 0"},
    {"5 dimensions", dims_5, "tensor t0", "found 5"},
    {"9 dimensions", dims_9, "tensor t0", "found 9"},
    {"a million dimensions", dims_million, "tensor t0", "found 1000000"},
    {"type 250", type_250, "tensor t0", "t0: type 250 is not supported"},
    {"removed type", type_removed, "tensor t0", "not supported"},
    {"two at one offset", same_offset, "overlaps", "t1"},
    {"overlap", overlap, "tensor t1", "overlaps that of t0"},
    {"offset 7", offset_7, "tensor t0", "multiple of 32, found 7"},
    {"row no multiple of the block", ragged_row, "tensor t0", "multiple of 32 elements (Q8_0), found 33"},
    {"past the end", past_end, "tensor t1", "needs"},
    {"empty key", empty_key, "key 0", "empty"},
    {"same key twice", same_key, "key k", "twice"},
    {"key not UTF-8", key_not_utf8, "key 0", "k\\xff"},
    {"key with NUL", key_with_nul, "key 0", "k\\x00y"},
    {"empty name", empty_name, "tensor 0", "empty"},
    {"same name twice", same_name, "tensor t0", "twice"},
    {"same tensor twice", same_tensor, "tensor t0", "twice"},
    {"name not UTF-8", name_not_utf8, "tensor 0", "t\\xff"},
    {"name with NUL", name_with_nul, "tensor 0", "t\\x00t"},
    {"long name", long_name, "tensor 0", "at most 255 bytes, found 300"},
    {"2^60 keys", keys_2_60, "claims 1152921504606846976 keys", "cut short"},
    {"2^60 tensors", tensors_2_60, "claims 1152921504606846976 tensors", "cut short"},
    {"string of 2^40", string_2_40, "key k", "past the end"},
    {"string of 2^64-1", string_max, "key k", "past the end"},
    {"key of 2^40", key_2_40, "key 0", "ends or is damaged"},
    {"array of arrays", nested, "key k", "arrays of arrays"},
    {"array of 2^60", array_2_60, "key k", "claims 1152921504606846976 elements of type float32"},
    {"strings, 2^60", strings_2_60, "key k", "claims 1152921504606846976 elements of type string"},
    {"string in array past end", string_in_array, "key k", "past the end"},
    {"value type 13", value_type_13, "key k", "found 13"},
    {"element type 99", element_type_99, "key k", "found 99"},
    {"version 1", version_1, "expected GGUF version 2 or 3", "found 1"},
    {"version 4", version_4, "expected GGUF version 2 or 3", "found 4"},
    {"big-endian", big_endian, "little-endian", "big-endian"},
    {"alignment 0", alignment_0, "general.alignment", "found 0"},
    {"alignment 24", alignment_24, "general.alignment", "found 24"},
    {"alignment text", alignment_text, "general.alignment", "file has string"},
    {"alignment 2^31", alignment_2_31, "general.alignment", "found 2147483648"},
};

static void refuses_bad_files(void **s) {
  (void)s;
  for (size_t i = 0; i < ARRAY_LEN(bad_files); i++) {
    struct gguf_maker m;
    gguf_maker_init(&m);
    bad_files[i].make(&m);
    size_t n;
    unsigned char *file = gguf_maker_finish(&m, &n);
    struct copy c;
    struct err e;
    if (open_copy(&c, file, n, &e) == 0) fail_msg("%s: opened", bad_files[i].name);
    if (memcmp(e.msg, "dir/m.gguf: ", 12) != 0 || !strstr(e.msg, bad_files[i].says) || !strstr(e.msg, bad_files[i].says_too))
      fail_msg("%s: says \"%s\"", bad_files[i].name, e.msg);
    if (err_exit_status(e.code) != 2) fail_msg("%s: code %s", bad_files[i].name, err_code_name(e.code));
    assert_null(c.g.kv);
    close_copy(&c);
    free(file);
  }
}

/* Names of other things, and of nothing. */
static void refuses_other_files(void **s) {
  (void)s;
  static const char *const texts[] = {"", "G", "GGU", "GGUX0000000000000000000000000000", "PK\x03\x04zipzipzipzipzipzipzip", "GGUF"};
  for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
    struct copy c;
    struct err e;
    assert_int_equal(open_copy(&c, texts[i], strlen(texts[i]), &e), -1);
    assert_int_equal(e.code, ERR_BAD_FILE);
    close_copy(&c);
  }
}

/* --- sweeps ------------------------------------------------------------------------------------------------------------- */

static void every_truncation_is_an_error(void **s) {
  (void)s;
  size_t n;
  unsigned char *file = good_file(&n);
  for (size_t cut = 0; cut < n; cut++) {
    struct copy c;
    struct err e;
    if (open_copy(&c, file, cut, &e) == 0) fail_msg("opened with %zu of %zu bytes", cut, n);
    if (!e.msg[0]) fail_msg("no message at %zu", cut);
    close_copy(&c);
  }
  free(file);
}

/* After opening, everything that is reachable is touched. */
static uint64_t touch(const struct gguf *g) {
  uint64_t sum = 0;
  for (size_t i = 0; i < g->n_kv; i++) {
    const struct gguf_kv *kv = &g->kv[i];
    const unsigned char *cursor = NULL;
    for (uint64_t k = 0; k < kv->n; k++) {
      if (kv->type == GGUF_STRING) {
        struct str t = gguf_kv_next_string(kv, &cursor);
        for (size_t b = 0; b < t.n; b++) sum += (unsigned char)t.p[b];
      } else sum += (uint64_t)gguf_kv_int(kv, k) + (gguf_kv_float(kv, k) > 0);
    }
  }
  for (size_t i = 0; i < g->n_tensors; i++)
    for (size_t b = 0; b < g->tensors[i].n_bytes; b++) sum += ((const unsigned char *)g->tensors[i].data)[b];
  return sum;
}

static void no_mutation_crashes(void **s) {
  (void)s;
  size_t n;
  unsigned char *file = good_file(&n);
  struct copy c;
  struct err e;
  assert_int_equal(open_copy(&c, file, n, &e), 0);
  gguf_close(&c.g);
  uint64_t sum = 0;
  int opened = 0, refused = 0;
  static const unsigned char values[] = {0, 1, 7, 9, 0x7f, 0x80, 0xff};
  for (size_t i = 0; i < n; i++) {
    for (size_t v = 0; v < ARRAY_LEN(values) + 8; v++) {
      if (v < ARRAY_LEN(values)) c.bytes[i] = values[v];
      else c.bytes[i] = (unsigned char)(file[i] ^ (1u << (v - ARRAY_LEN(values))));
      if (gguf_open(&c.g, &c.map, &e) == 0) {
        sum += touch(&c.g);
        gguf_close(&c.g);
        opened++;
      } else refused++;
    }
    c.bytes[i] = file[i];
  }
  print_message("%d mutations opened, %d refused (%llu)\n", opened, refused, (unsigned long long)sum);
  assert_true(opened > 100 && refused > 1000);
  test_guard_free(c.bytes, c.n);
  free(file);
}

/* Several bytes at once, so that counts and types go wrong together. */
static void no_random_damage_crashes(void **s) {
  (void)s;
  size_t n;
  unsigned char *file = good_file(&n);
  struct copy c;
  struct err e;
  assert_int_equal(open_copy(&c, file, n, &e), 0);
  gguf_close(&c.g);
  uint64_t rng = 5, sum = 0;
  for (int round = 0; round < 20000; round++) {
    memcpy(c.bytes, file, n);
    for (int k = test_rand_int(&rng, 1, 6); k > 0; k--) c.bytes[test_rand_int(&rng, 0, (int)n - 1)] = (unsigned char)test_rand(&rng);
    if (gguf_open(&c.g, &c.map, &e) == 0) sum += touch(&c.g);
    gguf_close(&c.g);
  }
  assert_true(sum != 0);
  test_guard_free(c.bytes, c.n);
  free(file);
}

static void failing_allocations(void **s) {
  (void)s;
  size_t n;
  unsigned char *file = good_file(&n);
  int failures = 0;
  for (int k = 1; k < 20; k++) {
    struct copy c;
    struct err e;
    mem_fail_after(k);
    int result = open_copy(&c, file, n, &e);
    bool pending = mem_fail_pending();
    mem_fail_after(0);
    if (pending) assert_int_equal(result, 0);
    else {
      assert_int_equal(result, -1);
      assert_int_equal(e.code, ERR_NO_MEMORY);
      failures++;
    }
    close_copy(&c);
  }
  assert_int_equal(failures, 4); /* keys; offsets, tensors, names */
  free(file);
}

/* Half a million strings and numbers open in milliseconds, without an allocation for each. */
static void large_arrays(void **s) {
  (void)s;
  enum { N = 500000 };
  struct gguf_maker m;
  gguf_maker_init(&m);
  unsigned char *strings = malloc(12 + (size_t)N * 12), *p = strings + 12;
  memset(strings, 0, 12 + (size_t)N * 12);
  strings[0] = GM_STR;
  uint64_t count = N;
  memcpy(strings + 4, &count, 8);
  for (int i = 0; i < N; i++, p += 12) p[0] = 4, memcpy(p + 8, "word", 4);
  gguf_maker_kv(&m, "tokens", 6, GM_ARRAY, strings, 12 + (size_t)N * 12);
  gguf_maker_array(&m, "scores", GM_F32_KV, strings, N, 4);
  size_t n;
  unsigned char *file = gguf_maker_finish(&m, &n);
  struct map map = {.data = file, .n_bytes = n};
  struct gguf g;
  struct err e = {0};
  int64_t start = clock_ns();
  assert_int_equal(gguf_open(&g, &map, &e), 0);
  double ms = clock_ms_since(start);
  print_message("opened in %.2f ms\n", ms);
  assert_true(ms < 1000); /* a few, on an idle machine */
  assert_int_equal(gguf_find(&g, "tokens")->n, N);
  assert_int_equal(g.n_tensors, 0); /* a vocabulary without weights is a good file */
  gguf_close(&g);
  free(file);
  free(strings);
}

static void version_2_and_alignment(void **s) {
  (void)s;
  struct gguf_maker m;
  gguf_maker_init(&m);
  m.version = 2;
  m.alignment = 64;
  gguf_maker_u32(&m, "general.alignment", 64);
  gguf_maker_tensor(&m, "a", GM_F32, 1, (uint64_t[]){1}, (float[]){1}, 4);
  gguf_maker_tensor(&m, "b", GM_F32, 1, (uint64_t[]){1}, (float[]){2}, 4);
  size_t n;
  unsigned char *file = gguf_maker_finish(&m, &n);
  struct copy c;
  struct err e;
  if (open_copy(&c, file, n, &e) != 0) fail_msg("%s", e.msg);
  float b;
  memcpy(&b, c.g.tensors[1].data, 4);
  assert_true(b == 2);
  assert_int_equal((const char *)c.g.tensors[1].data - (const char *)c.g.tensors[0].data, 64);
  close_copy(&c);
  free(file);
}

const struct CMUnitTest tests[] = {
    cmocka_unit_test(reads_a_good_file),
    cmocka_unit_test(getters),
    cmocka_unit_test(refuses_bad_files),
    cmocka_unit_test(refuses_other_files),
    cmocka_unit_test(every_truncation_is_an_error),
    cmocka_unit_test(no_mutation_crashes),
    cmocka_unit_test(no_random_damage_crashes),
    cmocka_unit_test(failing_allocations),
    cmocka_unit_test(large_arrays),
    cmocka_unit_test(version_2_and_alignment),
};
TEST_MAIN(tests)
