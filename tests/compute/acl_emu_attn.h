/* acl_emu_attn.h — the emulator's attention operators as functions of structs, for the tests of their numbers and of their rules.
 *
 * Tensors are made from shapes for one call; device memory lives until release. Argument orders come from the backend's declarations, so that
 * they meet the emulator's own here.
 */
#ifndef CYGNET_TESTS_ACL_EMU_ATTN_H
#define CYGNET_TESTS_ACL_EMU_ATTN_H

#include "test.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "acl_emu/acl_emu.h"
#include "base/dtype.h"
#include "compute/ascend/acl.h"
#include "npu.h"

enum { MOST = 1 << 30 };
enum { NULLPTR = 161001, INVALID = 161002, TILING = 561002, NO_KERNEL = 561003, AICORE = 507015, VECTOR = 507035 };

static struct acl acl;
static const struct acl_emu *emu;
static aclrtStream stream;
static uint64_t seed;

/* ---- the library -------------------------------------------------------------------------------------------------------------- */

static void *libraries[8];
static int n_libraries;

static inline void *symbol(const char *name) {
  void *p = NULL;
  for (int i = 0; i < n_libraries && !p; i++) p = dlsym(libraries[i], name);
  return p;
}

static inline void open_npu(void) {
  static const char *const names[] = {"libascendcl.so", "libnnopbase.so",          "libopapi_math.so",
                                      "libopapi_nn.so", "libopapi_transformer.so", "libopapi.so"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char path[4096];
    snprintf(path, sizeof path, "%s/lib64/%s", getenv("ASCEND_HOME_PATH"), names[i]);
    if (i == 5 && n_libraries > 2) break;
    void *l = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (l) libraries[n_libraries++] = l;
  }
  assert_true(n_libraries >= 3);
#define X(returns, name, args) *(void **)&acl.name = symbol(#name);
  ACL_REQUIRED(X)
  ACL_OPTIONAL(X)
  ACL_BASE(X)
#undef X
#define X(op, ...)                                                                                                                         \
  *(void **)&acl.op = symbol("aclnn" #op "GetWorkspaceSize");                                                                              \
  *(void **)&acl.issue[ACL_OP_##op] = symbol("aclnn" #op);
  ACLNN_OPERATORS(X)
#undef X
  emu = ((acl_emu_fn)symbol("acl_emu"))();
  emu->quiet(1);
  assert_int_equal(acl.aclInit(NULL), 0);
  assert_int_equal(acl.aclrtSetDevice(0), 0);
  assert_int_equal(acl.aclrtCreateStream(&stream), 0);
  seed = 7;
}

static inline bool is_310p(void) { return strstr(emu->profile, "310P") != NULL; }
static inline bool is_new(void) { return emu->cann >= 900; }
static inline int random_int(int lo, int hi) { return test_rand_int(&seed, lo, hi); }
static inline int pick(const int *from, int n) { return from[random_int(0, n - 1)]; }
#define PICK(...) pick((const int[]){__VA_ARGS__}, (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)))

/* ---- memory and tensors --------------------------------------------------------------------------------------------------------- */

static void *blocks[128];
static int n_blocks;

static inline void *device_of(const void *host, size_t n) {
  void *p = NULL;
  assert_true(n_blocks < 128);
  assert_int_equal(acl.aclrtMalloc(&p, n ? n : 1, 0), 0);
  if (host) assert_int_equal(acl.aclrtMemcpy(p, n, host, n, NPU_HOST_TO_DEVICE), 0);
  return blocks[n_blocks++] = p;
}
static inline void release(void) {
  while (n_blocks > 0) assert_int_equal(acl.aclrtFree(blocks[--n_blocks]), 0);
}

struct shape {
  bool absent;
  int type, n;
  int64_t dims[6], strides[6]; /* strides 0: contiguous */
  void *data;                  /* device; NULL: zeros are made */
};

static inline size_t size_of(int type) {
  switch (type) {
  case NPU_FLOAT:
  case NPU_INT32: return 4;
  case NPU_FLOAT16:
  case NPU_BF16: return 2;
  case NPU_INT64: return 8;
  default: return 1;
  }
}
static inline int64_t count(const struct shape *s) {
  int64_t n = 1;
  for (int i = 0; i < s->n; i++) n *= s->dims[i];
  return n;
}

static inline struct shape shape_of(int type, int n, const int64_t *dims) {
  struct shape s = {.type = type, .n = n};
  memcpy(s.dims, dims, (size_t)n * sizeof *dims);
  return s;
}
#define SHAPE(type, ...) shape_of(type, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})
static const struct shape absent = {.absent = true};

static inline aclTensor *tensor_of(struct shape *s) {
  if (s->absent) return NULL;
  int64_t stride[6], next = 1, extent = 1;
  bool strided = false;
  for (int i = 0; i < s->n; i++) strided |= s->strides[i] != 0;
  for (int i = s->n - 1; i >= 0; i--) {
    stride[i] = strided ? s->strides[i] : next;
    next *= s->dims[i];
    extent += s->dims[i] ? (s->dims[i] - 1) * stride[i] : 0;
  }
  if (!s->data) {
    size_t bytes = (size_t)extent * size_of(s->type);
    s->data = device_of(NULL, bytes);
    assert_int_equal(acl.aclrtMemset(s->data, bytes, 0, bytes), 0);
  }
  return acl.aclCreateTensor(s->dims, (uint64_t)s->n, s->type, stride, 0, NPU_ND, &extent, 1, s->data);
}

static inline void encode(int type, double x, void *out) {
  float f = (float)x;
  uint16_t h = type == NPU_BF16 ? f32_to_bf16(f) : f32_to_f16(f);
  if (type == NPU_FLOAT) memcpy(out, &f, sizeof f);
  else memcpy(out, &h, sizeof h);
}
static inline double decode(int type, const void *in) {
  float f;
  uint16_t h;
  if (type == NPU_FLOAT) return memcpy(&f, in, 4), (double)f;
  memcpy(&h, in, 2);
  return type == NPU_BF16 ? (double)bf16_to_f32(h) : (double)f16_to_f32(h);
}
static inline double rounded(int type, double x) {
  char b[4];
  encode(type, x, b);
  return decode(type, b);
}

/* Both phases, and the wait. The first code that is not 0. */
static inline int run_phases(enum acl_op op, int rc, uint64_t bytes, aclOpExecutor *executor) {
  if (rc) return rc;
  void *workspace = bytes ? device_of(NULL, bytes) : NULL;
  rc = acl.issue[op](workspace, bytes, executor, stream);
  int waited = acl.aclrtSynchronizeStream(stream);
  return rc ? rc : waited;
}

static inline void expect(int found, int code, const char *what, int line) {
  if (found == code) return;
  const char *text = acl.aclGetRecentErrMsg();
  fail_msg("%s, line %d: %s: %d instead of %d (%s)", emu->profile, line, what, found, code, text ? text : "no text");
}

/* ---- FusedInferAttentionScore and IncreFlashAttention ----------------------------------------------------------------------------- */

struct fia {
  int version; /* 0: IncreFlashAttentionV4 */
  struct shape q, k, v, out, mask, shift, table, lse;
  struct shape *k_list, *v_list; /* instead of k, v */
  int n_list;
  int64_t q_lens[8], kv_lens[8];
  int n_q_lens, n_kv_lens; /* -1: NULL */
  int64_t heads, kv_heads, pre, next, sparse, precise, block, quant_mode;
  double scale;
  const char *layout;
  bool lse_wanted, no_key;
  struct shape extra; /* a quantising scale */
};

static inline aclTensorList *list_of(struct shape *one, struct shape *many, int n) {
  aclTensor *t[64];
  for (int i = 0; i < n; i++) t[i] = tensor_of(many ? &many[i] : one);
  return acl.aclCreateTensorList((const aclTensor *const *)t, (uint64_t)n);
}

static inline int fia(struct fia *f) {
  int n = f->n_list ? f->n_list : 1;
  aclTensor *q = tensor_of(&f->q), *out = tensor_of(&f->out), *mask = tensor_of(&f->mask), *shift = tensor_of(&f->shift),
            *table = tensor_of(&f->table), *lse = tensor_of(&f->lse), *extra = tensor_of(&f->extra);
  aclTensorList *k = f->no_key ? NULL : list_of(&f->k, f->k_list, n), *v = list_of(&f->v, f->v_list, n);
  aclIntArray *ql = f->n_q_lens < 0 ? NULL : acl.aclCreateIntArray(f->q_lens, (uint64_t)f->n_q_lens);
  aclIntArray *kl = f->n_kv_lens < 0 ? NULL : acl.aclCreateIntArray(f->kv_lens, (uint64_t)f->n_kv_lens);
  char layout[32], *in = f->layout ? layout : NULL;
  snprintf(layout, sizeof layout, "%s", f->layout ? f->layout : "");
  uint64_t bytes = 0;
  aclOpExecutor *ex = NULL;
  int rc;
  enum acl_op op;
  switch (f->version) {
  case 0:
    op = ACL_OP_IncreFlashAttentionV4;
    rc = acl.IncreFlashAttentionV4(q, k, v, shift, mask, kl, extra, NULL, NULL, NULL, NULL, NULL, NULL, table, NULL, f->heads, f->scale, in,
                                   f->kv_heads, f->block, f->precise, out, &bytes, &ex);
    break;
  case 2:
    op = ACL_OP_FusedInferAttentionScoreV2;
    rc = acl.FusedInferAttentionScoreV2(q, k, v, shift, mask, ql, kl, extra, NULL, NULL, NULL, NULL, NULL, NULL, table, NULL, NULL, NULL,
                                        NULL, NULL, NULL, NULL, NULL, NULL, f->heads, f->scale, f->pre, f->next, in, f->kv_heads, f->sparse,
                                        f->precise, f->block, 0, f->lse_wanted, 0, 0, out, lse, &bytes, &ex);
    break;
  case 3:
    op = ACL_OP_FusedInferAttentionScoreV3;
    rc = acl.FusedInferAttentionScoreV3(q, k, v, shift, mask, ql, kl, extra, NULL, NULL, NULL, NULL, NULL, NULL, table, NULL, NULL, NULL,
                                        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, f->heads, f->scale, f->pre, f->next, in,
                                        f->kv_heads, f->sparse, f->precise, f->block, 0, f->lse_wanted, 0, 0, out, lse, &bytes, &ex);
    break;
  default:
    op = ACL_OP_FusedInferAttentionScoreV4;
    rc = acl.FusedInferAttentionScoreV4(q, k, v, shift, mask, ql, kl, extra, NULL, NULL, NULL, NULL, NULL, NULL, table, NULL, NULL, NULL,
                                        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, f->heads, f->scale, f->pre,
                                        f->next, in, f->kv_heads, f->sparse, f->precise, f->block, 0, f->lse_wanted, 0, 0, f->quant_mode,
                                        out, lse, &bytes, &ex);
    break;
  }
  rc = run_phases(op, rc, bytes, ex);
  aclTensor *all[] = {q, out, mask, shift, table, lse, extra};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i]) acl.aclDestroyTensor(all[i]);
  if (k) acl.aclDestroyTensorList(k);
  acl.aclDestroyTensorList(v);
  if (ql) acl.aclDestroyIntArray(ql);
  if (kl) acl.aclDestroyIntArray(kl);
  return rc;
}

static inline int newest(void) { return acl.FusedInferAttentionScoreV4 ? 4 : 3; }

static inline void *triangle(void) { /* the constant of sparse modes 2, 3, 4 */
  static unsigned char m[2048 * 2048];
  static void *device;
  if (!device) {
    for (int i = 0; i < 2048; i++)
      for (int j = 0; j < 2048; j++) m[i * 2048 + j] = j > i;
    device = device_of(m, sizeof m);
    n_blocks--; /* stays */
  }
  return device;
}
static inline struct shape triangle_shape(void) {
  struct shape s = SHAPE(NPU_BOOL, 2048, 2048);
  s.data = triangle();
  return s;
}
static inline void close_npu(void) {
  void *t = triangle();
  assert_int_equal(acl.aclrtFree(t), 0);
  assert_int_equal(acl.aclrtDestroyStream(stream), 0);
  assert_int_equal(acl.aclrtResetDevice(0), 0);
  assert_int_equal(acl.aclFinalize(), 0);
  assert_string_equal(emu->finalize_leaks(), "");
  assert_int_equal(emu->violations(), 0);
}

/* ---- FlashAttention ---------------------------------------------------------------------------------------------------------------- */

struct flash {
  bool packed;
  struct shape q, k, v, out, max, sum, mask, shift, extra;
  int64_t q_lens[8], kv_lens[8];
  int n_lens, n_kv_lens;
  int64_t heads, pre, next, sparse, precise;
  double scale, keep;
  const char *layout;
};

static inline int flash(struct flash *f) {
  aclTensor *q = tensor_of(&f->q), *k = tensor_of(&f->k), *v = tensor_of(&f->v), *out = tensor_of(&f->out), *max = tensor_of(&f->max),
            *sum = tensor_of(&f->sum), *mask = tensor_of(&f->mask), *shift = tensor_of(&f->shift), *extra = tensor_of(&f->extra);
  aclIntArray *ql = f->n_lens < 0 ? NULL : acl.aclCreateIntArray(f->q_lens, (uint64_t)f->n_lens);
  aclIntArray *kl = f->n_kv_lens < 0 ? NULL : acl.aclCreateIntArray(f->kv_lens, (uint64_t)f->n_kv_lens);
  char layout[32];
  snprintf(layout, sizeof layout, "%s", f->layout ? f->layout : "");
  uint64_t bytes = 0;
  aclOpExecutor *ex = NULL;
  int rc = f->packed
               ? acl.FlashAttentionVarLenScore(q, k, v, shift, extra, NULL, mask, NULL, ql, kl, f->scale, f->keep, f->pre, f->next,
                                               f->heads, f->layout ? layout : NULL, f->precise, f->sparse, max, sum, NULL, out, &bytes, &ex)
               : acl.FlashAttentionScore(q, k, v, shift, extra, NULL, mask, NULL, f->scale, f->keep, f->pre, f->next, f->heads,
                                         f->layout ? layout : NULL, f->precise, f->sparse, max, sum, NULL, out, &bytes, &ex);
  rc = run_phases(f->packed ? ACL_OP_FlashAttentionVarLenScore : ACL_OP_FlashAttentionScore, rc, bytes, ex);
  aclTensor *all[] = {q, k, v, out, max, sum, mask, shift, extra};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i]) acl.aclDestroyTensor(all[i]);
  if (ql) acl.aclDestroyIntArray(ql);
  if (kl) acl.aclDestroyIntArray(kl);
  return rc;
}
/* ---- pages ------------------------------------------------------------------------------------------------------------------------ */

struct scatter {
  struct shape k, v, k_cache, v_cache, slots, extra;
  const char *cache_mode, *scatter_mode;
};
static inline int scatter(struct scatter *s) {
  aclTensor *k = tensor_of(&s->k), *v = tensor_of(&s->v), *kc = tensor_of(&s->k_cache), *vc = tensor_of(&s->v_cache),
            *slots = tensor_of(&s->slots), *extra = tensor_of(&s->extra);
  char cache[16], how[16];
  snprintf(cache, sizeof cache, "%s", s->cache_mode ? s->cache_mode : "");
  snprintf(how, sizeof how, "%s", s->scatter_mode ? s->scatter_mode : "");
  uint64_t bytes = 0;
  aclOpExecutor *ex = NULL;
  int rc = acl.ScatterPaKvCache(k, kc, slots, v, vc, extra, NULL, NULL, s->cache_mode ? cache : NULL, s->scatter_mode ? how : NULL, NULL,
                                NULL, &bytes, &ex);
  rc = run_phases(ACL_OP_ScatterPaKvCache, rc, bytes, ex);
  aclTensor *all[] = {k, v, kc, vc, slots, extra};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i]) acl.aclDestroyTensor(all[i]);
  return rc;
}

struct gather {
  struct shape k_cache, v_cache, table, lens, k, v, offsets;
  const char *mode;
  bool cumulative;
};
static inline int gather(struct gather *g) {
  aclTensor *k = tensor_of(&g->k), *v = tensor_of(&g->v), *kc = tensor_of(&g->k_cache), *vc = tensor_of(&g->v_cache),
            *table = tensor_of(&g->table), *lens = tensor_of(&g->lens), *offsets = tensor_of(&g->offsets);
  char mode[16];
  snprintf(mode, sizeof mode, "%s", g->mode ? g->mode : "");
  uint64_t bytes = 0;
  aclOpExecutor *ex = NULL;
  int rc = acl.GatherPaKvCache(kc, vc, table, lens, k, v, offsets, g->mode ? mode : NULL, g->cumulative, &bytes, &ex);
  rc = run_phases(ACL_OP_GatherPaKvCache, rc, bytes, ex);
  aclTensor *all[] = {k, v, kc, vc, table, lens, offsets};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i]) acl.aclDestroyTensor(all[i]);
  return rc;
}

static inline void poison(struct shape *s) {
  size_t n = (size_t)count(s) * size_of(s->type);
  s->data = device_of(NULL, n);
  assert_int_equal(acl.aclrtMemset(s->data, n, 0xff, n), 0);
}

static inline void set_byte(void *device, size_t at, int value) { /* device memory, one byte */
  unsigned char b = (unsigned char)value;
  assert_int_equal(acl.aclrtMemcpy((char *)device + at, 1, &b, 1, NPU_HOST_TO_DEVICE), 0);
}
static inline void own_data(struct shape *s, const void *host) { s->data = device_of(host, (size_t)count(s) * size_of(s->type)); }

/* One query each for two sequences, over pages: right on every chip that has the operator. */
static inline struct fia decode_base(void) {
  struct fia f = {
      .version = newest(), .layout = "BSND", .heads = 4, .kv_heads = 2, .scale = 0.125, .block = 128, .pre = MOST, .next = MOST};
  f.q = f.out = SHAPE(NPU_BF16, 2, 1, 4, 64);
  f.k = f.v = SHAPE(NPU_BF16, 6, 128, 2 * 64);
  f.table = SHAPE(NPU_INT32, 2, 3);
  f.mask = f.shift = f.lse = f.extra = absent;
  f.n_q_lens = -1;
  f.kv_lens[0] = 5, f.kv_lens[1] = 200, f.n_kv_lens = 2;
  return f;
}
#endif
