/* t_ascend_attn.c — attention on the emulated NPU: every route alone and all together, on every profile, against the float64 oracle.
 *
 * The worlds are those of attn_world.h: what no row has written is NaN, and so is every page that has left its window; pools hand out different
 * page ids, so a sliding layer that looked into the full pool would show it.
 */
#include "attn_world.h"

#include "compute/ascend/attn.h"
#include "compute/ascend/capture.h"
#include "npu.h"

#ifdef CYGNET_DEBUG
enum { WORLDS = 1, WORLDS_TOGETHER = 2, PICTURE_WORLDS = 2, STEPS_REPLAYED = 24, LARGE_PAGES_ONE_IN = 4 };
#else
enum { WORLDS = 1, WORLDS_TOGETHER = 6, PICTURE_WORLDS = 6, STEPS_REPLAYED = 40, LARGE_PAGES_ONE_IN = 2 };
#endif

/* ---- helpers ------------------------------------------------------------------------------------------------------------------------ */

static struct device *open_device(void) {
  struct err e = {0};
  struct device_config c = {.rows_max = 512, .cols_max = 4096};
  struct device *dev = device_ascend_ops.open(&c, &e);
  if (!dev) fail_msg("%s", e.msg);
  return dev;
}
static enum dtype dtype_of(const struct device *dev) { return ((const struct ascend *)dev)->dtype; }
static void routes(const char *names) {
  if (names) setenv("CYGNET_ASCEND_ROUTES", names, 1);
  else unsetenv("CYGNET_ASCEND_ROUTES");
}

static double worst_max, worst_l2;
static void expect_close(const struct world *w, const float *got, const float *want, const char *what) {
  double rel_max, rel_l2;
  size_t n = n_results(w), n_set = 0;
  test_compare(got, want, n, &rel_max, &rel_l2);
  for (size_t i = 0; i < n; i++) n_set += want[i] != 0; /* rows that see nothing make the rms small */
  rel_max *= sqrt((double)n_set / (double)n);
  worst_max = MAX(worst_max, rel_max), worst_l2 = MAX(worst_l2, rel_l2);
  if (n_set == 0 ? !memcmp(got, want, n * sizeof *got) : rel_max < 0.04 && rel_l2 < 0.005) return;
  fail_msg("%s: %s: %d sequences of %d.., head_dim %d, %d over %d, window %d: rel_max %g, rel_l2 %g", npu_current(), what, w->n_seqs,
           w->len[0], w->layers[0].head_dim, w->layers[0].n_q, w->layers[0].n_kv, w->window, rel_max, rel_l2);
}

static float *oracle(const struct world *w) {
  struct road road = {.ops = &attn_ref_ops, .page = 16, .chunk = 1 << 20, .together = true};
  return walk(w, &road);
}

/* A length that is of interest for the window and the page, of up to `most`. */
static int a_length(uint64_t *rand, int window, int page, int most) {
  const int lengths[] = {1, window - 1, window, window + 1, window + 2, page - 1, page, page + 1, 2 * page, 2 * page + 1, 3 * page};
  int n = test_rand_int(rand, 0, 2) ? lengths[test_rand_int(rand, 0, (int)ARRAY_LEN(lengths) - 1)] : test_rand_int(rand, 1, most);
  return MIN(MAX(n, 1), most);
}

static struct world some_world(uint64_t *rand, enum dtype type, int head_dim, int page) {
  const int most = page > 16 ? 2 * page + 20 : 4 * page + 10;
  int window = test_rand_int(rand, 1, 2 * page + 1);
  if (test_rand_int(rand, 0, 3) == 0) window = page * test_rand_int(rand, 1, 2);
  struct world w = new_world(head_dim > 128 ? 1 : test_rand_int(rand, 1, 2), test_rand_int(rand, 1, 4), head_dim, window, type,
                             test_rand(rand));
  w.input = type;
  w.n_seqs = test_rand_int(rand, 1, 3);
  for (int s = 0; s < w.n_seqs; s++) w.len[s] = a_length(rand, window, page, head_dim > 128 ? MIN(most, 80) : most);
  return w;
}

static struct road some_road(uint64_t *rand, struct device *dev, int page) {
  static const int chunks[] = {1, 0, 7, 1 << 20};
  return (struct road){.ops = &attn_ascend_ops,
                       .device = dev,
                       .page = page,
                       .chunk = chunks[test_rand_int(rand, 0, 3)],
                       .together = test_rand_int(rand, 0, 3) > 0,
                       .n_padding = test_rand_int(rand, 0, 2),
                       .seed = test_rand(rand)};
}

static uint64_t fused_calls(void) {
  const struct acl_emu *emu = npu_emu();
  return emu->called("FusedInferAttentionScoreV2") + emu->called("FusedInferAttentionScoreV3") + emu->called("FusedInferAttentionScoreV4");
}

/* The chips and versions that differ in what attention can do: A3 is like A2. */
static void npu_each_kind(void (*body)(void)) {
  for (int i = 0; i < NPU_PROFILES; i++) {
    if (strcmp(npu_profiles[i], "A3-9.1")) npu_profile(npu_profiles[i], body);
  }
}

/* ---- the table ------------------------------------------------------------------------------------------------------------------------- */

static void expect_can(enum attn_route r, const struct ascend_profile *p, struct attn_need n, bool can) {
  const char *why = NULL;
  if (attn_route_can(r, p, &n, &why) != can) {
    fail_msg("%s for heads of %d, pages of %d on CANN %d: %s", attn_route_name(r), n.head_dim, n.page_tokens, p->cann, can ? why : "can");
  }
  assert_true(can ? !*why : *why != 0);
}

static void the_table_of_routes(void **state) {
  (void)state;
  struct ascend_profile a81 = {.chip = ASCEND_A2, .cann = 801, .has_bf16 = true, .fused = 3, .has_index_copy = true, .has_capture = true};
  struct ascend_profile a85 = a81, a91, old = {.chip = ASCEND_310P, .cann = 805};
  a85.cann = 805, a85.fused = 4, a85.has_scatter_paged = true;
  a91 = a85, a91.cann = 901, a91.fused_wide_tnd = true;
  struct attn_need n = {.head_dim = 128, .n_q = 8, .n_kv = 2, .page_tokens = 128};
  expect_can(ROUTE_DECODE, &a81, n, true);
  expect_can(ROUTE_DECODE, &old, n, false);
  expect_can(ROUTE_COMPOSED, &old, n, true);
  expect_can(ROUTE_TND, &a81, n, false);
  expect_can(ROUTE_TND, &a85, n, true);
  n.window = true, n.window_tokens = 512;
  expect_can(ROUTE_TND, &a85, n, false);
  expect_can(ROUTE_TND, &a91, n, true);
  expect_can(ROUTE_DECODE, &a85, n, false);
  expect_can(ROUTE_MASKED, &a85, n, true);
  expect_can(ROUTE_WINDOW, &a85, n, true);
  expect_can(ROUTE_BSND, &a85, n, false);
  n.many_rows = true;
  expect_can(ROUTE_BSND, &a85, n, true);
  expect_can(ROUTE_MASKED, &a85, n, false);
  n.page_tokens = 16;
  expect_can(ROUTE_BSND, &a85, n, false);
  n.page_tokens = 128, n.head_dim = 256;
  expect_can(ROUTE_TND, &a85, n, false);
  expect_can(ROUTE_TND, &a91, n, true);
  n.n_kv = 8;
  expect_can(ROUTE_TND, &a91, n, false);
  n.n_kv = 2, n.head_dim = 512;
  expect_can(ROUTE_TND, &a91, n, false);
  expect_can(ROUTE_BSND, &a91, n, true);
  n.many_rows = n.window = false;
  expect_can(ROUTE_DECODE, &a81, n, true);
  n.recorded = true;
  expect_can(ROUTE_DECODE, &a81, n, true);
  expect_can(ROUTE_COMPOSED, &a81, n, false);
  n.head_dim = 72;
  expect_can(ROUTE_DECODE, &a91, n, false);
  n.head_dim = 528;
  expect_can(ROUTE_DECODE, &a91, n, false);
  n.head_dim = 128, n.cross = true;
  expect_can(ROUTE_CROSS, &a85, n, true);
  expect_can(ROUTE_TND, &a91, n, false);
  n.n_kv = n.n_q = 1024;
  expect_can(ROUTE_CROSS, &a85, n, false);

  unsigned allowed;
  struct err e = {0};
  routes("tnd,-composed");
  assert_int_equal(attn_routes_allowed(&allowed, &e), 0);
  assert_int_equal(allowed, 1u << ROUTE_TND);
  routes("decode");
  assert_int_equal(attn_routes_allowed(&allowed, &e), 0);
  assert_int_equal(allowed, 1u << ROUTE_DECODE | 1u << ROUTE_COMPOSED);
  routes("decoded");
  assert_int_equal(attn_routes_allowed(&allowed, &e), -1);
  assert_non_null(strstr(e.msg, "decoded"));
  routes(NULL);
}

/* ---- worlds ----------------------------------------------------------------------------------------------------------------------------- */

static const int head_dims[] = {64, 72, 256, 128, 512, 64, 128};

static void one_world(struct device *dev, uint64_t *rand, int head_dim, int page, const char *what) {
  struct world w = some_world(rand, dtype_of(dev), head_dim, page);
  struct road road = some_road(rand, dev, page);
  float *want = oracle(&w), *got = walk(&w, &road);
  expect_close(&w, got, want, what);
  free(want);
  free(got);
}

/* Bits of the routes that the prepared step goes by. */
static unsigned routes_of(const struct attn *a) {
  unsigned used = 0;
  for (int i = 0; i < a->n_shapes; i++) {
    for (int j = 0; j < a->shapes[i].plan.n_calls; j++) used |= 1u << a->shapes[i].plan.calls[j].route;
  }
  return used;
}

static unsigned walk_and_look(const struct world *w, const struct road *road, float *got) {
  struct run r;
  unsigned used = 0;
  begin(&r, w, road);
  while (fill_step(&r)) {
    road->ops->prepare(r.attn, &r.b);
    used |= routes_of(r.attn);
    for (int layer = 0; layer < w->n_layers; layer++) do_layer(&r, layer, got);
    drop_pages(&r);
  }
  end(&r);
  return used;
}

/* One world that the route must take a part in where it can; some that come. */
static void every_route_alone_body(void) {
  static const char *const names[] = {"tnd", "bsnd", "decode", "masked", "window", "composed"};
  static const enum attn_route which[] = {ROUTE_TND, ROUTE_BSND, ROUTE_DECODE, ROUTE_MASKED, ROUTE_WINDOW, ROUTE_COMPOSED};
  struct device *dev = open_device();
  const struct ascend_profile *profile = &((const struct ascend *)dev)->profile;
  uint64_t rand = 21;
  int n = 0;
  for (size_t i = 0; i < ARRAY_LEN(names); i++) {
    bool many = i < 2 || i == 5;
    routes(names[i]);
    struct world w = new_world(1, 2, 128, 30, dtype_of(dev), test_rand(&rand));
    w.input = w.kv_dtype, w.n_seqs = 3, w.len[0] = 45, w.len[1] = w.len[2] = 21; /* single rows behind a chunk */
    struct road road = {.ops = &attn_ascend_ops, .device = dev, .page = 128, .together = true, .chunk = many ? 20 : 1, .seed = i + 1};
    float *want = oracle(&w), *got = xcalloc(n_results(&w), sizeof *got);
    unsigned used = walk_and_look(&w, &road, got);
    struct attn_need full = {.head_dim = 128, .n_q = 2, .n_kv = 1, .many_rows = many, .page_tokens = 128}, window = full;
    window.window = true, window.window_tokens = 30;
    bool can = attn_route_can(which[i], profile, &full, NULL) || attn_route_can(which[i], profile, &window, NULL);
    if (((used >> which[i]) & 1) != can) fail_msg("%s: %s was %sused", npu_current(), names[i], can ? "not " : "");
    expect_close(&w, got, want, names[i]);
    free(want);
    free(got);
    for (int j = 0; j < WORLDS; j++, n++)
      one_world(dev, &rand, head_dims[(size_t)n % ARRAY_LEN(head_dims)], n % LARGE_PAGES_ONE_IN == 1 ? 128 : 16, names[i]);
  }
  routes(NULL);
  printf("%s: %d worlds, worst difference %.2g of the rms, %.2g in L2, %llu fused calls\n", npu_current(), n + (int)ARRAY_LEN(names),
         worst_max, worst_l2, (unsigned long long)fused_calls());
  assert_int_equal(fused_calls() > 0, profile->fused > 0);
  dev->ops->close(dev);
  npu_check_clean();
}
static void every_route_alone(void **state) {
  (void)state;
  npu_each_kind(every_route_alone_body);
}

static void all_routes_together_body(void) {
  struct device *dev = open_device();
  uint64_t rand = 22;
  static const int pages[] = {128, 16, 128, 16, 2, 1};
  npu_emu()->delay_us(20);
  for (int i = 0; i < WORLDS_TOGETHER; i++) {
    npu_emu()->seed(test_rand(&rand));
    one_world(dev, &rand, head_dims[(size_t)i % ARRAY_LEN(head_dims)], pages[(size_t)i % ARRAY_LEN(pages)], "all routes");
  }
  dev->ops->close(dev);
  npu_check_clean();
}
static void all_routes_together(void **state) {
  (void)state;
  npu_each_kind(all_routes_together_body);
}

static void pictures_body(void) {
  struct device *dev = open_device();
  uint64_t rand = 23;
  for (int i = 0; i < PICTURE_WORLDS; i++) {
    const int page = i % 2 ? 16 : 128;
    struct world w = new_world(1 + i % 2, 1 + i % 3, i % 3 ? 64 : 72, test_rand_int(&rand, 1, 50), dtype_of(dev), test_rand(&rand));
    static int ends[SEQS_MOST][200];
    w.input = w.kv_dtype;
    w.n_seqs = test_rand_int(&rand, 1, 2);
    w.both_ways[KV_SLIDING] = true, w.both_ways[KV_FULL] = i & 1;
    for (int s = 0; s < w.n_seqs; s++) {
      w.len[s] = test_rand_int(&rand, 20, page == 128 ? 170 : 90);
      w.quiet[s] = test_rand_int(&rand, 0, 1) * test_rand_int(&rand, 0, w.len[s] / 3);
      memset(ends[s], 0, sizeof ends[s]);
      for (int at = 0; at < w.len[s];) {
        int n = test_rand_int(&rand, 1, 40), end = MIN(at + n, w.len[s]);
        bool picture = test_rand_int(&rand, 0, 1);
        for (; at < end; at++) ends[s][at] = picture ? end : 0;
      }
      w.picture_end[s] = ends[s];
    }
    struct road road = some_road(&rand, dev, page);
    float *want = oracle(&w), *got = walk(&w, &road);
    expect_close(&w, got, want, "pictures");
    free(want);
    free(got);
  }
  dev->ops->close(dev);
  npu_check_clean();
}
static void pictures(void **state) {
  (void)state;
  npu_each_kind(pictures_body);
}

/* ---- copied pages ------------------------------------------------------------------------------------------------------------------------ */

static void copied_pages_body(void) {
  struct device *dev = open_device();
  uint64_t rand = 24;
  struct world w = new_world(2, 2, 64, 20, dtype_of(dev), 5);
  w.input = w.kv_dtype, w.n_seqs = 2, w.len[0] = 60, w.len[1] = 37;
  struct road road = {.ops = &attn_ascend_ops, .device = dev, .page = 16, .together = true, .chunk = 9, .seed = 3};
  float *want = oracle(&w), *got = xcalloc(n_results(&w) + 1, sizeof *got);
  struct run r;
  begin(&r, &w, &road);
  int32_t spare[KV_KINDS];
  for (int k = 0; k < KV_KINDS; k++) spare[k] = r.pages[k][w.n_seqs * r.pages_max];
  while (fill_step(&r)) {
    road.ops->prepare(r.attn, &r.b);
    for (int l = 0; l < w.n_layers; l++) do_layer(&r, l, got);
    drop_pages(&r);
    for (int k = 0; k < KV_KINDS; k++) { /* one page in use goes elsewhere, and is NaN where it was */
      int seq = test_rand_int(&rand, 0, w.n_seqs - 1), used = div_up(r.done[seq], road.page);
      int at = used - 1;
      if (k == KV_SLIDING && at < r.dropped[seq]) continue;
      int32_t *id = &r.pages[k][seq * r.pages_max + at], from = *id;
      road.ops->copy_page(r.attn, (enum kv_kind)k, from, spare[k]);
      *id = spare[k], spare[k] = from;
      poison_page(&r, (enum kv_kind)k, from);
    }
  }
  end(&r);
  expect_close(&w, got, want, "copied pages");
  free(want);
  free(got);
  dev->ops->close(dev);
  npu_check_clean();
}
static void copied_pages(void **state) {
  (void)state;
  npu_each_kind(copied_pages_body);
}

/* ---- a step that prepares twice ------------------------------------------------------------------------------------------------------------- */

/* Nothing waits between the two: what the first prepare sent is still needed when the second comes. */
static void second_prepare_body(void) {
  struct device *dev = open_device();
  struct world w = new_world(1, 2, 64, 20, dtype_of(dev), 7);
  w.input = w.kv_dtype, w.n_seqs = 2, w.len[0] = 50, w.len[1] = 33;
  struct road road = {.ops = &attn_ascend_ops, .device = dev, .page = 16, .together = true, .chunk = 1 << 20, .seed = 4};
  npu_emu()->lazy(1);
  float *want = oracle(&w);
  struct run r;
  begin(&r, &w, &road);
  assert_true(fill_step(&r));
  struct batch wanted = r.b; /* the last two rows of each sequence */
  int32_t lo[2][4], hi[2][4], seq[4] = {0, 0, 1, 1}, q_start[3] = {0, 2, 4};
  for (int i = 0; i < 4; i++) {
    int row = r.b.q_start[i / 2 + 1] - 2 + i % 2;
    for (int k = 0; k < KV_KINDS; k++) lo[k][i] = r.b.lo[k][row], hi[k][i] = r.b.hi[k][row];
  }
  wanted.n_rows = 4, wanted.seq = seq, wanted.q_start = q_start;
  for (int k = 0; k < KV_KINDS; k++) wanted.lo[k] = lo[k], wanted.hi[k] = hi[k], wanted.slot[k] = NULL;

  const int cols[] = {2 * 64, 64, 64, 2 * 64};
  struct tensor t[2][4]; /* of the two layers: their own memory */
  struct err e = {0};
  for (int layer = 0; layer < 2; layer++) {
    for (int i = 0; i < 4; i++) {
      if (dev->ops->alloc(dev, &t[layer][i], r.rows_max, cols[i], "a test", &e)) fail_msg("%s", e.msg);
      struct tensor staged = dev->ops->stage(dev, &t[layer][i]);
      memset(staged.data, 0, staged.row_bytes * (size_t)staged.rows);
      for (int row = 0; row < r.b.n_rows && i < 3; row++)
        fill(&w, layer, r.b.token[row], r.b.pos[row], i + 1, tensor_row(&staged, row), cols[i]);
      dev->ops->send(dev, &t[layer][i], &staged);
    }
  }
  struct tensor q2 = {0}, out2 = {0}; /* layer 2 reads layer 1's keys */
  if (dev->ops->alloc(dev, &q2, 4, 64, "a test", &e) || dev->ops->alloc(dev, &out2, 4, 64, "a test", &e)) fail_msg("%s", e.msg);
  struct tensor staged = dev->ops->stage(dev, &q2);
  for (int i = 0; i < 4; i++) {
    int row = r.b.q_start[i / 2 + 1] - 2 + i % 2;
    fill(&w, 2, r.b.token[row], r.b.pos[row], 1, tensor_row(&staged, i), 64);
  }
  dev->ops->send(dev, &q2, &staged);
  attn_ascend_ops.prepare(r.attn, &r.b);
  for (int layer = 0; layer < 2; layer++) attn_ascend_ops.run(r.attn, layer, &t[layer][0], &t[layer][1], &t[layer][2], &t[layer][3]);
  attn_ascend_ops.prepare(r.attn, &wanted);
  attn_ascend_ops.run(r.attn, 2, &q2, NULL, NULL, &out2);
  struct tensor host[3];
  const struct tensor *outs[] = {&t[0][3], &t[1][3], &out2};
  for (int i = 0; i < 3; i++) {
    if (dev->ops->host_alloc(dev, &host[i], outs[i]->rows, outs[i]->cols, "a test", &e)) fail_msg("%s", e.msg);
    dev->ops->fetch(dev, &host[i], outs[i]);
  }
  if (dev->ops->finish(dev, &e)) fail_msg("%s", e.msg);
  for (int i = 0; i < 3; i++) {
    for (int row = 0; row < (i < 2 ? r.b.n_rows : 4); row++) {
      int from = i < 2 ? row : r.b.q_start[row / 2 + 1] - 2 + row % 2;
      const float *expected = want + result_at(&w, i, r.b.token[from], r.b.pos[from]);
      for (int c = 0; c < host[i].cols; c++) {
        if (!(fabsf(tensor_row(&host[i], row)[c] - expected[c]) < 0.03f)) fail_msg("layer %d row %d number %d", i, row, c);
      }
    }
    dev->ops->host_free(dev, &host[i]);
  }
  for (int i = 0; i < 8; i++) dev->ops->free(dev, &t[i / 4][i % 4]);
  dev->ops->free(dev, &q2);
  dev->ops->free(dev, &out2);
  free(want);
  end(&r);
  dev->ops->close(dev);
  npu_emu()->lazy(0);
  npu_check_clean();
}
static void second_prepare(void **state) {
  (void)state;
  npu_each_profile(second_prepare_body);
}

/* ---- recorded steps --------------------------------------------------------------------------------------------------------------------------- */

/* Three sequences of different lengths, one row each in every step, padded to four rows: recorded at the first step, replayed with lengths,
 * pages, slots and windows that change, until the longest is done. */
static void replay_world(struct device *dev, const char *only, int head_dim, int window, int page) {
  struct world w = new_world(1, 2, head_dim, window, dtype_of(dev), 31);
  w.input = w.kv_dtype, w.n_seqs = 3, w.len[0] = STEPS_REPLAYED, w.len[1] = STEPS_REPLAYED / 2, w.len[2] = 3;
  struct road road = {.ops = &attn_ascend_ops, .device = dev, .page = page, .together = true, .chunk = 1, .n_padding = 1, .seed = 9};
  struct device_record *records[LAYERS_MOST];
  struct err e = {0};
  routes(only);
  for (int l = 0; l < LAYERS_MOST; l++) {
    if (!(records[l] = dev->ops->record_new(dev, 64, 1 << 16, &e))) fail_msg("%s", e.msg);
  }
  float *want = oracle(&w), *got = xcalloc(n_results(&w) + 1, sizeof *got);
  struct run r;
  begin(&r, &w, &road);
  assert_null(attn_ascend_ops.no_records(r.attn));
  while (fill_step(&r)) {
    while (r.b.n_rows < w.n_seqs) { /* up to the bucket: four rows would be more than there are sequences */
      int row = r.b.n_rows++;
      r.b.seq[row] = r.b.pos[row] = 0, r.b.token[row] = -1;
      for (int k = 0; k < KV_KINDS; k++) r.b.lo[k][row] = r.b.hi[k][row] = 0, r.b.slot[k][row] = 0;
    }
    r.b.n_rows = w.n_seqs;
    r.b.n_out = r.b.n_rows;
    road.ops->prepare(r.attn, &r.b);
    for (int l = 0; l < w.n_layers; l++) {
      r.taped = records[l];
      do_layer(&r, l, got);
    }
    r.taped = NULL;
    drop_pages(&r);
  }
  end(&r);
  expect_close(&w, got, want, only ? only : "recorded");
  for (int l = 0; l < LAYERS_MOST; l++) {
    assert_true(dev->ops->record_launches(records[l]) > 0);
    dev->ops->record_delete(dev, records[l]);
  }
  free(want);
  free(got);
  routes(NULL);
}

/* A way that cannot be recorded says so when the model is opened, and again when somebody tries; afterwards steps go on. */
static void expect_no_recording(struct device *dev) {
  struct world w = new_world(1, 2, 64, 9, dtype_of(dev), 5);
  w.input = w.kv_dtype, w.len[0] = 4;
  struct road road = {.ops = &attn_ascend_ops, .device = dev, .page = 16, .chunk = 1};
  struct err e = {0};
  struct device_record *record = dev->ops->record_new(dev, 64, 1 << 16, &e);
  if (!record) fail_msg("%s", e.msg);
  routes("composed");
  float *want = oracle(&w), *got = xcalloc(n_results(&w) + 1, sizeof *got);
  struct run r;
  begin(&r, &w, &road);
  const char *why = attn_ascend_ops.no_records(r.attn);
  assert_non_null(why);
  assert_non_null(strstr(why, "composed"));
  while (fill_step(&r)) {
    r.b.n_out = r.b.n_rows;
    road.ops->prepare(r.attn, &r.b);
    for (int l = 0; l < w.n_layers; l++) do_layer(&r, l, got);
    dev->ops->record_begin(dev, record);
    road.ops->prepare(r.attn, &r.b);
    road.ops->run(r.attn, 3, &r.on_device[0], NULL, NULL, &r.on_device[3]);
    dev->ops->record_end(dev, record);
    assert_int_equal(dev->ops->finish(dev, &e), -1);
    assert_non_null(strstr(e.msg, "cannot be recorded"));
    assert_int_equal(dev->ops->record_launches(record), 0);
  }
  end(&r);
  expect_close(&w, got, want, "composed");
  dev->ops->record_delete(dev, record);
  free(want);
  free(got);
  routes(NULL);
}

static void recorded_body(void) {
  struct device *dev = open_device();
  if (!dev->ops->no_records(dev)) {
    const bool wide = ((const struct ascend *)dev)->profile.fused_wide_tnd;
    replay_world(dev, NULL, 64, 9, 16);
    replay_world(dev, "decode,masked", 128, 16, 16);
    replay_world(dev, "decode,window", 64, 17, 16);
    if (wide) replay_world(dev, "decode,tnd", 128, 20, 16);
    assert_true(npu_emu()->called("aclmdlRIExecuteAsync") > 0);
    expect_no_recording(dev);
  }
  dev->ops->close(dev);
  npu_check_clean();
}
static void recorded(void **state) {
  (void)state;
  npu_each_profile(recorded_body);
}

/* What prepare sends for a decoding step is the same whatever the longest possible sequence. */
static uint64_t bytes_of_prepare(struct device *dev, int tokens_max, int n_rows, uint64_t *calls) {
  const struct attn_layer layers[] = {{KV_FULL, 2, 1, 64, 1, 0}, {KV_SLIDING, 2, 1, 64, 1, 1}};
  struct attn_config c = {.layers = layers, .n_layers = 2, .kv_dtype = dtype_of(dev), .page_tokens = 16, .rows_max = 64, .seqs_max = 16};
  struct err e = {0};
  struct batch b;
  struct acl_emu_counts before, after;
  c.n_pages[KV_FULL] = c.n_pages[KV_SLIDING] = 16 * 20, c.tokens_max = tokens_max, c.window = 40, c.device = dev;
  struct attn *a = attn_ascend_ops.open(&c, &e);
  if (!a) fail_msg("%s", e.msg);
  new_batch(&b, 64, 16, div_up(tokens_max, 16));
  b.n_rows = b.n_seqs = b.n_out = n_rows;
  for (int r = 0; r < n_rows; r++) {
    b.q_start[r + 1] = r + 1, b.seq[r] = r;
    for (int k = 0; k < KV_KINDS; k++) {
      b.lo[k][r] = k == KV_SLIDING ? 260 : 0, b.hi[k][r] = 300, b.slot[k][r] = 16 + r;
      for (int i = 0; i < 20; i++) b.page[k][r * b.pages_max[k] + i] = r * 20 + i + 1;
    }
  }
  npu_emu()->counts(&before);
  attn_ascend_ops.prepare(a, &b);
  npu_emu()->counts(&after);
  *calls = after.calls - before.calls;
  attn_ascend_ops.close(a);
  free_batch(&b);
  return after.h2d_bytes - before.h2d_bytes;
}

static void host_cost_body(void) {
  struct device *dev = open_device();
  for (int n_rows = 1; n_rows <= 16; n_rows += 15) {
    uint64_t calls[2], bytes[2];
    bytes[0] = bytes_of_prepare(dev, 4096, n_rows, &calls[0]);
    bytes[1] = bytes_of_prepare(dev, 131072, n_rows, &calls[1]);
    printf("%s: %d rows of 300 keys: %llu bytes in %llu calls\n", npu_current(), n_rows, (unsigned long long)bytes[0],
           (unsigned long long)calls[0]);
    assert_int_equal(bytes[0], bytes[1]);
    assert_int_equal(calls[0], calls[1]);
    assert_true(bytes[0] > 0 && bytes[0] < (uint64_t)n_rows * 400);
  }
  dev->ops->close(dev);
  npu_check_clean();
}
static void host_cost_does_not_know_the_context(void **state) {
  (void)state;
  npu_profile("A2-8.5", host_cost_body);
}

/* ---- banks ------------------------------------------------------------------------------------------------------------------------------------ */

struct bank_test {
  int n_q, n_kv, head_dim, keys, page; /* two banks of `keys`, the second from a page on */
};

static void bank_numbers(int what, int row, float *x, int n, enum dtype type) {
  uint64_t state = (uint64_t)what * 1000003u + (uint64_t)row * 97u + 5;
  unsigned char rounded[4096 * 4];
  for (int i = 0; i < n; i++) x[i] = test_rand_normal(&state);
  dtype_from_f32(type, x, rounded, (size_t)n);
  dtype_to_f32(type, rounded, x, (size_t)n);
}

/* What the first head and the last of a row should be. */
static void expect_bank_row(const struct bank_test *t, const float *q, const float *out, int bank, int lo, int hi, enum dtype type) {
  const int D = t->head_dim, cols = t->n_kv * D;
  float *x = xcalloc((size_t)cols, sizeof *x);
  double *w = xcalloc((size_t)MAX(hi - lo, 1), sizeof *w), *sum = xcalloc((size_t)D, sizeof *sum);
  for (int i = 0; i < 2; i++) {
    const int head = i ? t->n_q - 1 : 0, kv = head / (t->n_q / t->n_kv) * D;
    double top = -INFINITY, total = 0;
    for (int j = lo; j < hi; j++) {
      bank_numbers(2 + bank * 10, j, x, cols, type);
      double dot = 0;
      for (int c = 0; c < D; c++) dot += (double)q[head * D + c] * (double)x[kv + c];
      w[j - lo] = dot / sqrt((double)D);
      top = fmax(top, w[j - lo]);
    }
    for (int c = 0; c < D; c++) sum[c] = 0;
    for (int j = lo; j < hi; j++) {
      bank_numbers(3 + bank * 10, j, x, cols, type);
      double p = exp(w[j - lo] - top);
      total += p;
      for (int c = 0; c < D; c++) sum[c] += p * (double)x[kv + c];
    }
    for (int c = 0; c < D; c++) {
      double want = lo < hi ? sum[c] / total : 0, got = (double)out[head * D + c];
      if (!(fabs(got - want) < (lo < hi ? 0.02 : 1e-30)))
        fail_msg("head %d number %d of keys %d to %d: %g, expected %g", head, c, lo, hi, got, want);
    }
  }
  free(x);
  free(w);
  free(sum);
}

/* 16 rows of text see a bank of thousands as the very first call; then one row each of three sequences: the second bank, the first, none. */
static void check_banks(struct device *dev, const struct bank_test *t, int n_rows) {
  const enum dtype type = dtype_of(dev);
  const int P = t->page, pages = div_up(t->keys, P), q_cols = t->n_q * t->head_dim, kv_cols = t->n_kv * t->head_dim;
  const struct attn_layer layer = {BATCH_CROSS, t->n_q, t->n_kv, t->head_dim, 1 / sqrtf((float)t->head_dim), 0};
  struct attn_config c = {
      .layers = &layer, .n_layers = 1, .kv_dtype = type, .page_tokens = P, .rows_max = 32, .seqs_max = 4, .tokens_max = 64};
  c.n_pages[BATCH_CROSS] = 2 * pages, c.device = dev;
  struct err e = {0};
  struct attn *a = attn_ascend_ops.open(&c, &e);
  if (!a) fail_msg("%s", e.msg);
  struct tensor k = {0}, v = {0}, q = {0}, out = {0}, host = {0};
  if (dev->ops->alloc(dev, &k, 700, kv_cols, "t", &e) || dev->ops->alloc(dev, &v, 700, kv_cols, "t", &e) ||
      dev->ops->alloc(dev, &q, 32, q_cols, "t", &e) || dev->ops->alloc(dev, &out, 32, q_cols, "t", &e) ||
      dev->ops->host_alloc(dev, &host, 32, q_cols, "t", &e))
    fail_msg("%s", e.msg);
  int64_t *slot = xcalloc(700, sizeof *slot);
  int32_t *table = xcalloc((size_t)(4 * 2 * pages), sizeof *table);
  for (int i = 0; i < 4 * 2 * pages; i++) table[i] = 2 * pages - i % (2 * pages); /* all sequences have the same two banks */
  for (int bank = 0; bank < 2; bank++) {
    for (int at = 0, n; at < t->keys; at += n) {
      n = MIN(700, t->keys - at);
      struct tensor some_k = tensor_rows(k, n), some_v = tensor_rows(v, n);
      for (int what = 0; what < 2; what++) {
        struct tensor staged = dev->ops->stage(dev, what ? &some_v : &some_k);
        for (int i = 0; i < n; i++) bank_numbers(2 + what + bank * 10, at + i, tensor_row(&staged, i), kv_cols, type);
        dev->ops->send(dev, what ? &some_v : &some_k, &staged);
      }
      for (int i = 0; i < n; i++) {
        int place = bank * pages * P + at + i;
        slot[i] = (int64_t)table[place / P] * P + place % P;
      }
      attn_ascend_ops.fill(a, 0, &some_k, &some_v, slot);
      if (dev->ops->finish(dev, &e)) fail_msg("%s", e.msg);
    }
  }
  int32_t lo[32], hi[32], seq[32], q_start[5] = {0};
  struct batch b = {.n_seqs = 1, .rows_max = 32, .seqs_max = 4, .seq = seq, .q_start = q_start};
  b.lo[BATCH_CROSS] = lo, b.hi[BATCH_CROSS] = hi, b.page[BATCH_CROSS] = table, b.pages_max[BATCH_CROSS] = 2 * pages;
  struct tensor staged = dev->ops->stage(dev, &q);
  for (int r = 0; r < 32; r++) bank_numbers(1, r, tensor_row(&staged, r), q_cols, type);
  dev->ops->send(dev, &q, &staged);
  for (int step = 0; step < 2; step++) {
    const int first = pages * P;
    b.n_rows = step ? 5 : n_rows, b.n_seqs = step ? 4 : 1, b.n_cross = step ? 3 : n_rows - 2;
    q_start[1] = step ? 1 : n_rows, q_start[2] = 2, q_start[3] = 3, q_start[4] = 4;
    for (int r = 0; r < b.n_rows; r++) {
      seq[r] = step && r < 4 ? r : 0;
      lo[r] = 0, hi[r] = t->keys;
      if (!step && r < 2) hi[r] = 0;                                           /* before the picture */
      if (!step && r > n_rows - 4) lo[r] = first, hi[r] = first + t->keys / 2; /* the second bank, of which a part was seen */
      if (step && r == 0) lo[r] = first, hi[r] = first + t->keys;
      if (step && r == 2) hi[r] = 0;
      if (step && r == 3) lo[r] = P + 5; /* not at a page's edge */
      if (step && r == 4) hi[r] = 0;     /* padding */
    }
    attn_ascend_ops.prepare(a, &b);
    attn_ascend_ops.run(a, 0, &q, NULL, NULL, &out);
    struct tensor some = tensor_rows(host, b.n_rows), from = tensor_rows(out, b.n_rows);
    dev->ops->fetch(dev, &some, &from);
    if (dev->ops->finish(dev, &e)) fail_msg("%s", e.msg);
    for (int r = 0; r < b.n_rows; r += step || r < 3 || r > n_rows - 6 ? 1 : 5) {
      int bank = lo[r] >= first;
      float *x = xcalloc((size_t)q_cols, sizeof *x);
      bank_numbers(1, r, x, q_cols, type);
      expect_bank_row(t, x, tensor_row(&host, r), bank, lo[r] - bank * first * (lo[r] < hi[r]), hi[r] - bank * first * (lo[r] < hi[r]),
                      type);
      free(x);
    }
  }
  attn_ascend_ops.close(a);
  struct tensor *all[] = {&k, &v, &q, &out};
  for (size_t i = 0; i < ARRAY_LEN(all); i++) dev->ops->free(dev, all[i]);
  dev->ops->host_free(dev, &host);
  free(slot);
  free(table);
}

static void banks_body(void) {
  struct device *dev = open_device();
  check_banks(dev, &(struct bank_test){4, 2, 64, 300, 16}, 9);
  if (!strcmp(npu_current(), "A2-8.5") || !strcmp(npu_current(), "310P-8.5"))
    check_banks(dev, &(struct bank_test){4, 1, 128, 6404, 128}, 16);
  dev->ops->close(dev);
  npu_check_clean();
}
static void banks(void **state) {
  (void)state;
  npu_each_profile(banks_body);
}

/* ---- routes that are wrong ----------------------------------------------------------------------------------------------------- */

static void find_word(void *ctx, const char *text) {
  char *all = ctx;
  snprintf(all + strlen(all), 4000 - strlen(all), "%s\n", text);
}

/* With a defect the self-test leaves the route out, and results stay right. */
static void expect_left_out(struct device *dev, const char *only, const char *word, bool there) {
  uint64_t rand = 41;
  struct world w = new_world(1, 2, 128, 40, dtype_of(dev), 3);
  w.input = w.kv_dtype, w.n_seqs = 2, w.len[0] = 150, w.len[1] = 45;
  struct road road = {.ops = &attn_ascend_ops, .device = dev, .page = 128, .together = true, .chunk = 30, .seed = test_rand(&rand)};
  char text[4000] = "";
  routes(only);
  struct run r;
  float *want = oracle(&w), *got = xcalloc(n_results(&w) + 1, sizeof *got);
  begin(&r, &w, &road);
  attn_ascend_print(r.attn, find_word, text);
  if ((strstr(text, word) != NULL) != there) fail_msg("%s: \"%s\" was %sexpected in\n%s", npu_current(), word, there ? "" : "not ", text);
  while (fill_step(&r)) {
    road.ops->prepare(r.attn, &r.b);
    for (int l = 0; l < w.n_layers; l++) do_layer(&r, l, got);
    drop_pages(&r);
  }
  end(&r);
  expect_close(&w, got, want, only);
  free(want);
  free(got);
  routes(NULL);
}

static void defect_mask_body(void) {
  struct device *dev = open_device();
  npu_emu()->defects(1);
  expect_left_out(dev, "decode,masked,window,bsnd", " masked", false);
  dev->ops->close(dev);
  npu_check_clean();
}
static void defect_band_body(void) {
  struct device *dev = open_device();
  npu_emu()->defects(16);
  expect_left_out(dev, "decode,bsnd,masked", "sliding layers, heads of 128 (2 over 1), many rows: bsnd", false);
  dev->ops->close(dev);
  npu_check_clean();
}
static void defect_empty_body(void) {
  struct device *dev = open_device();
  npu_emu()->defects(32);
  expect_left_out(dev, "decode,masked,bsnd", " decode", false);
  dev->ops->close(dev);
  npu_check_clean();
}
/* A failure that is told only later is the route's own, too: those that are tried after it are used. */
static void failure_in_a_test_body(void) {
  struct device *dev = open_device();
  npu_emu()->fault("aclrtMemsetAsync", 1, 107000);
  expect_left_out(dev, "decode,masked,bsnd", " masked", true);
  dev->ops->close(dev);
  npu_check_clean();
}
static void defect_none_body(void) {
  struct device *dev = open_device();
  expect_left_out(dev, "decode,masked,bsnd", " masked", true);
  dev->ops->close(dev);
  npu_check_clean();
}
static void routes_that_are_wrong_are_left_out(void **state) {
  (void)state;
  npu_profile("A2-8.5", defect_mask_body);
  npu_profile("A2-8.5", defect_band_body);
  npu_profile("A2-8.1", defect_empty_body);
  npu_profile("A2-8.5", failure_in_a_test_body);
  npu_profile("A2-8.5", defect_none_body);
}

/* ---- refusals and faults ------------------------------------------------------------------------------------------------------- */

static void refusals_body(void) {
  struct device *dev = open_device();
  const struct attn_layer layer = {KV_FULL, 2, 1, 64, 1, 0};
  struct attn_config c = {
      .layers = &layer, .n_layers = 1, .kv_dtype = DTYPE_F32, .page_tokens = 16, .rows_max = 8, .seqs_max = 2, .tokens_max = 64};
  struct err e = {0};
  c.n_pages[KV_FULL] = 4;
  assert_null(attn_ascend_ops.open(&c, &e));
  assert_int_equal(e.code, ERR_UNSUPPORTED);
  c.device = dev;
  assert_null(attn_ascend_ops.open(&c, &e));
  assert_non_null(strstr(e.msg, "F32"));
  c.kv_dtype = dtype_of(dev);
  routes("-composed,masked");
  assert_null(attn_ascend_ops.open(&c, &e));
  assert_non_null(strstr(e.msg, "no way"));
  assert_non_null(strstr(e.msg, "composed"));
  routes("nonsense");
  assert_null(attn_ascend_ops.open(&c, &e));
  routes(NULL);
  struct attn *a = attn_ascend_ops.open(&c, &e);
  assert_non_null(a);
  attn_ascend_ops.close(a);
  assert_true(attn_ascend_ops.bytes(&c) > 4 * 16 * 64 * 2 * 2);
  dev->ops->close(dev);
  npu_check_clean();
}
static void refusals(void **state) {
  (void)state;
  npu_each_kind(refusals_body);
}

/* Whatever allocation fails, open says so and leaves nothing. */
static void shortages_body(void) {
  const struct attn_layer layers[] = {{KV_FULL, 2, 1, 64, 1, 0}, {KV_SLIDING, 2, 1, 64, 1, 1}};
  struct attn_config c = {.layers = layers, .n_layers = 2, .page_tokens = 16, .rows_max = 8, .seqs_max = 2, .tokens_max = 64, .window = 20};
  c.n_pages[KV_FULL] = c.n_pages[KV_SLIDING] = 4;
  static const char *const where[] = {"aclrtMalloc", "aclrtMallocHost", "aclrtMemsetAsync", "aclrtMemcpy"};
  struct device *dev = open_device();
  c.device = dev, c.kv_dtype = dtype_of(dev);
  struct err e = {0};
  struct attn *a = attn_ascend_ops.open(&c, &e); /* self-tests are done */
  if (!a) fail_msg("%s", e.msg);
  attn_ascend_ops.close(a);
  for (size_t i = 0; i < ARRAY_LEN(where); i++) {
    for (int n = 1, opened = 0; !opened; n++) {
      e = (struct err){0};
      npu_emu()->fault(where[i], n, 207001);
      a = attn_ascend_ops.open(&c, &e);
      npu_emu()->fault(NULL, 0, 0);
      opened = a != NULL;
      if (a) attn_ascend_ops.close(a);
      else assert_true(e.code != ERR_NONE && e.msg[0]);
      dev->ops->finish(dev, NULL);
      if (opened) assert_true(n > 1);
    }
  }
  dev->ops->close(dev);
  npu_check_clean();
}
static void shortages(void **state) {
  (void)state;
  npu_profile("A2-8.5", shortages_body);
  npu_profile("310P-8.5", shortages_body);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_table_of_routes),
    cmocka_unit_test(every_route_alone),
    cmocka_unit_test(all_routes_together),
    cmocka_unit_test(pictures),
    cmocka_unit_test(copied_pages),
    cmocka_unit_test(second_prepare),
    cmocka_unit_test(recorded),
    cmocka_unit_test(host_cost_does_not_know_the_context),
    cmocka_unit_test(banks),
    cmocka_unit_test(routes_that_are_wrong_are_left_out),
    cmocka_unit_test(refusals),
    cmocka_unit_test(shortages),
};
TEST_MAIN(tests)
