/* t_attn.c — every attention backend of the host against the float64 oracle, and against itself by other roads, bit for bit (attn_world.h). */
#include "attn_world.h"

#ifdef CYGNET_DEBUG
enum { PICTURE_WORLDS = 5 }; /* sanitizers and emulation take long for all */
#else
enum { PICTURE_WORLDS = 80 };
#endif
/* --- helpers of the tests ------------------------------------------------------------------------------------------------ */

static struct workers *pools[4]; /* by number of threads; [1] stays NULL = none */

static const struct kern *levels[8]; /* every variant that runs here */
static int n_levels;

static int start(void **state) {
  (void)state;
  struct err e = {0};
  for (int i = 2; i < 4; i++) {
    pools[i] = workers_new(i, &e);
    if (!pools[i]) fail_msg("%s", e.msg);
  }
  for (const struct kern *k; n_levels < (int)ARRAY_LEN(levels) && (k = kern_variant(n_levels)); n_levels++) levels[n_levels] = k;
  printf("levels:");
  for (int i = 0; i < n_levels; i++) printf(" %s", levels[i]->name);
  printf("\n");
  return 0;
}
static int stop(void **state) {
  (void)state;
  for (int i = 2; i < 4; i++) workers_delete(pools[i]);
  return 0;
}

static double worst_max, worst_l2;
static void expect_near(const struct world *w, const float *got, const float *want, const char *what) {
  double rel_max, rel_l2;
  size_t n = n_results(w);
  test_compare(got, want, n, &rel_max, &rel_l2);
  size_t n_set = 0; /* rows that see nothing make the rms small */
  for (size_t i = 0; i < n; i++) n_set += want[i] != 0;
  rel_max *= sqrt((double)n_set / (double)n);
  worst_max = MAX(worst_max, rel_max), worst_l2 = MAX(worst_l2, rel_l2);
  const double limit = attn_limit(what, w->kv_dtype);
  if (!(rel_max < 10 * limit && rel_l2 < limit)) {
    fail_msg("%s: head_dim %d, group %d, window %d, %s: rel_max %g, rel_l2 %g", what, w->layers[0].head_dim,
             w->layers[0].n_q / w->layers[0].n_kv, w->window, dtype_info(w->kv_dtype)->name, rel_max, rel_l2);
  }
}
static void expect_same(const struct world *w, const float *got, const float *want, const char *what) {
  if (!memcmp(got, want, n_results(w) * sizeof(float))) return;
  for (int layer = 0; layer < w->n_layers; layer++) {
    for (int s = 0; s < w->n_seqs; s++) {
      for (int pos = 0; pos < w->len[s]; pos++) {
        size_t at = result_at(w, layer, s, pos), n = (size_t)(w->layers[layer].n_q * w->layers[layer].head_dim);
        for (size_t i = 0; i < n; i++) {
          if (!memcmp(got + at + i, want + at + i, 4)) continue;
          fail_msg("%s: layer %d sequence %d position %d number %zu: %a, expected %a", what, layer, s, pos, i, (double)got[at + i],
                   (double)want[at + i]);
        }
      }
    }
  }
}

static const enum dtype kv_dtypes[] = {DTYPE_BF16, DTYPE_F32, DTYPE_F16, DTYPE_Q8_0};
static const int page_sizes[] = {1, 2, 4, 16, 128};

/* --- tests ----------------------------------------------------------------------------------------------------------------- */

/* Softmax over two keys by hand. */
static void two_keys_by_hand(void **state) {
  (void)state;
  struct world w = {.n_layers = 1, .n_seqs = 1, .len = {2}, .kv_dtype = DTYPE_F32, .seed = 4};
  w.layers[0] = (struct attn_layer){KV_FULL, 1, 1, 16, 0.5f, 0};
  float q[16], k[2][16], v[2][16];
  fill(&w, 0, 0, 1, 1, q, 16);
  double s[2] = {0, 0};
  for (int j = 0; j < 2; j++) {
    fill(&w, 0, 0, j, 2, k[j], 16), fill(&w, 0, 0, j, 3, v[j], 16);
    for (int i = 0; i < 16; i++) s[j] += 0.5 * (double)q[i] * (double)k[j][i];
  }
  double p = 1 / (1 + exp(s[0] - s[1]));
  for (int level = -1; level < n_levels; level++) {
    struct road road = {.ops = level < 0 ? &attn_ref_ops : &attn_cpu_ops, .kern = level < 0 ? NULL : levels[level], .page = 1, .chunk = 2};
    float *out = walk(&w, &road);
    for (int i = 0; i < 16; i++) {
      assert_float_equal(out[i], v[0][i], 1e-6);
      assert_true(fabs((double)out[16 + i] - (1 - p) * (double)v[0][i] - p * (double)v[1][i]) < 1e-6);
    }
    free(out);
  }
}

/* Every head width with every group, everything else at random. */
static void all_geometries_match_the_oracle(void **state) {
  (void)state;
  static const int head_dims[] = {12, 16, 64, 72, 128, 256, 512}, groups[] = {1, 2, 4, 8};
  uint64_t rand = 11;
  int n = 0;
  for (size_t d = 0; d < ARRAY_LEN(head_dims); d++) {
    for (size_t g = 0; g < ARRAY_LEN(groups); g++) {
      for (size_t t = 0; t < ARRAY_LEN(kv_dtypes); t++) {
        if (kv_dtypes[t] == DTYPE_Q8_0 && head_dims[d] % 32 != 0) continue;
        int page = page_sizes[test_rand_int(&rand, 0, 4)];
        int window = test_rand_int(&rand, 1, MIN(2 * page + 1, 70));
        if (test_rand_int(&rand, 0, 4) == 0) window = 40;
        int n_kv = head_dims[d] * groups[g] > 512 ? 1 : test_rand_int(&rand, 1, 3);
        struct world w = new_world(n_kv, groups[g], head_dims[d], window, kv_dtypes[t], test_rand(&rand));
        w.n_seqs = test_rand_int(&rand, 1, 3);
        for (int s = 0; s < w.n_seqs; s++) w.len[s] = test_rand_int(&rand, 1, head_dims[d] > 128 ? 26 : 50);
        struct road road = {.ops = &attn_ref_ops, .page = 16, .chunk = 1000, .together = true};
        float *want = walk(&w, &road);
        road.ops = &attn_cpu_ops;
        for (int level = 0; level < n_levels; level++, n++) {
          road.kern = levels[level], road.page = page, road.workers = pools[1 + n % 3];
          road.chunk = test_rand_int(&rand, 0, 3) ? 0 : 1000, road.together = test_rand(&rand) & 1;
          road.n_padding = test_rand_int(&rand, 0, 3), road.seed = test_rand(&rand);
          float *got = walk(&w, &road);
          expect_near(&w, got, want, road.kern->name);
          free(got);
        }
        free(want);
      }
    }
  }
  printf("%d worlds, worst difference %.2g of the rms, %.2g in L2\n", n, worst_max, worst_l2);
}

/* All windows around the page size, chunk by chunk. */
static void all_windows_match_the_oracle(void **state) {
  (void)state;
  uint64_t rand = 12;
  for (size_t p = 0; p < 4; p++) {
    for (int window = 0; window <= 2 * page_sizes[p] + 1; window++) {
      struct world w = new_world(1, 2, 16, window, kv_dtypes[window % 3], test_rand(&rand));
      w.len[0] = MAX(3 * window, 20);
      struct road road = {.ops = &attn_ref_ops, .page = page_sizes[p], .chunk = test_rand_int(&rand, 1, 9)};
      float *want = walk(&w, &road);
      road.ops = &attn_cpu_ops;
      for (int level = 0; level < n_levels; level++) {
        road.kern = levels[level], road.chunk = test_rand_int(&rand, 1, 9), road.seed = test_rand(&rand);
        float *got = walk(&w, &road);
        expect_near(&w, got, want, road.kern->name);
        free(got);
      }
      free(want);
    }
  }
}

/* One world by many roads. */
static void expect_one_answer(const struct world *w, const struct kern *kern, int n_roads, uint64_t *rand) {
  struct road road = {.ops = &attn_cpu_ops, .kern = kern, .page = 16, .chunk = 1 << 20};
  float *want = walk(w, &road);
  static const int chunks[] = {1, 2, 3, 5, 7, 17, 32, 33, 64, 0, 1 << 20};
  for (int i = 0; i < n_roads; i++) {
    road.page = page_sizes[test_rand_int(rand, 0, 4)];
    road.chunk = chunks[i % (int)ARRAY_LEN(chunks)];
    road.together = i & 1;
    road.workers = pools[1 + i % 3];
    road.n_padding = test_rand_int(rand, 0, 2);
    road.seed = test_rand(rand);
    float *got = walk(w, &road);
    char what[128];
    snprintf(what, sizeof what, "%s, page %d, chunk %d, together %d, threads %d", kern->name, road.page, road.chunk, road.together,
             workers_count(road.workers));
    expect_same(w, got, want, what);
    free(got);
  }
  free(want);
}

static void every_road_gives_the_same_bits(void **state) {
  (void)state;
  uint64_t rand = 13;
  for (int level = 0; level < n_levels; level++) {
    for (int i = 0; i < 5; i++) {
      static const int head_dims[] = {64, 12, 32, 256, 128, 72};
      enum dtype t = kv_dtypes[i % 4];
      int head_dim = head_dims[i % 6];
      if (t == DTYPE_Q8_0 && head_dim % 32 != 0) head_dim = 32;
      struct world w = new_world(test_rand_int(&rand, 1, 2), test_rand_int(&rand, 1, 6), head_dim, test_rand_int(&rand, 1, 80), t,
                                 test_rand(&rand));
      w.n_seqs = 3;
      for (int s = 0; s < 3; s++) w.len[s] = test_rand_int(&rand, 1, 70);
      expect_one_answer(&w, levels[level], 11, &rand);
    }
  }
}

/* Wide heads in windows that begin anywhere in a segment: a few rows at a time meet the blocks of keys and of dims that many rows meet. */
static void windows_of_wide_heads(void **state) {
  (void)state;
  uint64_t rand = 16;
  static const int head_dims[] = {256, 96, 128, 160, 64};
  for (int i = 0; i < (TEST_LESS > 1 ? 5 : 10); i++) {
    struct world w = new_world(1, 1 + i % 4, head_dims[i % 5], test_rand_int(&rand, 20, 120), DTYPE_BF16, test_rand(&rand));
    w.n_seqs = 2;
    for (int s = 0; s < w.n_seqs; s++) {
      w.len[s] = test_rand_int(&rand, 40, 290);
      w.quiet[s] = w.len[s] - 20;
    }
    for (int level = 0; level < n_levels; level++) expect_one_answer(&w, levels[level], 4, &rand);
  }
}

/* Contexts of several segments, so that blocks are split over threads; the window of 700 crosses one. */
static void long_contexts(void **state) {
  (void)state;
  uint64_t rand = 14;
  for (int i = 0; i < 4; i++) {
    struct world w = new_world(1 + i % 2, 1 + i, i == 3 ? 12 : 32, 700, kv_dtypes[i], test_rand(&rand));
    w.kv_dtype = i == 3 ? DTYPE_F32 : w.kv_dtype;
    w.n_seqs = 2;
    w.len[0] = 2 * ATTN_SEGMENT + test_rand_int(&rand, 1, 600), w.len[1] = test_rand_int(&rand, 1, 40);
    if (i == 2) w.len[0] = ATTN_SEGMENT + w.window + 9; /* the windows of some of a block's rows begin in the second segment */
    w.quiet[0] = w.len[0] - 19;
    struct road road = {.ops = &attn_ref_ops, .page = 16, .chunk = 1 << 20};
    float *want = walk(&w, &road);
    for (int level = 0; level < n_levels; level++) {
      road = (struct road){.ops = &attn_cpu_ops, .kern = levels[level], .page = 16, .chunk = 1 << 20};
      float *whole = walk(&w, &road);
      expect_near(&w, whole, want, levels[level]->name);
      for (int threads = 1; threads < 4; threads++) {
        road.workers = pools[threads], road.chunk = threads == 2 ? 300 : 0, road.page = 128, road.together = threads & 1;
        float *got = walk(&w, &road);
        expect_same(&w, got, whole, levels[level]->name);
        free(got);
      }
      free(whole);
    }
    free(want);
  }
}

/* Many users with one row each: threads take several of them at a time, and look ahead to the next one's keys. Whoever computes beside a row, and in
 * whatever order, its bits are those that it has alone. */
static void many_users_have_the_bits_of_one(void **state) {
  (void)state;
  uint64_t rand = 15;
  for (int i = 0; i < 4; i++) {
    struct world w = new_world(1 + i % 2, 1 + i, 32, i == 1 ? 700 : 90, i == 3 ? DTYPE_F32 : DTYPE_BF16, test_rand(&rand));
    w.n_seqs = SEQS_MOST;
    for (int s = 0; s < w.n_seqs; s++) {
      bool ends_early = i == 2 && s % 5 == 1;
      w.len[s] = ends_early ? 40 : i < 2 ? ATTN_SEGMENT + 30 : 70;
      w.quiet[s] = w.len[s] - 3;
    }
    for (int level = 0; level < n_levels; level++) {
      struct road road = {.ops = &attn_cpu_ops, .kern = levels[level], .page = 16, .chunk = 1 << 20};
      float *alone = walk(&w, &road);
      for (int threads = 1; threads < 4; threads++) {
        road.workers = pools[threads], road.chunk = 1, road.together = true, road.page = page_sizes[threads];
        float *got = walk(&w, &road);
        expect_same(&w, got, alone, levels[level]->name);
        free(got);
      }
      free(alone);
    }
  }
}

/* Pictures of random lengths at random places, longer and shorter than the window, neighbours too; some rows see nothing. Whatever the
 * chunks (none cuts a picture), pages, threads and company: near the oracle, and always the same bits. */
static void rows_of_a_picture_see_each_other(void **state) {
  (void)state;
  uint64_t rand = 18;
  static const int chunks[] = {1, 5, 0, 1 << 20}, threads[] = {1, 2, 3};
  for (int i = 0; i < PICTURE_WORLDS; i++) {
    enum dtype t = kv_dtypes[i % 4];
    int head_dim = t == DTYPE_Q8_0 ? 64 : i % 3 ? 32 : 72;
    struct world w = new_world(test_rand_int(&rand, 1, 2), test_rand_int(&rand, 1, 4), head_dim, test_rand_int(&rand, 1, 50), t,
                               test_rand(&rand));
    static int ends[SEQS_MOST][1400];
    w.n_seqs = test_rand_int(&rand, 1, 3);
    w.both_ways[KV_SLIDING] = true, w.both_ways[KV_FULL] = i & 1;
    for (int s = 0; s < w.n_seqs; s++) {
      bool is_long = i % 8 == 3 && s == 0; /* over a segment, split among threads */
      w.len[s] = is_long ? ATTN_SEGMENT + test_rand_int(&rand, 20, 300) : test_rand_int(&rand, 1, 90);
      w.quiet[s] = is_long ? w.len[s] - 90 : test_rand_int(&rand, 0, 1) * test_rand_int(&rand, 0, w.len[s] / 3);
      memset(ends[s], 0, sizeof ends[s]);
      for (int at = 0; at < w.len[s];) {
        int n = test_rand_int(&rand, 1, 40), end = MIN(at + n, w.len[s]);
        bool picture = test_rand_int(&rand, 0, 1);
        for (; at < end; at++) ends[s][at] = picture ? end : 0;
      }
      w.picture_end[s] = ends[s];
    }
    struct road road = {.ops = &attn_ref_ops, .page = 16, .chunk = 1 << 20, .together = true};
    float *want = walk(&w, &road);
    for (int level = 0; level < n_levels; level++) {
      float *first = NULL;
      for (int j = 0; j < 4; j++) {
        road = (struct road){
            .ops = &attn_cpu_ops, .kern = levels[level], .page = page_sizes[test_rand_int(&rand, 0, 4)], .chunk = chunks[j]};
        road.workers = pools[threads[(i + j) % 3]], road.together = (i + j) & 1, road.n_padding = j % 3, road.seed = test_rand(&rand);
        float *got = walk(&w, &road);
        if (first) expect_same(&w, got, first, levels[level]->name);
        else expect_near(&w, got, want, levels[level]->name);
        if (first) free(got);
        else first = got;
      }
      free(first);
    }
    free(want);
  }
}

/* A row whose own value is a NaN spoils itself and later rows that see it, no earlier one, and no row whose window is past it. */
static void nan_stays_with(const struct kern *kern, enum dtype t, int n_q, int head_dim) {
  const struct attn_layer layer = {KV_SLIDING, n_q, 1, head_dim, 0.25f, 0};
  struct attn_config c = {.layers = &layer, .n_layers = 1, .kv_dtype = t, .page_tokens = 16, .rows_max = 16, .seqs_max = 1};
  c.n_pages[KV_SLIDING] = 1, c.tokens_max = 16, c.kern = kern;
  struct err e = {0};
  struct attn *a = attn_cpu_ops.open(&c, &e);
  assert_non_null(a);
  struct batch b;
  new_batch(&b, 16, 1, 1);
  struct tensor q = new_tensor(16, n_q * head_dim), k = new_tensor(16, head_dim), v = new_tensor(16, head_dim);
  struct tensor out = new_tensor(16, n_q * head_dim);
  b.n_rows = 16, b.n_seqs = 1, b.q_start[1] = 16, b.page[KV_SLIDING][0] = 1;
  for (int i = 0; i < 16; i++) {
    b.pos[i] = i, b.lo[KV_SLIDING][i] = (int32_t)kv_window_lo(i, 3), b.hi[KV_SLIDING][i] = i + 1, b.slot[KV_SLIDING][i] = 16 + i;
    for (int d = 0; d < n_q * head_dim; d++) tensor_row(&q, i)[d] = 1;
    for (int d = 0; d < head_dim; d++) {
      tensor_row(&k, i)[d] = (float)i;
      tensor_row(&v, i)[d] = i == 6 ? NAN : 1;
    }
  }
  attn_cpu_ops.prepare(a, &b);
  attn_cpu_ops.run(a, 0, &q, &k, &v, &out);
  for (int i = 0; i < 16; i++) {
    for (int d = 0; d < n_q * head_dim; d++) {
      float x = tensor_row(&out, i)[d];
      if (i >= 6 && i < 9) assert_true(isnan(x));
      else assert_true(fabs((double)x - 1) < 1e-6 * (t == DTYPE_BF16 ? 10 : 1));
    }
  }
  free(q.data);
  free(k.data);
  free(v.data);
  free(out.data);
  free_batch(&b);
  attn_cpu_ops.close(a);
}
static void nan_stays_with_those_who_see_it(void **state) {
  (void)state;
  static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16};
  for (int level = 0; level < n_levels; level++) {
    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
      for (int n_q = 1; n_q <= 4; n_q += 3) { /* few lines, many */
        nan_stays_with(levels[level], types[t], n_q, 16);
        nan_stays_with(levels[level], types[t], n_q, 64);
      }
    }
  }
}

/* Products that vanish leave -0 behind; whether a key that a row does not see was added with the weight 0 must not be told from the sign. */
static void vanishing_products_have_one_sign(void **state) {
  (void)state;
  enum { N = 40 };
  for (int level = 0; level < n_levels; level++) {
    const struct attn_layer layer = {KV_FULL, 1, 1, 16, 1, 0};
    struct attn_config c = {.layers = &layer, .n_layers = 1, .kv_dtype = DTYPE_F32, .page_tokens = 16, .rows_max = N, .seqs_max = 1};
    c.n_pages[KV_FULL] = 3, c.tokens_max = N, c.kern = levels[level];
    struct tensor q = new_tensor(N, 16), k = new_tensor(N, 16), v = new_tensor(N, 16), out[2] = {new_tensor(N, 16), new_tensor(N, 16)};
    for (int i = 0; i < N; i++) {
      tensor_row(&q, i)[0] = 1, tensor_row(&k, i)[0] = i % 4 ? -10 : 0;
      for (int d = 0; d < 16; d++) tensor_row(&v, i)[d] = i % 4 == 1 ? -0x1p-140f : i > 30 ? 1 : 0;
    }
    for (int way = 0; way < 2; way++) { /* all rows in one step, one row in each */
      struct err e = {0};
      struct attn *a = attn_cpu_ops.open(&c, &e);
      assert_non_null(a);
      struct batch b;
      new_batch(&b, N, 1, 3);
      for (int i = 0; i < 3; i++) b.page[KV_FULL][i] = i + 1;
      b.n_seqs = 1;
      for (int row = 0, n = way ? 1 : N; row < N; row += n) {
        struct tensor part[4] = {tensor_part(q, row, n, 0, 16), tensor_part(k, row, n, 0, 16), tensor_part(v, row, n, 0, 16),
                                 tensor_part(out[way], row, n, 0, 16)};
        b.n_rows = b.q_start[1] = n;
        for (int i = 0; i < n; i++) b.pos[i] = row + i, b.hi[KV_FULL][i] = row + i + 1, b.slot[KV_FULL][i] = 16 + row + i;
        attn_cpu_ops.prepare(a, &b);
        attn_cpu_ops.run(a, 0, &part[0], &part[1], &part[2], &part[3]);
      }
      free_batch(&b);
      attn_cpu_ops.close(a);
    }
    for (int i = 0; i < N; i++) assert_memory_equal(tensor_row(&out[0], i), tensor_row(&out[1], i), 16 * sizeof(float));
    struct tensor *const all[] = {&q, &k, &v, &out[0], &out[1]};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) free(all[i]->data);
  }
}

/* Great scores of both signs: no overflow, and the sum stays 1 where all values are 1. */
static void great_scores(void **state) {
  (void)state;
  for (int level = 0; level < n_levels; level++) {
    struct world w = new_world(1, 4, 64, 9, DTYPE_F32, 5);
    for (int i = 0; i < 4; i++) w.layers[i].scale = 100;
    w.len[0] = 60;
    struct road road = {.ops = &attn_ref_ops, .page = 4, .chunk = 7};
    float *want = walk(&w, &road);
    road.ops = &attn_cpu_ops, road.kern = levels[level];
    float *got = walk(&w, &road);
    double rel_max, rel_l2;
    test_compare(got, want, n_results(&w), &rel_max, &rel_l2);
    assert_true(rel_l2 < 1e-3); /* scores of some 1000 carry float32 errors of 1e-4 */
    free(want);
    free(got);
  }
}

static void kernels_convert_exactly(void **state) {
  (void)state;
  uint64_t rand = 15;
  for (int level = 0; level < n_levels; level++) {
    const struct attn_config c = {.kern = levels[level]};
    assert_non_null(c.kern->attn);
  }
  /* Through the interface: a single visible key gives its own value back, exactly as dtype_to_f32 would read it. */
  for (size_t t = 0; t < ARRAY_LEN(kv_dtypes); t++) {
    for (int level = 0; level < n_levels; level++) {
      for (int i = 0; i < 40; i++) {
        int d = 32 * test_rand_int(&rand, 1, 4);
        const struct attn_layer layer = {KV_FULL, 1, 1, d, 0.25f, 0};
        struct attn_config c = {.layers = &layer, .n_layers = 1, .kv_dtype = kv_dtypes[t], .page_tokens = 1, .rows_max = 1, .seqs_max = 1};
        c.n_pages[KV_FULL] = 1, c.tokens_max = 1, c.kern = levels[level];
        struct err e = {0};
        struct attn *a = attn_cpu_ops.open(&c, &e);
        assert_non_null(a);
        struct batch b;
        new_batch(&b, 1, 1, 1);
        struct tensor q = new_tensor(1, d), k = new_tensor(1, d), v = new_tensor(1, d), out = new_tensor(1, d);
        b.n_rows = 1, b.n_seqs = 1, b.q_start[1] = 1, b.page[KV_FULL][0] = 1, b.hi[KV_FULL][0] = 1, b.slot[KV_FULL][0] = 1;
        for (int j = 0; j < d; j++) {
          /* exponents over the whole range of the type, subnormal halves included */
          float x = ldexpf(test_rand_normal(&rand), test_rand_int(&rand, kv_dtypes[t] == DTYPE_F16 ? -26 : -60, 12));
          tensor_row(&v, 0)[j] = x, tensor_row(&k, 0)[j] = -x, tensor_row(&q, 0)[j] = 0;
        }
        float want[128];
        unsigned char raw[512];
        dtype_from_f32(kv_dtypes[t], tensor_row(&v, 0), raw, (size_t)d);
        dtype_to_f32(kv_dtypes[t], raw, want, (size_t)d);
        attn_cpu_ops.prepare(a, &b);
        attn_cpu_ops.run(a, 0, &q, &k, &v, &out);
        for (int j = 0; j < d; j++) assert_true(tensor_row(&out, 0)[j] == want[j]);
        free(q.data);
        free(k.data);
        free(v.data);
        free(out.data);
        free_batch(&b);
        attn_cpu_ops.close(a);
      }
    }
  }
}

/* --- recorded runs ---------------------------------------------------------------------------------------------------------- */

/* One row per step and sequence, each step of one shape: recorded with the first, replayed with all others. Contexts grow from nothing to several
 * segments, windows turn over; results go by the same tensors as in eager runs. */
static void replayed_runs_give_the_same_bits(void **state) {
  (void)state;
  uint64_t rand = 16;
  for (int i = 0; i < 12; i++) {
    const struct attn_ops *ops = i % 4 == 3 ? &attn_ref_ops : &attn_cpu_ops;
    struct world w = new_world(1 + i % 2, 1 + i % 3, 32, 9, kv_dtypes[i % 4], test_rand(&rand));
    struct err e = {0};
    struct workers *pool = i % 3 ? pools[1 + i % 3] : workers_new(1, &e);
    bool is_long = ops == &attn_cpu_ops && i % 2 == 0;
    int first = is_long ? ATTN_SEGMENT - 3 : 0; /* rows before it only write */
    w.len[0] = first + (is_long ? 8 : 40), w.quiet[0] = first;
    struct road road = {.ops = ops, .kern = levels[n_levels - 1], .workers = pool, .page = 16, .chunk = 1};
    float *want = walk(&w, &road), *got = xcalloc(n_results(&w) + 1, sizeof *got);
    struct record *records[LAYERS_MOST];
    for (int l = 0; l < LAYERS_MOST; l++) records[l] = record_new(3, 3 * 512, &e);
    struct run r;
    begin(&r, &w, &road);
    while (fill_step(&r)) {
      mem_guard_begin("replay");
      ops->prepare(r.attn, &r.b);
      for (int l = 0; l < w.n_layers; l++) {
        r.record = records[l];
        do_layer(&r, l, got);
      }
      mem_guard_end();
      r.record = NULL;
      drop_pages(&r);
    }
    end(&r);
    expect_same(&w, got, want, ops->name);
    for (int l = 0; l < LAYERS_MOST; l++) record_delete(records[l]);
    free(want);
    free(got);
    if (i % 3 == 0) workers_delete(pool);
  }
}

/* --- copied pages ------------------------------------------------------------------------------------------------------------- */

/* Contents move to fresh pages in every step, the old pages are filled with NaN: results stay. Layers that share a donor read its copies. */
static void copied_pages_read_the_same(void **state) {
  (void)state;
  uint64_t rand = 17;
  for (int i = 0; i < 32; i++) {
    const struct attn_ops *ops = i % 2 ? &attn_ref_ops : &attn_cpu_ops;
    struct world w = new_world(1 + i % 3, 1 + i % 2, i % 4 == 1 ? 12 : 32, test_rand_int(&rand, 1, 40), kv_dtypes[i / 2 % 4],
                               test_rand(&rand));
    if (w.kv_dtype == DTYPE_Q8_0) w = new_world(2, 1, 32, 7, DTYPE_Q8_0, test_rand(&rand));
    w.n_seqs = 2;
    w.len[0] = test_rand_int(&rand, 10, 60), w.len[1] = test_rand_int(&rand, 10, 60);
    struct road road = {.ops = ops, .kern = levels[i % n_levels], .page = page_sizes[i % 5], .together = true, .seed = test_rand(&rand)};
    float *want = walk(&w, &road), *got = xcalloc(n_results(&w) + 1, sizeof *got);
    struct run r;
    begin(&r, &w, &road);
    int32_t spare[KV_KINDS][2]; /* begin hands out all ids but two */
    for (int k = 0; k < KV_KINDS; k++)
      for (int j = 0; j < 2; j++) spare[k][j] = r.pages[k][w.n_seqs * r.pages_max + j];
    while (fill_step(&r)) {
      ops->prepare(r.attn, &r.b);
      for (int l = 0; l < w.n_layers; l++) do_layer(&r, l, got);
      drop_pages(&r);
      for (int k = 0; k < KV_KINDS; k++) { /* one page of some sequence, of those in use */
        int seq = test_rand_int(&rand, 0, w.n_seqs - 1), used = div_up(r.done[seq], road.page);
        int at = test_rand_int(&rand, k == KV_SLIDING ? MIN(r.dropped[seq], used - 1) : 0, used - 1);
        int32_t *id = &r.pages[k][seq * r.pages_max + at], from = *id;
        if (k == KV_SLIDING && at < r.dropped[seq]) continue;
        ops->copy_page(r.attn, (enum kv_kind)k, from, spare[k][0]);
        *id = spare[k][0];
        spare[k][0] = spare[k][1], spare[k][1] = from;
        poison_page(&r, (enum kv_kind)k, from);
      }
    }
    end(&r);
    expect_same(&w, got, want, ops->name);
    free(want);
    free(got);
  }
}

static void expect_refusal(struct attn_config c, const char *word) {
  const struct attn_ops *backends[] = {&attn_cpu_ops, &attn_ref_ops};
  for (size_t i = 0; i < ARRAY_LEN(backends); i++) {
    struct err e = {0};
    struct attn *a = backends[i]->open(&c, &e);
    assert_null(a);
    if (!strstr(e.msg, word)) fail_msg("'%s' does not mention '%s'", e.msg, word);
  }
}

static void bad_configurations_are_refused(void **state) {
  (void)state;
  struct attn_layer layers[2] = {{KV_FULL, 4, 2, 64, 1, 0}, {KV_FULL, 4, 2, 64, 1, 0}}, *l = layers;
  struct attn_config c = {.layers = layers, .n_layers = 2, .kv_dtype = DTYPE_BF16, .page_tokens = 4, .rows_max = 4, .seqs_max = 1};
  c.tokens_max = 64, c.n_pages[KV_FULL] = 16, c.kern = levels[0];
  struct err e = {0};
  struct attn *a = attn_cpu_ops.open(&c, &e);
  assert_non_null(a);
  attn_cpu_ops.close(a);
  l[0].n_q = 3, expect_refusal(c, "layer 0"), l[0].n_q = 4;
  l[1].owner = 2, expect_refusal(c, "layer 1"), l[1].owner = 0;
  l[1].head_dim = 32, expect_refusal(c, "layer 1"), l[1].head_dim = 64;
  l[1].kind = KV_SLIDING, expect_refusal(c, "layer 1"), l[1].kind = KV_FULL;
  l[0].head_dim = 0, expect_refusal(c, "head width"), l[0].head_dim = 64;
  c.kv_dtype = DTYPE_Q4_0, expect_refusal(c, "Q4_0");
  c.kv_dtype = DTYPE_Q8_0, l[0].head_dim = l[1].head_dim = 72, expect_refusal(c, "multiple of 32"), l[0].head_dim = l[1].head_dim = 64;
  c.page_tokens = 0, expect_refusal(c, "pages of 0"), c.page_tokens = 4;
  c.n_pages[KV_FULL] = -1, expect_refusal(c, "pages"), c.n_pages[KV_FULL] = 16;
  c.n_pages[KV_FULL] = INT32_MAX - 1, c.page_tokens = INT32_MAX, l[0].n_kv = l[0].n_q = l[1].n_kv = l[1].n_q = 1 << 16;
  expect_refusal(c, "fit");
  assert_true(attn_bytes(&c) == SIZE_MAX);
}

static void memory_shortage_is_an_error(void **state) {
  (void)state;
  struct world w = new_world(1, 2, 16, 5, DTYPE_BF16, 3);
  struct attn_config c = {.layers = w.layers, .n_layers = 4, .kv_dtype = DTYPE_BF16, .page_tokens = 4, .rows_max = 4, .seqs_max = 1};
  c.tokens_max = 4000, c.n_pages[KV_FULL] = c.n_pages[KV_SLIDING] = 16, c.kern = levels[0], c.workers = pools[2];
  for (int backend = 0; backend < 2; backend++) {
    const struct attn_ops *ops = backend ? &attn_ref_ops : &attn_cpu_ops;
    int n = 1;
    for (;; n++) {
      struct err e = {0};
      mem_fail_after(n);
      struct attn *a = ops->open(&c, &e);
      bool pending = mem_fail_pending();
      mem_fail_after(0);
      if (a) ops->close(a);
      if (pending) break;
      assert_null(a);
      assert_int_equal(e.code, ERR_NO_MEMORY);
    }
    assert_true(n > 4);
  }
}

static void nothing_is_allocated_after_open(void **state) {
  (void)state;
  struct world w = new_world(1, 2, 16, 5, DTYPE_BF16, 3);
  w.len[0] = 30;
  struct road road = {.ops = &attn_cpu_ops, .kern = levels[n_levels - 1], .page = 4, .chunk = 7, .workers = pools[2]};
  struct run r;
  float *results = xcalloc(n_results(&w), sizeof *results);
  begin(&r, &w, &road);
  while (fill_step(&r)) {
    mem_guard_begin("attention");
    road.ops->prepare(r.attn, &r.b);
    for (int layer = 0; layer < w.n_layers; layer++) do_layer(&r, layer, results);
    mem_guard_end();
  }
  end(&r);
  free(results);
}

static void sizes(void **state) {
  (void)state;
  assert_int_equal(attn_slot_bytes(DTYPE_BF16, 1, 256), 1024);
  assert_int_equal(attn_slot_bytes(DTYPE_F32, 2, 64), 1024);
  assert_int_equal(attn_slot_bytes(DTYPE_Q8_0, 1, 64), 2 * 68);
  assert_int_equal(attn_slot_bytes(DTYPE_F16, 1, 12), 64); /* padded to 16 */
  struct world w = new_world(1, 2, 64, 5, DTYPE_BF16, 3);
  struct attn_config c = {.layers = w.layers, .n_layers = 4, .kv_dtype = DTYPE_BF16, .page_tokens = 4, .rows_max = 4, .seqs_max = 1};
  c.tokens_max = 64, c.n_pages[KV_FULL] = 15, c.n_pages[KV_SLIDING] = 31;
  size_t few = attn_bytes(&c);
  c.n_pages[KV_FULL] += 10;
  assert_int_equal(attn_bytes(&c) - few, 10 * 4 * attn_slot_bytes(DTYPE_BF16, 1, 64)); /* one of the two full layers owns */
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(two_keys_by_hand),
    cmocka_unit_test(all_geometries_match_the_oracle),
    cmocka_unit_test(all_windows_match_the_oracle),
    cmocka_unit_test(every_road_gives_the_same_bits),
    cmocka_unit_test(windows_of_wide_heads),
    cmocka_unit_test(long_contexts),
    cmocka_unit_test(many_users_have_the_bits_of_one),
    cmocka_unit_test(rows_of_a_picture_see_each_other),
    cmocka_unit_test(nan_stays_with_those_who_see_it),
    cmocka_unit_test(vanishing_products_have_one_sign),
    cmocka_unit_test(great_scores),
    cmocka_unit_test(kernels_convert_exactly),
    cmocka_unit_test(replayed_runs_give_the_same_bits),
    cmocka_unit_test(copied_pages_read_the_same),
    cmocka_unit_test(bad_configurations_are_refused),
    cmocka_unit_test(memory_shortage_is_an_error),
    cmocka_unit_test(nothing_is_allocated_after_open),
    cmocka_unit_test(sizes),
};

int main(void) {
  const char *filter = getenv("CYGNET_TEST_FILTER");
  if (filter && *filter) cmocka_set_test_filter(filter);
  return cmocka_run_group_tests(tests, start, stop) ? 1 : 0;
}
