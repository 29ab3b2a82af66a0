/* t_ascend_guard.c — operations on the NPU take no memory of the host (device.h): each kind that works on arrays there runs under the guard
 * that a step of the engine runs under.
 */
#include "test.h"

#include <math.h>

#include "base/mem.h"
#include "compute/ascend/ascend.h"
#include "npu.h"

enum { ROWS = 48, COLS = 256, POSITIONS = 32 };

static struct device *open_device(void) {
  struct err e = {0};
  const struct device_config c = {.n_threads = 2, .rows_max = ROWS, .cols_max = COLS, .positions_max = POSITIONS};
  struct device *d = device_ascend_ops.open(&c, &e);
  if (!d) fail_msg("%s", e.msg);
  return d;
}

static struct tensor tensor_of(struct device *d, int rows, int cols) {
  struct tensor t;
  struct err e = {0};
  if (d->ops->alloc(d, &t, rows, cols, "test", &e)) fail_msg("%s", e.msg);
  return t;
}

static void fill(struct device *d, const struct tensor *t, float (*number)(int row, int col)) {
  struct tensor s = d->ops->stage(d, t);
  for (int r = 0; r < t->rows; r++)
    for (int c = 0; c < t->cols; c++) tensor_row(&s, r)[c] = number(r, c);
  d->ops->send(d, t, &s);
}

static float by_place(int row, int col) { return (float)(row % 16) + (float)(col % 8) / 8; }
static float with_nan(int row, int col) { return col == 0 && row % 3 == 0 ? NAN : col == 5 + row ? 9 : 1; }

static void close_device(struct device *d) {
  struct err e = {0};
  if (d->ops->finish(d, &e)) fail_msg("%s", e.msg);
  d->ops->close(d);
  npu_check_clean();
}

/* Every third row from the other end: more runs than are copied one by one. */
static void put_rows(void) {
  struct device *d = open_device();
  struct tensor x = tensor_of(d, ROWS, COLS), y = tensor_of(d, ROWS, COLS), host;
  struct err e = {0};
  int32_t from[ROWS];
  for (int r = 0; r < ROWS; r++) from[r] = r % 3 ? -1 : ROWS - 1 - r;
  if (d->ops->host_alloc(d, &host, ROWS, COLS, "test", &e)) fail_msg("%s", e.msg);
  fill(d, &x, by_place);
  mem_guard_begin("rows put in place of others");
  d->ops->step(d, NULL);
  d->ops->put_rows(d, &y, &x, from);
  d->ops->fetch(d, &host, &y);
  mem_guard_end();
  for (int r = 0; r < ROWS; r++)
    for (int c = 0; c < COLS; c++) {
      float want = r % 3 ? 0 : by_place(from[r], c);
      assert_true(tensor_row(&host, r)[c] == want);
    }
  d->ops->host_free(d, &host);
  d->ops->free(d, &x), d->ops->free(d, &y);
  close_device(d);
}

/* Positions that the device's table does not have. */
static void far_positions(void) {
  struct device *d = open_device();
  struct rope_table t;
  struct tensor x = tensor_of(d, ROWS, COLS);
  struct err e = {0};
  int32_t pos[ROWS];
  for (int r = 0; r < ROWS; r++) pos[r] = POSITIONS - 4 + r;
  if (d->ops->rope_init(d, &t, 64, 10000, 1, 1, &e)) fail_msg("%s", e.msg);
  mem_guard_begin("positions beyond the table");
  d->ops->step(d, NULL);
  d->ops->rope_step(d, &t, pos, ROWS);
  d->ops->rope(d, &x, &t);
  mem_guard_end();
  d->ops->rope_free(d, &t);
  d->ops->free(d, &x);
  close_device(d);
}

static void argmax(void) {
  struct device *d = open_device();
  struct tensor x = tensor_of(d, ROWS, COLS);
  int32_t ids[ROWS];
  fill(d, &x, with_nan);
  mem_guard_begin("the greatest of a row");
  d->ops->step(d, NULL);
  d->ops->argmax(d, ids, &x);
  mem_guard_end();
  for (int r = 0; r < ROWS; r++) assert_int_equal(ids[r], 5 + r);
  d->ops->free(d, &x);
  close_device(d);
}

/* Temporary memory that an operation asks for first, whatever number of blocks there is before. */
static void first_temporary(void) {
  for (int n = 48; n < 66; n++) {
    struct device *d = open_device();
    struct tensor x = tensor_of(d, ROWS, COLS), more[66];
    for (int i = 0; i < n; i++) more[i] = tensor_of(d, 1, 8);
    mem_guard_begin("temporary memory");
    d->ops->step(d, NULL);
    d->ops->rmsnorm(d, &x, &x, NULL, 1, 1e-6f);
    mem_guard_end();
    for (int i = 0; i < n; i++) d->ops->free(d, &more[i]);
    d->ops->free(d, &x);
    close_device(d);
  }
}

/* A norm that has no weights is one operator: the 1s are there from the beginning. */
static void norm_without_weights(void) {
  struct device *d = open_device();
  struct tensor x = tensor_of(d, ROWS, COLS), y = tensor_of(d, ROWS, COLS), host;
  struct err e = {0};
  if (d->ops->host_alloc(d, &host, ROWS, COLS, "test", &e)) fail_msg("%s", e.msg);
  fill(d, &x, by_place);
  uint64_t before = ascend_of(d)->n_launches;
  d->ops->rmsnorm(d, &y, &x, NULL, 1, 1e-6f);
  assert_int_equal(ascend_of(d)->n_launches - before, 1);
  d->ops->fetch(d, &host, &y);
  for (int r = 0; r < ROWS; r++) {
    double squares = 0;
    for (int c = 0; c < COLS; c++) squares += pow((double)by_place(r, c), 2) / COLS;
    for (int c = 0; c < COLS; c++)
      assert_true(fabs((double)tensor_row(&host, r)[c] - (double)by_place(r, c) / sqrt(squares + 1e-6)) < 0.02);
  }
  d->ops->host_free(d, &host);
  d->ops->free(d, &x), d->ops->free(d, &y);
  close_device(d);
}

static void test_put_rows(void **state) { (void)state, npu_each_profile(put_rows); }
static void test_far_positions(void **state) { (void)state, npu_each_profile(far_positions); }
static void test_argmax(void **state) { (void)state, npu_each_profile(argmax); }
static void test_norm_without_weights(void **state) { (void)state, npu_each_profile(norm_without_weights); }
static void test_first_temporary(void **state) { (void)state, npu_each_profile(first_temporary); }

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_put_rows),        cmocka_unit_test(test_far_positions),
    cmocka_unit_test(test_argmax),          cmocka_unit_test(test_norm_without_weights),
    cmocka_unit_test(test_first_temporary),
};

TEST_MAIN(tests)
