/* t_graph.c — graph mode against eager, to the bit (graph_pair.h). */
#include "engine/graph_pair.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- tests ------------------------------------------------------------------------------------------------------------------ */

static void eager_and_graph_agree(void **state) {
  (void)state;
  static const struct setup setups[] = {
      {"gemma3-text-tiny", "", ISA_AUTO, 2, DTYPE_BF16, false, 4, 100, 60},
      {"gemma3-text-tiny", "", ISA_AUTO, 3, DTYPE_F32, false, 16, 100, 45},
      {"gemma3-text-tiny", "model-mixed.gguf", ISA_AUTO, 2, DTYPE_Q8_0, false, 2, 100, 45},
      {"gemma3-text-ropescale", "model-bf16.gguf", ISA_AUTO, 1, DTYPE_BF16, false, 1, 100, 60},
      {"gemma3-text-ropescale", "model-q8_0.gguf", ISA_AUTO, 3, DTYPE_F16, false, 4, 100, 45},
      {"gemma3-text-scale", "", ISA_AUTO, 1, DTYPE_F32, true, 4, 100, 30},
      {"gemma3-text-scale", "", ISA_REF, 2, DTYPE_BF16, false, 4, 100, 25},
      {"gemma3-text-ropescale", "model-q8_0.gguf", ISA_REF, 1, DTYPE_F32, false, 8, 100, 25},
      {"media-mllama", "", ISA_AUTO, 2, DTYPE_BF16, false, 16, 100, 60},
      {"media-mllama-long", "", ISA_AUTO, 3, DTYPE_F32, false, 4, 100, 60},
      {"media-mllama", "", ISA_REF, 1, DTYPE_F32, true, 16, 100, 25},
  };
  for (size_t i = 0; i < ARRAY_LEN(setups); i++) {
    struct setup s = setups[i];
    if (TEST_TSAN && (s.threads < 2 || s.isa == ISA_REF)) continue; /* it looks for races alone */
    if (TEST_TSAN) s.n_steps /= 2;
    walk(&s);
  }
}

/* A bucket is recorded with short sequences and replayed with one whose attention is split over segments, up to the last position, and back. */
static void long_sequences(void **state) {
  (void)state;
  for (int threads = TEST_TSAN ? 3 : 2; threads <= 3; threads++) {
    const struct setup s = {"gemma3-text-scale",   "", ISA_AUTO, threads, threads == 2 ? DTYPE_BF16 : DTYPE_F32, false, 16,
                            2 * ATTN_SEGMENT + 80, 0};
    static struct pair p;
    pair_open(&p, &s);
    for (int i = 0; i < 3; i++) assert_true(kv_seq_open(p.kv, &p.seqs[i].kv));
    prefill(&p, &p.seqs[1], 5);
    const int lengths[] = {1, ATTN_SEGMENT - 2, 2 * ATTN_SEGMENT - 1, s.tokens_max - 2};
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
      prefill(&p, &p.seqs[0], lengths[i] - p.seqs[0].kv.n_tokens);
      for (int n = 0; n < 4 && p.seqs[0].kv.n_tokens < s.tokens_max; n++) {
        batch_garbage(&p.b);
        batch_add(&p, &p.seqs[0], 1, 1);
        if (n % 2) batch_add(&p, &p.seqs[1], 1, 1);
        assert_true(step(&p));
      }
    }
    assert_int_equal(p.seqs[0].kv.n_tokens, s.tokens_max);
    prefill(&p, &p.seqs[2], 3); /* and short again */
    for (int n = 0; n < 4; n++) {
      batch_garbage(&p.b);
      batch_add(&p, &p.seqs[2], 1, 1);
      if (n % 2) batch_add(&p, &p.seqs[1], 1, 1);
      assert_true(step(&p));
    }
    pair_close(&p);
  }
}

static const struct setup small = {"gemma3-text-scale", "", ISA_AUTO, 1, DTYPE_F32, false, 4, 64, 0};

static void on_tap(void *ctx, const char *name, int layer, int row, const float *x, int cols) {
  (void)name, (void)layer, (void)row, (void)x, (void)cols;
  ++*(int *)ctx;
}

static void taps_and_more_rows_than_the_largest_bucket_are_eager(void **state) {
  (void)state;
  static struct pair p;
  struct err e = {0};
  int n_taps = 0;
  pair_open(&p, &small);
  graph_delete(p.graph);
  p.graph = graph_new(p.graphed, &p.b, 5, &e);
  for (int i = 0; i < 6; i++) {
    assert_true(kv_seq_open(p.kv, &p.seqs[i].kv));
    prefill(&p, &p.seqs[i], 3);
  }
  for (int n = 1; n <= 6; n++) {
    for (int tapped = 0; tapped < 2; tapped++) {
      p.graphed->tap = tapped ? on_tap : NULL;
      p.graphed->tap_ctx = &n_taps;
      batch_garbage(&p.b);
      for (int i = 0; i < n; i++) batch_add(&p, &p.seqs[i], 1, 1);
      assert_int_equal(step(&p), !tapped && n <= 5);
    }
  }
  assert_true(n_taps > 0);
  struct tensor want = model_forward(p.eager, &p.b);
  p.graphed->tap = NULL;
  struct tensor got = graph_forward(NULL, p.graphed, &p.b); /* no graph at all */
  assert_memory_equal(tensor_row(&want, 0), tensor_row(&got, 0), sizeof(float) * (size_t)got.cols);
  pair_close(&p);
}

/* A row that stands for a picture's is no token: such a step is eager. And a model with cross-attention has its records for both roads. */
static void soft_rows_are_eager_and_cross_attention_has_two_records(void **state) {
  (void)state;
  static const struct setup s = {"media-mllama", "", ISA_AUTO, 1, DTYPE_F32, false, 4, 64, 0};
  static struct pair p;
  pair_open(&p, &s);
  assert_true(kv_seq_open(p.kv, &p.seqs[0].kv));
  do new_bank(&p, &p.seqs[0]);
  while (!p.seqs[0].n_bank);
  p.seqs[0].seen_from = 8;
  prefill(&p, &p.seqs[0], 3);
  for (int pos = 3; pos < 14; pos++) {
    batch_garbage(&p.b);
    batch_add(&p, &p.seqs[0], 1, 1);
    assert_int_equal(p.b.n_cross, pos >= 8);
    p.b.n_soft = pos == 5 || pos == 10;
    assert_int_equal(step(&p), pos != 5 && pos != 10);
  }
  struct graph_stats st = graph_stats(p.graph);
  assert_int_equal(st.n_recorded, 2);
  assert_int_equal(st.n_replayed, 7);
  assert_int_equal(graph_bytes(p.config, &device_cpu_ops, 5) - graph_bytes(p.config, &device_cpu_ops, 4),
                   2 * (graph_bytes(p.config, &device_cpu_ops, 5) - graph_bytes(p.config, &device_cpu_ops, 1)) / 8);
  pair_close(&p);
}

/* A model that computes outside launches while it is recorded ends the program; the same in an eager step does not. */
static const struct model_ops *real_ops;
static void no_item(void *ctx, int item, int worker) { (void)ctx, (void)item, (void)worker; }
static void forward_outside(struct model *m, const struct batch *b, struct tensor *logits) {
  real_ops->forward(m, b, logits);
  workers_run(m->dev->workers, no_item, NULL, 2);
}

static void what_cannot_be_recorded_is_found(void **state) {
  (void)state;
  static struct pair p;
  pair_open(&p, &small);
  assert_true(kv_seq_open(p.kv, &p.seqs[0].kv));
  real_ops = p.graphed->ops;
  struct model_ops ops = *real_ops;
  ops.forward = forward_outside;
  p.graphed->ops = &ops;
  prefill(&p, &p.seqs[0], 3); /* eager: allowed */
  batch_garbage(&p.b);
  batch_add(&p, &p.seqs[0], 1, 1);
  fflush(NULL);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    if (!freopen("/dev/null", "w", stderr)) _exit(1);
    signal(SIGABRT, SIG_DFL);
    graph_forward(p.graph, p.graphed, &p.b);
    _exit(0);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  p.graphed->ops = real_ops;
  assert_true(step(&p));
  pair_close(&p);
}

static void buckets(void **state) {
  (void)state;
  for (int rows_max = 1; rows_max <= 70; rows_max++) {
    for (int n = -1; n <= rows_max + 3; n++) {
      int want = 0;
      for (int b = rows_max; b >= 1 && n >= 1 && b >= n; b--) /* the smallest that is one */
        if (b <= 8 || b % 4 == 0 || b == rows_max) want = b;
      assert_int_equal(graph_bucket(n, rows_max), want);
    }
  }
}

static void memory(void **state) {
  (void)state;
  static struct pair p;
  struct err e = {0};
  pair_open(&p, &small);
  assert_int_equal(graph_bytes(p.config, &device_cpu_ops, 0), 0);
  size_t one = graph_bytes(p.config, &device_cpu_ops, 2) - graph_bytes(p.config, &device_cpu_ops, 1);
  assert_int_equal(graph_bytes(p.config, &device_cpu_ops, 13) - graph_bytes(p.config, &device_cpu_ops, 12), one);
  assert_int_equal(graph_bytes(p.config, &device_cpu_ops, 16), graph_bytes(p.config, &device_cpu_ops, 13));
  assert_int_equal(graph_bytes(p.config, &device_cpu_ops, 64) - graph_bytes(p.config, &device_cpu_ops, 8), 14 * one);
  for (int n = 1;; n++) {
    mem_fail_after(n);
    struct graph *g = graph_new(p.graphed, &p.b, 12, &e);
    bool failed = !mem_fail_pending();
    mem_fail_after(0);
    graph_delete(g);
    if (!failed) {
      assert_int_equal(n, 10); /* 9 buckets */
      break;
    }
    assert_null(g);
    assert_int_equal(e.code, ERR_NO_MEMORY);
  }
  graph_delete(NULL);
  pair_close(&p);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(eager_and_graph_agree),
    cmocka_unit_test(long_sequences),
    cmocka_unit_test(taps_and_more_rows_than_the_largest_bucket_are_eager),
    cmocka_unit_test(soft_rows_are_eager_and_cross_attention_has_two_records),
    cmocka_unit_test(what_cannot_be_recorded_is_found),
    cmocka_unit_test(buckets),
    cmocka_unit_test(memory),
};
TEST_MAIN(tests)
