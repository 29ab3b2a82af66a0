/* t_acl_emu_executors.c — descriptors, executors and workspaces of the emulated NPU, and the numbers it stores. */
#include "test.h"

#include "acl_programs.h"

/* ---- descriptors and executors -------------------------------------------------------------------------------------------------------------- */

static void body_descriptors(void) {
  open_all();
  float *x = device(4096);
  const int64_t four[] = {4}, two[] = {2, 2}, stride[] = {2, 1}, wide[] = {3, 1}, negative[] = {-1};
  assert_null(acl.aclCreateTensor(negative, 1, NPU_FLOAT, NULL, 0, NPU_ND, four, 1, x));
  assert_null(acl.aclCreateTensor(two, 2, NPU_FLOAT, wide, 0, NPU_ND, four, 1, x)); /* reaches element 4 of 4 */
  assert_says("reaches element 4");
  assert_null(acl.aclCreateTensor(two, 2, NPU_FLOAT, stride, 1, NPU_ND, four, 1, x));
  assert_null(acl.aclCreateTensor(NULL, 1, NPU_FLOAT, NULL, 0, NPU_ND, four, 1, x));
  assert_null(acl.aclCreateScalar(NULL, NPU_FLOAT));
  aclTensor *t = acl.aclCreateTensor(two, 2, NPU_FLOAT, stride, 0, NPU_ND, four, 1, x), *u = vector(x, 4);
  int64_t *dims;
  uint64_t n;
  IS(0, more.aclGetViewShape(t, &dims, &n));
  assert_true(n == 2 && dims[0] == 2 && dims[1] == 2);
  free(dims);
  IS(161001, more.aclGetViewShape(NULL, &dims, &n));
  IS(0, acl.aclDestroyTensor(t));
  IS(161002, acl.aclDestroyTensor(t));
  IS(161002, more.aclGetViewShape(t, &dims, &n));
  IS(0, acl.aclDestroyTensorList(NULL));
  const aclTensor *members[] = {t, u};
  assert_null(acl.aclCreateTensorList(members, 2)); /* t is dead */
  members[0] = u;
  aclTensorList *l = acl.aclCreateTensorList(members, 1);
  assert_non_null(l);
  IS(0, acl.aclDestroyTensorList(l));
  IS(161002, acl.aclDestroyTensor(u)); /* went with its list */
  u = vector(x, 4);
  members[0] = u;
  l = acl.aclCreateTensorList(members, 1);
  IS(0, acl.aclDestroyTensor(u));
  IS(161002, acl.aclDestroyTensorList(l)); /* its member went before it */
  IS(161002, acl.aclDestroyTensorList(l));
  IS(0, acl.aclrtFree(x));
  close_all();
}

static void body_executors(void) {
  open_all();
  aclOpExecutor *ex = NULL;
  float *x = device(4096), *y = device(64), *a = device(64), f = 2;
  char *w = device(4096);
  uint64_t bytes;
  aclTensor *t = vector(x, 4), *odd = vector((char *)x + 16, 4), *nothing = vector(NULL, 4);
  aclScalar *s = acl.aclCreateScalar(&f, NPU_FLOAT);
  IS(161001, acl.InplaceMuls(NULL, s, &bytes, &ex));
  IS(161001, acl.InplaceMuls(t, NULL, &bytes, &ex));
  IS(161001, acl.InplaceMuls(t, s, NULL, &ex));
  IS(161002, acl.InplaceMuls(odd, s, &bytes, &ex)); /* 32-byte alignment */
  assert_says("32");
  IS(161002, acl.InplaceMuls(nothing, s, &bytes, &ex));
  assert_null(ex);
  /* phase 2: its own operator, once, and a tensor that is still there */
  IS(0, acl.InplaceMuls(t, s, &bytes, &ex));
  IS(161002, acl.issue[ACL_OP_Mm](NULL, 0, ex, stream));
  fill(x, 4, 1, 0);
  IS(0, acl.issue[ACL_OP_InplaceMuls](NULL, 0, ex, stream));
  IS(561000, acl.issue[ACL_OP_InplaceMuls](NULL, 0, ex, stream));
  IS(561000, acl.aclDestroyAclOpExecutor(ex));
  IS(561103, acl.issue[ACL_OP_InplaceMuls](NULL, 0, NULL, stream));
  IS(561103, acl.aclDestroyAclOpExecutor(NULL));
  wait_for(stream);
  assert_true(value(x, 0) == 2);
  IS(0, acl.InplaceMuls(t, s, &bytes, &ex));
  IS(0, acl.aclDestroyAclOpExecutor(ex));
  IS(0, acl.InplaceMuls(t, s, &bytes, &ex));
  IS(0, acl.aclDestroyTensor(t));
  IS(161002, acl.issue[ACL_OP_InplaceMuls](NULL, 0, ex, stream));
  assert_says("destroyed between");
  /* one that nobody runs is a leak, told by name */
  t = vector(x, 4);
  IS(0, acl.InplaceMuls(t, s, &bytes, &ex));
  assert_non_null(strstr(emu->leaks(), "1 executor (aclnnInplaceMuls)"));
  IS(0, acl.aclDestroyAclOpExecutor(ex));
  /* workspaces */
  IS(161001, product(NPU_FLOAT16, y, x, a, 4, NULL, -1, stream));
  IS(161002, product(NPU_FLOAT16, y, x, a, 4, w, 1, stream));
  IS(161002, product(NPU_FLOAT16, y, x, a, 4, w + 4096 - 64, 128, stream));
  IS(161002, product(NPU_FLOAT16, y, x, a, 4, w + 8, -1, stream));
  IS(161002, product(NPU_FLOAT16, y, x, a, 4, &f, -1, stream)); /* of the host */
  IS(161002, product(NPU_FLOAT16, y, x, a, 4, x, -1, stream));
  const uint16_t ones[16] = {0x3c00, 0x3c00, 0x3c00, 0x3c00}, twos[16] = {0x4000, [4] = 0x4000, [8] = 0x4000, [12] = 0x4000};
  uint16_t eight = 0;
  IS(0, acl.aclrtMemcpy(x, 32, ones, 32, 1));
  IS(0, acl.aclrtMemcpy(a, 32, twos, 32, 1));
  IS(0, product(NPU_FLOAT16, y, x, a, 4, w, -1, stream));
  wait_for(stream);
  assert_true(emu->peek(y, &eight, 2) && eight == 0x4800);
  emu->lazy(1);
  expect_violations();
  IS(0, product(NPU_FLOAT16, y, x, a, 4, w, -1, stream));
  IS(0, product(NPU_FLOAT16, y, x, a, 4, w + 32, -1, other));
  IS(0, acl.aclrtSynchronizeDevice());
  assert_violated("one workspace");
  /* memory that goes before its operator ran */
  emu->lazy(1);
  float *gone = device(64);
  expect_violations();
  IS(0, scale(gone, 4, 2, stream));
  IS(0, acl.aclrtFree(gone));
  IS(507015, acl.aclrtSynchronizeStream(stream));
  assert_says("InplaceMuls");
  assert_violated("still uses");
  IS(0, scale(gone, 4, 2, stream)); /* never was there */
  IS(507015, acl.aclrtSynchronizeStream(stream));
  IS(0, scale(x + 1016, 16, 2, stream)); /* sticks out */
  IS(507015, acl.aclrtSynchronizeStream(stream));
  assert_says("not inside a live block");
  acl.aclDestroyTensor(t);
  acl.aclDestroyTensor(odd);
  acl.aclDestroyTensor(nothing);
  acl.aclDestroyScalar(s);
  void *all[] = {x, y, a, w};
  for (int i = 0; i < 4; i++) IS(0, acl.aclrtFree(all[i]));
  close_all();
}

/* What phase 1 was told stays, whatever the caller does to its arrays. */
static void body_snapshots(void) {
  open_all();
  float *x = device(64), *y = device(64);
  int64_t dims[] = {2, 4}, axis[] = {1}, out[] = {2};
  uint64_t bytes;
  aclOpExecutor *ex;
  fill(x, 8, 1, 1);
  aclTensor *t = tensor(x, NPU_FLOAT, 2, dims), *u = tensor(y, NPU_FLOAT, 1, out);
  aclIntArray *a = acl.aclCreateIntArray(axis, 1);
  axis[0] = 0; /* copied when it was made */
  IS(0, acl.ReduceSum(t, a, false, NPU_FLOAT, u, &bytes, &ex));
  acl.aclDestroyIntArray(a);
  void *w = bytes ? device(bytes) : NULL;
  IS(0, acl.issue[ACL_OP_ReduceSum](w, bytes, ex, stream));
  acl.aclDestroyTensor(t);
  acl.aclDestroyTensor(u);
  wait_for(stream);
  assert_true(value(y, 0) == 10 && value(y, 1) == 26);
  /* a repeatable executor: used again, at other addresses, destroyed by the caller */
  IS(0, scale_phase1(x, 4, 3, &ex));
  IS(0, more.aclSetAclOpExecutorRepeatable(ex));
  IS(0, acl.issue[ACL_OP_InplaceMuls](NULL, 0, ex, stream));
  aclTensor *v = vector(x, 4);
  IS(0, more.aclSetTensorAddr(ex, 0, v, y));
  IS(161002, more.aclSetTensorAddr(ex, 1, v, y)); /* it has no second one */
  IS(161002, more.aclSetTensorAddr(ex, 0, v, (char *)y + 4));
  IS(0, acl.issue[ACL_OP_InplaceMuls](NULL, 0, ex, stream));
  wait_for(stream);
  assert_true(value(x, 0) == 3 && value(y, 0) == 30);
  IS(0, acl.aclDestroyAclOpExecutor(ex));
  IS(0, scale_phase1(x, 4, 3, &ex));
  IS(161002, more.aclSetTensorAddr(ex, 0, v, y)); /* not repeatable */
  IS(0, acl.aclDestroyAclOpExecutor(ex));
  acl.aclDestroyTensor(v);
  char leaks[512];
  snprintf(leaks, sizeof leaks, "%s", emu->leaks());
  assert_non_null(strstr(leaks, "2 tensors")); /* of the two first phases */
  acl.aclrtFree(x);
  acl.aclrtFree(y);
  if (w) acl.aclrtFree(w);
  acl.aclrtDestroyStream(stream);
  acl.aclrtDestroyStream(other);
  emu->quiet(1);
  IS(0, acl.aclFinalize());
  assert_non_null(strstr(emu->finalize_leaks(), "2 tensors"));
}

/* Types: every bf16 and fp16 there and back, and float to them against exact arithmetic; sums in the other order differ a little. */
static void cast(void *to, int to_type, const void *from, int from_type, int64_t n) {
  uint64_t bytes;
  aclOpExecutor *ex;
  aclTensor *t = tensor((void *)(uintptr_t)from, from_type, 1, &n), *u = tensor(to, to_type, 1, &n);
  IS(0, acl.Cast(t, to_type, u, &bytes, &ex));
  assert_int_equal(bytes, 0);
  IS(0, acl.issue[ACL_OP_Cast](NULL, 0, ex, stream));
  acl.aclDestroyTensor(t);
  acl.aclDestroyTensor(u);
  wait_for(stream);
}
static double half_of(int type, uint16_t bits) { /* exact */
  int e = type == NPU_BF16 ? bits >> 7 & 255 : bits >> 10 & 31, m = type == NPU_BF16 ? bits & 127 : bits & 1023;
  int wide = type == NPU_BF16 ? 7 : 10, bias = type == NPU_BF16 ? 127 : 15, top = type == NPU_BF16 ? 255 : 31;
  double x = e == top ? (m ? NAN : INFINITY) : e ? ldexp(1 + ldexp(m, -wide), e - bias) : ldexp(ldexp(m, -wide), 1 - bias);
  return bits & 0x8000 ? -x : x;
}
static void body_numbers(void) {
  enum { N = 65536 };
  static uint16_t half[N], again[N];
  static float wide[N];
  open_all();
  void *h = device(2 * N), *f = device(4 * N), *k = device(2 * N);
  for (int type = NPU_FLOAT16; type >= 0; type = type == NPU_FLOAT16 ? NPU_BF16 : -1) {
    if (type == NPU_BF16 && !strcmp(npu_current(), "310P-8.5")) break;
    for (int i = 0; i < N; i++) half[i] = (uint16_t)i;
    IS(0, acl.aclrtMemcpy(h, 2 * N, half, 2 * N, 1));
    cast(f, NPU_FLOAT, h, type, N);
    cast(k, type, f, NPU_FLOAT, N);
    IS(0, acl.aclrtMemcpy(wide, 4 * N, f, 4 * N, 2));
    IS(0, acl.aclrtMemcpy(again, 2 * N, k, 2 * N, 2));
    for (int i = 0; i < N; i++) {
      double x = half_of(type, half[i]);
      if (x != x) assert_true(wide[i] != wide[i] && half_of(type, again[i]) != half_of(type, again[i]));
      else assert_true((double)wide[i] == x && again[i] == half[i]);
    }
    uint64_t state = 5;
    for (int i = 0; i < N; i++) { /* floats of every size, many halfway between two halves */
      uint32_t u = (uint32_t)test_rand(&state);
      if (i % 2) u = (u & (type == NPU_BF16 ? 0xffff0000U : 0xffffe000U)) | (type == NPU_BF16 ? 0x8000U : 0x1000U);
      if (type == NPU_FLOAT16 && i % 4) u = (u & 0x807fffffU) | (uint32_t)(100 + (u >> 23 & 63)) << 23;
      memcpy(&wide[i], &u, 4);
    }
    IS(0, acl.aclrtMemcpy(f, 4 * N, wide, 4 * N, 1));
    cast(k, type, f, NPU_FLOAT, N);
    IS(0, acl.aclrtMemcpy(again, 2 * N, k, 2 * N, 2));
    for (int i = 0; i < N; i++) {
      double x = (double)wide[i], y = half_of(type, again[i]);
      if (x != x) {
        assert_true(y != y);
        continue;
      }
      uint16_t bits = again[i] & 0x7fff;
      double most = type == NPU_BF16 ? half_of(type, 0x7f7f) : 65504, step = type == NPU_BF16 ? ldexp(1, 120) : 32;
      if (fabs(x) >= most + step / 2) {
        assert_true(isinf(y) && (y > 0) == (x > 0));
        continue;
      }
      assert_false(isinf(y));
      double d = fabs(fabs(x) - fabs(y)), up = half_of(type, (uint16_t)(bits + 1)), down = bits ? half_of(type, (uint16_t)(bits - 1)) : 0;
      if (isinf(up)) up = most + step;
      assert_true((y < 0) == (x < 0) || y == 0);
      assert_true(d <= fabs(up - fabs(x)) && (!bits || d <= fabs(fabs(x) - down)));
      if (d == fabs(up - fabs(x)) || (bits && d == fabs(fabs(x) - down))) assert_int_equal(bits & 1, 0); /* a tie goes to the even one */
    }
  }
  /* the other order of sums */
  float *a = device(65536), *b = device(65536), *y[2] = {device(65536), device(65536)};
  void *w = device(1 << 20);
  int type = strcmp(npu_current(), "310P-8.5") ? NPU_FLOAT : NPU_FLOAT16;
  static float r[2][16384];
  uint64_t state = 9;
  for (int i = 0; i < 16384; i++) wide[i] = test_rand_normal(&state);
  IS(0, acl.aclrtMemcpy(f, 65536, wide, 65536, 1));
  for (int i = 0; i < 2; i++) cast(i ? a : b, type, f, NPU_FLOAT, 16384);
  for (int i = 0; i < 2; i++) {
    emu->other_order(i);
    IS(0, product(type, y[i], a, b, 128, w, -1, stream));
    cast(f, NPU_FLOAT, y[i], type, 16384);
    IS(0, acl.aclrtMemcpy(r[i], 65536, f, 65536, 2));
  }
  double worst = 0, l2;
  test_compare(r[0], r[1], 16384, &worst, &l2);
  assert_true(worst > 0 && worst < (type == NPU_FLOAT ? 1e-5 : 1e-2));
  void *all[] = {h, f, k, a, b, y[0], y[1], w};
  for (int i = 0; i < 8; i++) IS(0, acl.aclrtFree(all[i]));
  close_all();
}

EACH(descriptors)
EACH(executors)
EACH(snapshots)
EACH(numbers)

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_descriptors),
    cmocka_unit_test(test_executors),
    cmocka_unit_test(test_snapshots),
    cmocka_unit_test(test_numbers),
};
TEST_MAIN(tests)
