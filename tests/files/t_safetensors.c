/* t_safetensors.c — round trips, sharded sets, headers that lie, truncations and mutations. */
#include "test.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/str.h"
#include "files/safetensors.h"

/* A file from header text and data, its bytes ending at a guard page, opened as if mapped. */
struct copy {
  struct safetensors st;
  unsigned char *bytes;
  size_t n;
};
static int open_bytes(struct copy *c, const void *file, size_t n, struct err *e) {
  c->n = n;
  c->bytes = test_guard_alloc(n);
  memcpy(c->bytes, file, n);
  struct map m = {.data = n ? c->bytes : NULL, .n_bytes = n, .path = strdup("dir/m.safetensors")};
  memset(e, 0, sizeof *e);
  return safetensors_from_map(&c->st, &m, e);
}
static void close_copy(struct copy *c) {
  safetensors_close(&c->st);
  test_guard_free(c->bytes, c->n);
}
static unsigned char *make(const char *header, size_t data_bytes, size_t *n) {
  size_t h = strlen(header);
  unsigned char *file = malloc(8 + h + data_bytes);
  for (int i = 0; i < 8; i++) file[i] = (unsigned char)((uint64_t)h >> (8 * i));
  memcpy(file + 8, header, h);
  for (size_t i = 0; i < data_bytes; i++) file[8 + h + i] = (unsigned char)i;
  *n = 8 + h + data_bytes;
  return file;
}

static const char good_header[] = "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                                  "\"a\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]},"
                                  "\"none\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[32,32]},"
                                  "\"scalar\":{\"dtype\":\"F8_E4M3\",\"shape\":[],\"data_offsets\":[32,33]}}   ";

static void reads_a_good_file(void **s) {
  (void)s;
  size_t n;
  unsigned char *file = make(good_header, 33, &n);
  struct copy c;
  struct err e;
  if (open_bytes(&c, file, n, &e) != 0) fail_msg("%s", e.msg);
  assert_int_equal(c.st.n_tensors, 4);
  const struct st_tensor *t = safetensors_find(&c.st, "a");
  assert_int_equal(t->dtype, DTYPE_BF16);
  assert_int_equal(t->n_bytes, 8);
  assert_int_equal(((const unsigned char *)t->data)[0], 24);
  t = safetensors_find(&c.st, "b");
  assert_int_equal(t->n_dims, 2);
  assert_int_equal(t->shape[1], 3);
  t = safetensors_find(&c.st, "scalar");
  assert_int_equal(t->dtype, DTYPE_NONE);
  assert_string_equal(t->type_name, "F8_E4M3");
  assert_null(safetensors_find(&c.st, "__metadata__"));
  assert_null(safetensors_find(&c.st, "c"));
  close_copy(&c);
  free(file);
}

/* {"t":{...}} with the given inside and 8 bytes of data. */
static void refuses_bad_headers(void **s) {
  (void)s;
  static const struct {
    const char *header, *says;
  } bad[] = {
      {"{\"t\":{\"dtype\":\"F99\",\"shape\":[2],\"data_offsets\":[0,8]}}", "tensor t: unknown dtype \"F99\""},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", "tensor t: expected 12 bytes"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", "begin 8 is past end 0"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", "needs"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[1099511627776,1099511627784]}}", "needs"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", "two whole numbers"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8.0]}}", "two whole numbers"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", "two whole numbers"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4,8]}}", "two whole numbers"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", "shape[0]"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", "more than 2^64"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[9223372036854775807],\"data_offsets\":[0,8]}}", "more than 2^64"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", "at most 8 dimensions, found 9"},
      {"{\"t\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", "expected a string"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", "expected an array"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2]}}", "expected dtype, shape and data_offsets"},
      {"{\"t\":[]}", "expected an object"},
      {"[]", "expected its header to be a JSON object"},
      {"{", "line 1"},
      {"", "found nothing"},
      {"{\"\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "expected a name"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
       "twice"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"u\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
       "overlap"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"u\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[5,8]}}",
       "gap"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "expected 4 bytes of data, found 8"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "gap"},
      {"{\"t\\u0000\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "NUL"},
      {"{\"t\xff\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "not UTF-8"},
      {"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "nested deeper"},
  };
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    size_t n;
    unsigned char *file = make(bad[i].header, 8, &n);
    struct copy c;
    struct err e;
    if (open_bytes(&c, file, n, &e) == 0) fail_msg("%s: opened", bad[i].header);
    if (memcmp(e.msg, "dir/m.safetensors", 17) != 0 || !strstr(e.msg, bad[i].says)) fail_msg("%s: says \"%s\"", bad[i].header, e.msg);
    assert_int_equal(err_exit_status(e.code), 2);
    close_copy(&c);
    free(file);
  }
}

static void refuses_bad_lengths(void **s) {
  (void)s;
  static const uint64_t lengths[] = {(uint64_t)1 << 40, UINT64_MAX, (uint64_t)1 << 63, 40};
  for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
    unsigned char file[8 + 32] = {0};
    for (int b = 0; b < 8; b++) file[b] = (unsigned char)(lengths[i] >> (8 * b));
    struct copy c;
    struct err e;
    assert_int_equal(open_bytes(&c, file, sizeof file, &e), -1);
    assert_non_null(strstr(e.msg, "its header claims"));
    close_copy(&c);
  }
}

static void every_truncation_is_an_error(void **s) {
  (void)s;
  size_t n;
  unsigned char *file = make(good_header, 33, &n);
  for (size_t cut = 0; cut < n; cut++) {
    struct copy c;
    struct err e;
    if (open_bytes(&c, file, cut, &e) == 0) fail_msg("opened with %zu of %zu bytes", cut, n);
    assert_true(e.msg[0] != 0);
    close_copy(&c);
  }
  free(file);
}

static void no_mutation_crashes(void **s) {
  (void)s;
  size_t n;
  unsigned char *file = make(good_header, 33, &n);
  uint64_t sum = 0;
  int opened = 0, refused = 0;
  for (size_t i = 0; i < n; i++) {
    unsigned char was = file[i];
    for (int v = 0; v < 14; v++) {
      if (v < 6) file[i] = (unsigned char)"\0\xff\"9[}"[v];
      else file[i] = (unsigned char)(was ^ (1u << (v - 6)));
      struct copy c;
      struct err e;
      if (open_bytes(&c, file, n, &e) == 0) {
        opened++;
        for (size_t t = 0; t < c.st.n_tensors; t++)
          for (size_t b = 0; b < c.st.tensors[t].n_bytes; b++) sum += ((const unsigned char *)c.st.tensors[t].data)[b];
      } else refused++;
      close_copy(&c);
    }
    file[i] = was;
  }
  print_message("%d mutations opened, %d refused (%llu)\n", opened, refused, (unsigned long long)sum);
  assert_true(opened > 100 && refused > 1000);
  free(file);
}

static void failing_allocations(void **s) {
  (void)s;
  size_t n;
  unsigned char *file = make(good_header, 33, &n);
  struct copy c;
  struct err e;
  mem_fail_after(1);
  assert_int_equal(open_bytes(&c, file, n, &e), -1);
  assert_false(mem_fail_pending());
  assert_int_equal(e.code, ERR_NO_MEMORY);
  close_copy(&c);
  mem_fail_after(2); /* there is one table */
  assert_int_equal(open_bytes(&c, file, n, &e), 0);
  assert_true(mem_fail_pending());
  mem_fail_after(0);
  close_copy(&c);
  free(file);
}

/* --- writing ------------------------------------------------------------------------------------------------------------ */

static void round_trip(void **s) {
  (void)s;
  float f[6] = {1, -2, 3.5f, 0, 1e30f, -0.0f};
  int32_t ids[3] = {-1, 0, INT32_MAX};
  int64_t wide[1] = {INT64_MIN};
  uint8_t bytes[5] = {1, 2, 3, 4, 255};
  uint16_t half[2] = {0x3c00, 0xbc00};
  struct st_write t[] = {{"bytes", DTYPE_U8, 1, {5}, bytes},   {"a \"quoted\\ name\n", DTYPE_F32, 2, {2, 3}, f},
                         {"ids", DTYPE_I32, 1, {3}, ids},      {"wide", DTYPE_I64, 0, {0}, wide},
                         {"none", DTYPE_F32, 2, {0, 4}, NULL}, {"half", DTYPE_F16, 4, {1, 1, 2, 1}, half},
                         {"brain", DTYPE_BF16, 1, {2}, half}};
  char path[300];
  snprintf(path, sizeof path, "%s/out.safetensors", test_tmpdir());
  struct err e = {0};
  if (safetensors_write(path, t, ARRAY_LEN(t), &e) != 0) fail_msg("%s", e.msg);
  struct safetensors st;
  if (safetensors_open(&st, path, &e) != 0) fail_msg("%s", e.msg);
  assert_int_equal(st.n_tensors, ARRAY_LEN(t));
  for (size_t i = 0; i < ARRAY_LEN(t); i++) {
    const struct st_tensor *r = safetensors_find(&st, t[i].name);
    assert_non_null(r);
    assert_int_equal(r->dtype, t[i].dtype);
    assert_int_equal(r->n_dims, t[i].n_dims);
    assert_memory_equal(r->shape, t[i].shape, (size_t)t[i].n_dims * sizeof t[i].shape[0]);
    if (r->n_bytes) assert_memory_equal(r->data, t[i].data, r->n_bytes);
    assert_int_equal((uintptr_t)r->data % (size_t)dtype_info(r->dtype)->block_bytes, 0);
  }
  safetensors_close(&st);
  /* nothing at all is a file too */
  assert_int_equal(safetensors_write(path, NULL, 0, &e), 0);
  assert_int_equal(safetensors_open(&st, path, &e), 0);
  assert_int_equal(st.n_tensors, 0);
  safetensors_close(&st);
}

static void writing_refuses(void **s) {
  (void)s;
  struct err e = {0};
  float f[2] = {0};
  char path[300];
  snprintf(path, sizeof path, "%s/no.safetensors", test_tmpdir());
  struct st_write twice[2] = {{"x", DTYPE_F32, 1, {2}, f}, {"x", DTYPE_F32, 1, {2}, f}};
  assert_int_equal(safetensors_write(path, twice, 2, &e), -1);
  assert_non_null(strstr(e.msg, "two tensors are called x"));
  struct st_write quantised = {"q", DTYPE_Q4_K, 1, {256}, f};
  assert_int_equal(safetensors_write(path, &quantised, 1, &e), -1);
  struct st_write giant = {"g", DTYPE_F32, 2, {INT64_MAX, 4}, f};
  assert_int_equal(safetensors_write(path, &giant, 1, &e), -1);
  assert_int_equal(access(path, F_OK), -1);
  assert_int_equal(safetensors_write("/no/such/folder/x", twice, 1, &e), -1);
  assert_int_equal(e.code, ERR_IO);
  if (access("/dev/full", W_OK) != 0) return;
  snprintf(path, sizeof path, "%s/full", test_tmpdir());
  assert_int_equal(symlink("/dev/full", path), 0);
  assert_int_equal(safetensors_write(path, twice, 1, &e), -1);
  assert_int_equal(e.code, ERR_IO);
  assert_int_equal(access(path, F_OK), 0); /* what is not a file stays */
}

/* --- sets --------------------------------------------------------------------------------------------------------------- */

static const char *folder(const char *name) {
  static char path[300];
  snprintf(path, sizeof path, "%s/%s", test_tmpdir(), name);
  mkdir(path, 0700);
  return path;
}
static void write_shard(const char *name, const char *tensor, float v) {
  char path[600];
  struct err e = {0};
  snprintf(path, sizeof path, "%s/set/%s", test_tmpdir(), name);
  if (safetensors_write(path, &(struct st_write){tensor, DTYPE_F32, 1, {1}, &v}, 1, &e) != 0) fail_msg("%s", e.msg);
}
static void write_index(const char *text) { test_write("set/model.safetensors.index.json", text, strlen(text)); }

static void sharded_set(void **s) {
  (void)s;
  const char *dir = folder("set");
  struct safetensors st;
  struct err e = {0};
  assert_int_equal(safetensors_open(&st, dir, &e), -1);
  assert_int_equal(e.code, ERR_NOT_FOUND);
  assert_non_null(strstr(e.msg, "found neither"));
  write_shard("model-00001-of-00002.safetensors", "one", 1);
  write_shard("model-00002-of-00002.safetensors", "two", 2);
  write_index(
      "{\"metadata\":{},\"weight_map\":{\"two\":\"model-00002-of-00002.safetensors\",\"one\":\"model-00001-of-00002.safetensors\"}}");
  if (safetensors_open(&st, dir, &e) != 0) fail_msg("%s", e.msg);
  assert_int_equal(st.n_maps, 2);
  assert_int_equal(st.n_tensors, 2);
  assert_int_equal(safetensors_find(&st, "two")->shard, 1);
  assert_true(*(const float *)safetensors_find(&st, "two")->data == 2);
  safetensors_close(&st);

  static const struct {
    const char *index, *says;
  } bad[] = {
      {"{\"weight_map\":{\"one\":\"model-00003-of-00002.safetensors\"}}", "no such file"},
      {"{\"weight_map\":{\"one\":\"../model.safetensors\"}}", "beside the index"},
      {"{\"weight_map\":{\"one\":\"/etc/passwd\"}}", "beside the index"},
      {"{\"weight_map\":{\"one\":\"..\"}}", "beside the index"},
      {"{\"weight_map\":{\"one\":\"\"}}", "beside the index"},
      {"{\"weight_map\":{\"one\":5}}", "name of a file"},
      {"{\"weight_map\":{}}", "weight_map"},
      {"{}", "weight_map"},
      {"[]", "weight_map"},
      {"nonsense", "line 1"},
      {"{\"weight_map\":{\"one\":\"model-00001-of-00002.safetensors\",\"three\":\"model-00002-of-00002.safetensors\"}}",
       "tensor three: expected it in model-00002-of-00002.safetensors, it is not there"},
      {"{\"weight_map\":{\"one\":\"model-00002-of-00002.safetensors\",\"two\":\"model-00001-of-00002.safetensors\"}}",
       "it is in another file"},
  };
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    write_index(bad[i].index);
    if (safetensors_open(&st, dir, &e) == 0) fail_msg("%s: opened", bad[i].index);
    if (!strstr(e.msg, bad[i].says)) fail_msg("%s: says \"%s\"", bad[i].index, e.msg);
    assert_int_equal(err_exit_status(e.code), 2);
  }
  write_shard("model-00002-of-00002.safetensors", "one", 2); /* the same tensor in both */
  write_index("{\"weight_map\":{\"one\":\"model-00001-of-00002.safetensors\",\"x\":\"model-00002-of-00002.safetensors\"}}");
  assert_int_equal(safetensors_open(&st, dir, &e), -1);
  assert_non_null(strstr(e.msg, "tensor one: also present in another part"));
}

static void real_fixtures_open(void **s) {
  (void)s;
  static const char *const paths[] = {"golden/gemma3-text-tiny", "golden/gemma3-text-ropescale/model.safetensors",
                                      "golden/gemma3-text-tiny/golden.safetensors", "golden/gemma3-270m/golden.safetensors"};
  for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
    struct safetensors st;
    struct err e = {0};
    if (safetensors_open(&st, test_path(paths[i]), &e) != 0) fail_msg("%s", e.msg);
    assert_true(st.n_tensors > 5);
    safetensors_close(&st);
  }
}

const struct CMUnitTest tests[] = {
    cmocka_unit_test(reads_a_good_file),   cmocka_unit_test(refuses_bad_headers),
    cmocka_unit_test(refuses_bad_lengths), cmocka_unit_test(every_truncation_is_an_error),
    cmocka_unit_test(no_mutation_crashes), cmocka_unit_test(failing_allocations),
    cmocka_unit_test(round_trip),          cmocka_unit_test(writing_refuses),
    cmocka_unit_test(sharded_set),         cmocka_unit_test(real_fixtures_open),
};
TEST_MAIN(tests)
