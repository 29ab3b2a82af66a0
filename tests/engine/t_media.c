/* t_media.c — pictures and sounds through a whole engine: golden values, and the same answer by every road. */
#include "engine/media_asking.h"

#include "compute/gemm_kern.h"
#include "gguf_maker.h"

/* ---- golden values --------------------------------------------------------------------------------------------------------- */

static const struct st_tensor *golden(const struct scene *x, const struct scene_case *y, const char *what) {
  char name[64];
  snprintf(name, sizeof name, "%s.%s", y->name, what);
  return safetensors_find(&x->golden, name);
}

struct hidden { /* of all rows, as they come */
  float *x;
  int layers, rows, cols, n, *n_rows;
};

static void on_hidden(void *ctx, int layer, int position, const float *x, int cols) {
  struct hidden *h = ((struct answer *)ctx)->last.user;
  assert_true(layer >= 0 && layer < h->layers && position < h->rows && cols == h->cols);
  assert_int_equal(position, h->n_rows[layer]++); /* in order, each once */
  memcpy(h->x + ((size_t)layer * (size_t)h->rows + (size_t)position) * (size_t)cols, x, (size_t)cols * sizeof *x);
  h->n++;
}

/* On an NPU, and on processors with products of bf16, activations are rounded. */
static bool coarse(const struct cygnet *c) { return on_npu() || c->model->dev->kern->gemm->bf16_row || c->model->dev->kern->gemm->tiles; }

/* Of the logits: the greatest difference in float32, the relative length of what rounding to 8 or 11 bits leaves. Rows of 31b's and 26b's
 * encoders are standardised, which enlarges rounding; an expert that is chosen differently changes a row as a whole. */
static double tolerance(const struct cygnet *c, const struct scene *x) {
  if (!coarse(c)) return 5e-4;
  return x == &scenes[G31B] || x == &scenes[G26B] ? 0.35 : 0.08;
}

static double check_case(struct cygnet *c, const struct scene *x, const struct scene_case *y, const char *road) {
  const struct st_tensor *logits = golden(x, y, "logits"), *greedy = golden(x, y, "greedy"), *hidden = golden(x, y, "hidden");
  struct answer a;
  struct hidden h = {0};
  double rel_max, rel_l2, worst;
  assert_non_null(logits);
  assert_non_null(greedy);
  struct cygnet_request r = scene_request(y, SCENE_GREEDY);
  scene_answer_init(&a, &r, true);
  if (hidden) {
    h = (struct hidden){.layers = (int)hidden->shape[0], .rows = (int)hidden->shape[1], .cols = (int)hidden->shape[2]};
    h.x = xcalloc((size_t)h.layers * (size_t)h.rows, (size_t)h.cols * sizeof *h.x);
    h.n_rows = xcalloc((size_t)h.layers, sizeof *h.n_rows);
    a.last.user = &h;
    r.on_hidden = on_hidden;
  }
  submit(c, &r);
  run(c);
  assert_true(a.over && a.last.finish == CYGNET_FINISH_LENGTH);
  if (a.n_rows != logits->shape[0] || a.vocab != logits->shape[1]) fail_msg("%s %s: %d rows of %d", road, y->name, a.n_rows, a.vocab);
  assert_int_equal(a.last.prompt_tokens, a.n_rows);
  assert_int_equal(a.last.n_media, y->n_media);
  test_compare(a.logits, logits->data, (size_t)a.n_rows * (size_t)a.vocab, &rel_max, &rel_l2);
  worst = coarse(c) ? rel_l2 : rel_max;
  if (!(worst < tolerance(c, x))) fail_msg("%s, %s, case %s: logits are %.2g off", x->folder, road, y->name, worst);
  if (hidden) {
    assert_int_equal(h.n, h.layers * h.rows);
    test_compare(h.x, hidden->data, (size_t)h.n * (size_t)h.cols, &rel_max, &rel_l2);
    double off = coarse(c) ? rel_l2 : rel_max;
    if (!(off < tolerance(c, x))) fail_msg("%s, %s, case %s: hidden states are %.2g off", x->folder, road, y->name, off);
    worst = MAX(worst, off);
  }
  for (int i = 0; i < SCENE_GREEDY && !coarse(c); i++) /* tests/npu.py looks at margins */
    if (a.ids[i] != ((const int32_t *)greedy->data)[i]) fail_msg("%s, %s, case %s: token %d is %d", x->folder, road, y->name, i, a.ids[i]);
  answer_free(&a);
  free(h.x);
  free(h.n_rows);
  return worst;
}

static void golden_values(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(scenes); i += on_npu() ? 3 : 1) {
    const struct scene *x = &scenes[i];
    double worst = 0;
    const char *exact = kern_available(ISA_AVX2) ? "avx2" : "ref";
    const struct {
      const char *isa, *road;
      int chunk;
    } ways[] = {{"auto", "all at once", 0}, {exact, "chunks of 5", 5}, {"ref", "chunks of 5", 5}};
    for (int w = 0; w < (on_npu() ? 1 : LESS ? 2 : 3); w++) { /* the reference level takes long */
      struct cygnet *c = scene_engine(x, (struct cygnet_options){.chunk_tokens = ways[w].chunk, .isa = ways[w].isa});
      for (int k = 0; k < x->n_cases; k++) worst = MAX(worst, check_case(c, x, &x->cases[k], ways[w].road));
      cygnet_close(c);
    }
    print_message("%s: %d cases, greatest difference %.2g\n", x->folder, x->n_cases, worst);
  }
}

/* ---- the same by every road (t_media_roads.c has more of them) -------------------------------------------------------------------- */

/* All logits of all rows, for every size of chunk and page. */
static void every_chunk(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(scenes); i += on_npu() ? 3 : 1) {
    const struct scene *x = &scenes[i];
    struct answer want[SCENE_CASES_MAX];
    for (int chunk = 0; chunk <= 7; chunk += on_npu() ? 5 : LESS ? 3 : 1) {
      static const int chunks[] = {0, 1, 2, 3, 5, 7, 16, 24}, pages[] = {16, 1, 2, 4, 8, 32, 1, 2};
      struct cygnet *c = scene_engine(x, (struct cygnet_options){.chunk_tokens = chunks[chunk],
                                                                 .page_tokens = pages[chunk],
                                                                 .threads = 1 + chunk % 2,
                                                                 .step_ms = chunk % 3 == 2 ? 20 : 0,
                                                                 .disable_prefix_cache = chunk < 4,
                                                                 .max_running = 1 + chunk});
      for (int k = 0; k < x->n_cases; k++) {
        struct answer got;
        char road[96];
        snprintf(road, sizeof road, "%s, case %s, chunks of %d", x->folder, x->cases[k].name, chunks[chunk]);
        scene_ask(c, &x->cases[k], 4, chunk ? &got : &want[k], true);
        if (chunk == 0) continue;
        assert_same(&want[k], &got, road);
        answer_free(&got);
      }
      cygnet_close(c);
    }
    for (int k = 0; k < x->n_cases; k++) answer_free(&want[k]);
  }
}

/* ---- which picture matters to whom ----------------------------------------------------------------------------------------------- */

static struct scene_case with_media(const struct scene_case *y, const struct cygnet_media *a, const struct cygnet_media *b) {
  struct scene_case z = *y;
  assert_int_equal(z.n_media, 2);
  z.media[0] = a;
  z.media[1] = b;
  return z;
}

/* First row of logits that differs; -1: none. From the end where lengths differ. */
static int first_difference(const struct answer *a, const struct answer *b) {
  for (int i = 0; i < MIN(a->n_rows, b->n_rows); i++)
    if (memcmp(a->logits + (size_t)i * (size_t)a->vocab, b->logits + (size_t)i * (size_t)a->vocab, (size_t)a->vocab * sizeof(float)) != 0)
      return i;
  return a->n_rows == b->n_rows ? -1 : MIN(a->n_rows, b->n_rows);
}

static int row_of_second(const struct scene_case *y, const struct cygnet *c) {
  struct cygnet_info info;
  cygnet_info(c, &info);
  int row = 0, seen = 0;
  for (int i = 0; i < y->n; i++) {
    if (y->ids[i] == info.image_id || y->ids[i] == info.video_id) {
      if (seen == 1) return row;
      row += cygnet_media_tokens(y->media[seen++]);
    } else {
      row++;
    }
  }
  fail_msg("no second picture");
  return -1;
}

static void second_picture(void **state) {
  (void)state;
  static const struct {
    int scene;
    const char *name;
  } places[] = {{GEMMA3, "two"}, {GEMMA3, "adjacent"}, {G31B, "two"},        {G31B, "adjacent"},
                {E2B, "video"},  {MLLAMA, "separate"}, {MLLAMA, "adjacent"}, {MLLAMA_LONG, "pair"}};
  for (size_t i = 0; i < ARRAY_LEN(places); i += LESS || on_npu() ? 2 : 1) {
    const struct scene *x = &scenes[places[i].scene];
    const struct scene_case *y = scene_case(x, places[i].name);
    const struct cygnet_media *a = y->media[0], *b = y->media[1];
    const struct scene_case orders[] = {*y, with_media(y, b, a), with_media(y, a, a), with_media(y, b, b)};
    struct answer alone[4], got[4];
    struct cygnet_request r[4];
    struct cygnet *c = scene_engine(x, (struct cygnet_options){.disable_prefix_cache = 1});
    for (int k = 0; k < 4; k++) {
      cygnet_flush(c);
      scene_ask(c, &orders[k], 4, &alone[k], true);
    }
    int at = row_of_second(y, c);
    assert_int_equal(first_difference(&alone[0], &alone[2]), at); /* at its own first row: nothing before, something there */
    assert_int_equal(first_difference(&alone[1], &alone[3]), row_of_second(&orders[1], c));
    assert_true(first_difference(&alone[0], &alone[1]) >= 0 && first_difference(&alone[0], &alone[1]) < at);
    cygnet_close(c);
    for (int permuted = 0; permuted < 2; permuted++) { /* together, in two orders */
      c = scene_engine(x, (struct cygnet_options){.chunk_tokens = 7, .page_tokens = 4});
      for (int k = 0; k < 4; k++) {
        int at_k = permuted ? 3 - k : k;
        r[at_k] = scene_request(&orders[at_k], 4);
        scene_answer_init(&got[at_k], &r[at_k], true);
        submit(c, &r[at_k]);
      }
      run(c);
      for (int k = 0; k < 4; k++) {
        assert_same(&alone[k], &got[k], places[i].name);
        answer_free(&got[k]);
      }
      if (x == &scenes[MLLAMA] && !strcmp(y->name, "adjacent")) assert_int_equal(c->stats.n_encoded, 8); /* a bank for each pair */
      else assert_int_equal(c->stats.n_encoded, 2);
      cygnet_close(c);
    }
    for (int k = 0; k < 4; k++) answer_free(&alone[k]);
  }
}

/* ---- what is encoded how often ----------------------------------------------------------------------------------------------------- */

static void encoded_once(void **state) {
  (void)state;
  static const struct {
    int scene;
    const char *name;
    bool cross;
  } places[] = {{GEMMA3, "mid", false}, {G31B, "image", false}, {E2B, "both", false}, {MLLAMA, "mid", true}};
  for (size_t i = 0; i < ARRAY_LEN(places); i++) {
    const struct scene *x = &scenes[places[i].scene];
    const struct scene_case *y = scene_case(x, places[i].name);
    struct answer first, again;
    struct cygnet_stats st;
    struct cygnet *c = scene_engine(x, (struct cygnet_options){.page_tokens = 4});
    scene_ask(c, y, 3, &first, false);
    cygnet_stats(c, &st);
    assert_int_equal(st.n_encoded, y->n_media);
    assert_int_equal(first.last.n_media_cached, 0);
    assert_true(first.last.encode_ms > 0 && st.encode_ms > 0);
    assert_int_equal(st.media_rows_used, 0);
    assert_true(st.media_rows_cached > 0);
    scene_ask(c, y, 3, &again, false); /* the prefix tree has it all */
    assert_same(&first, &again, "again");
    assert_int_equal(again.last.n_media_cached, y->n_media);
    assert_true(again.last.cached_tokens > 0 && again.last.encode_ms == 0);
    answer_free(&again);

    struct scene_case other = *y; /* another beginning: rows must be computed, and the encoder has nothing to do */
    other.ids[y->n - 1] = other.ids[0] = 5;
    scene_ask(c, &other, 3, &again, true);
    assert_int_equal(again.last.n_media_cached, y->n_media);
    assert_int_equal(again.last.cached_tokens, 0);
    answer_free(&again);
    struct cygnet_request salted = scene_request(y, 3); /* others share nothing */
    salted.cache_salt = "s", salted.n_cache_salt = 1;
    answer_init(&again, &salted, false);
    submit(c, &salted);
    run(c);
    assert_same(&first, &again, "salt");
    assert_int_equal(again.last.n_media_cached, 0);
    answer_free(&again);
    cygnet_stats(c, &st);
    assert_int_equal(st.n_encoded, 2 * y->n_media);
    assert_int_equal(st.n_media, 4 * y->n_media);
    assert_int_equal(st.n_media_cached, 2 * y->n_media);
    assert_int_equal(cygnet_flush(c), 0);
    cygnet_stats(c, &st);
    assert_int_equal(st.media_rows_cached, 0);
    scene_ask(c, y, 3, &again, false);
    assert_same(&first, &again, "after a flush");
    assert_int_equal(again.last.n_media_cached + again.last.cached_tokens, 0);
    answer_free(&again);
    answer_free(&first);
    cygnet_close(c);
  }
}

/* A second turn with another picture behind the first one's answer: the first is neither encoded nor computed again. */
static void second_turn(void **state) {
  (void)state;
  static const int of[] = {GEMMA3, G31B, G12B, MLLAMA};
  static const char *const names[] = {"mid", "image", "image", "one"};
  for (size_t i = 0; i < ARRAY_LEN(of); i++) {
    const struct scene *x = &scenes[of[i]];
    const struct scene_case *y = scene_case(x, names[i]), *more = scene_case(x, of[i] == GEMMA3   ? "bare"
                                                                                : of[i] == MLLAMA ? "four"
                                                                                                  : "start");
    struct scene_case turn = *y;
    struct answer a, want, got;
    struct cygnet *c = scene_engine(x, (struct cygnet_options){.page_tokens = 4});
    scene_ask(c, y, 5, &a, false);
    for (int k = 0; k < 5; k++) turn.ids[turn.n++] = a.ids[k];
    for (int k = 0; k < more->n; k++) turn.ids[turn.n++] = more->ids[k];
    turn.media[turn.n_media++] = more->media[0];
    uint64_t n_encoded = c->stats.n_encoded;
    scene_ask(c, &turn, 4, &got, false);
    assert_int_equal(c->stats.n_encoded, n_encoded + 1);
    assert_int_equal(got.last.n_media_cached, 1);
    assert_true(got.last.cached_tokens >= a.last.prompt_tokens + 4);
    cygnet_close(c);
    c = scene_engine(x, (struct cygnet_options){.disable_prefix_cache = 1, .disable_graph = 1, .draft_tokens = -1});
    scene_ask(c, &turn, 4, &want, false);
    assert_same(&want, &got, x->folder);
    cygnet_close(c);
    answer_free(&a);
    answer_free(&got);
    answer_free(&want);
  }
}

/* While pictures are encoded, whoever decodes gets a token in every step; and what was prepared first is there first. */
static void decoding_goes_on(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(scenes); i += on_npu() ? 3 : 1) {
    const struct scene *x = &scenes[i];
    const struct scene_case *text = &x->cases[0], *y = &x->cases[x->n_cases - 1];
    struct cygnet *c = scene_engine(x, (struct cygnet_options){.draft_tokens = -1, .step_ms = i % 2 ? 1 : 0});
    struct answer a, b;
    struct cygnet_request r = scene_request(text, 100), s = scene_request(y, 3);
    answer_init(&a, &r, false);
    submit(c, &r);
    while (a.n == 0) cygnet_step(c), drain(c);
    answer_init(&b, &s, false);
    submit(c, &s);
    int n_before = a.n, n_steps = 0;
    while (!b.over && !a.over) {
      assert_true(cygnet_step(c));
      check(c);
      drain(c);
      assert_int_equal(a.n, n_before + ++n_steps);
    }
    assert_true(b.over && n_steps > 3);
    run(c);
    answer_free(&a);
    answer_free(&b);
    cygnet_close(c);
  }
}

/* What a request repeats ends before a picture: rows of it are no guesses. */
static void guesses_stop_at_pictures(void **state) {
  (void)state;
  static const int of[] = {GEMMA3, E2B, MLLAMA};
  for (size_t i = 0; i < ARRAY_LEN(of); i++) {
    const struct scene *x = &scenes[of[i]];
    const struct scene_case *from = &x->cases[x->n_cases - 1];
    struct cygnet *c = scene_engine(x, (struct cygnet_options){.draft_tokens = 16});
    struct cygnet_info info;
    cygnet_info(c, &info);
    struct scene_case y = {.name = "repeats", .media = {from->media[0]}, .n_media = 1};
    const struct media *m = (const struct media *)from->media[0];
    for (int k = 0; k < 6; k++) y.ids[y.n++] = 9;
    y.ids[y.n++] = m->kind == MEDIA_AUDIO ? info.audio_id : m->kind == MEDIA_FRAME ? info.video_id : info.image_id;
    y.ids[y.n++] = 11;
    struct cygnet_bias bias = {9, 100};
    struct cygnet_request r = scene_request(&y, 40);
    struct answer a;
    r.sampling.bias = &bias, r.sampling.n_bias = 1;
    answer_init(&a, &r, false);
    c->worth_from_ms = INFINITY;
    submit(c, &r);
    run(c);
    for (int k = 0; k < 40; k++) assert_int_equal(a.ids[k], 9);
    assert_true(c->stats.drafted_tokens > 10);
    answer_free(&a);
    cygnet_close(c);
  }
}

/* The text of Gemma 3's scene as a GGUF, with a vocabulary that names the placeholder. */
static const char *text_as_gguf(void) {
  struct model_config c;
  struct err e = {0};
  struct gguf_maker m;
  struct weights *w = weights_open(test_path("golden/media-gemma3"), &c, &e);
  if (!w) fail_msg("%s", e.msg);
  const struct layer_config *y = &c.layers[0];
  gguf_maker_init(&m);
  gguf_maker_gemma3(&m, &(struct gm_gemma3){c.n_layers, c.hidden, y->n_q, y->n_kv, y->head_dim, y->ffn, c.vocab, c.window_tokens}, 0);
  gguf_maker_f32(&m, "gemma3.rope.freq_base_swa", (float)c.rope_sliding.theta);
  gguf_maker_str(&m, "gemma3.rope.scaling.type", "linear");
  gguf_maker_f32(&m, "gemma3.rope.scaling.factor", (float)c.rope_full.factor);
  static const char *const first[] = {"<pad>", "<eos>", "<bos>", "<unk>", "<mask>"};
  char text[512][20];
  const char *tokens[512];
  float scores[512] = {0};
  int32_t types[512];
  assert_true(c.vocab <= 512 && c.image_id < c.vocab);
  for (int i = 0; i < c.vocab; i++) {
    bool control = i < 5 || (i >= 270 && i <= 272), byte = !control && i < 5 + 256;
    snprintf(text[i], sizeof text[i], i == c.image_id ? "<image_soft_token>" : byte ? "<0x%02X>" : "<t%d>", byte ? i - 5 : i);
    tokens[i] = i < 5 ? first[i] : text[i];
    types[i] = control ? 3 : byte ? 6 : 1;
  }
  gguf_maker_str(&m, "tokenizer.ggml.model", "llama");
  gguf_maker_strings(&m, "tokenizer.ggml.tokens", tokens, (uint64_t)c.vocab);
  gguf_maker_array(&m, "tokenizer.ggml.scores", GM_F32_KV, scores, (uint64_t)c.vocab, sizeof *scores);
  gguf_maker_array(&m, "tokenizer.ggml.token_type", GM_I32, types, (uint64_t)c.vocab, sizeof *types);
  for (size_t i = 0; i < weights_count(w); i++) {
    struct weight_entry t = weights_at(w, i);
    if (!t.gguf_name || t.skipped) continue;
    uint64_t ne[2] = {(uint64_t)t.shape[t.n_dims - 1], (uint64_t)t.shape[0]};
    if (t.n_dims == 1) {
      float v[512];
      assert_int_equal(weights_get_vector(w, t.gguf_name, t.shape[0], v, &e), 0);
      for (int64_t k = 0; k < t.shape[0] && strstr(t.gguf_name, "attn_q_norm"); k++) /* the format has no scale of its own */
        v[k] *= c.attn_scale * sqrtf((float)y->head_dim);
      gguf_maker_tensor(&m, t.gguf_name, GM_F32, 1, ne, v, (size_t)t.shape[0] * sizeof *v);
    } else {
      struct weight_view v;
      assert_int_equal(weights_get(w, t.gguf_name, t.shape[0], t.shape[1], &v, &e), 0);
      assert_int_equal(v.dtype, DTYPE_BF16);
      gguf_maker_tensor(&m, t.gguf_name, GM_BF16, 2, ne, v.data, (size_t)v.rows * v.row_bytes);
    }
  }
  weights_close(w);
  size_t n;
  unsigned char *file = gguf_maker_finish(&m, &n);
  const char *path = test_write("text.gguf", file, n);
  free(file);
  return path;
}

/* A GGUF with its projector beside it says what the folder says. */
static void projector_beside_a_gguf(void **state) {
  (void)state;
  const struct scene *x = &scenes[GEMMA3];
  struct cygnet_options o = {
      .model = text_as_gguf(), .mmproj = test_path("golden/media-gemma3/mmproj.gguf"), .kv_type = "f32", .ctx_tokens = 256};
  double worst = 0;
  struct cygnet *c = open_with(o);
  struct cygnet_info info;
  cygnet_info(c, &info);
  assert_int_equal(info.image_id, 272);
  assert_string_equal(info.vision, "siglip");
  assert_true(info.weight_bytes > weights_total_bytes(c->weights));
  for (int k = 0; k < x->n_cases; k++) worst = MAX(worst, check_case(c, x, &x->cases[k], "GGUF"));
  print_message("GGUF and projector: greatest difference %.2g\n", worst);
  cygnet_close(c);
  o.mmproj = NULL; /* alone it is a model of text, and says what would help */
  c = open_with(o);
  struct cygnet_error e = {0};
  assert_null(cygnet_media_new(c, CYGNET_IMAGE, "GIF89a", 6, &(struct cygnet_media_options){0}, &e));
  assert_non_null(strstr(e.message, "--mmproj"));
  cygnet_close(c);
}

/* What is no use as a projector's file. */
static void own_file(void **state) {
  (void)state;
  static const struct {
    const char *model, *mmproj, *says;
  } cases[] = {{"golden/media-gemma3", "golden/media-gemma3/mmproj.gguf", "leave --mmproj out"},
               {"golden/media-gemma3", "golden/none.gguf", "none.gguf"},
               {"golden/gemma3-text-ropescale/model-q8_0.gguf", "golden/media-gemma4-e2b/mmproj.gguf", "mmproj.gguf"},
               {"golden/gemma3-text-ropescale/model-q8_0.gguf", "golden/gemma3-text-ropescale/model-q8_0.gguf", "clip"}};
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct cygnet_error e = {0};
    struct cygnet_options o = {.model = test_path(cases[i].model), .mmproj = test_path(cases[i].mmproj), .threads = 1, .quiet = 1};
    assert_null(cygnet_open(&o, &e));
    if (!strstr(e.message, cases[i].says)) fail_msg("\"%s\" does not say \"%s\"", e.message, cases[i].says);
    o.disable_media = 1; /* then it is not looked at */
    struct cygnet *c = cygnet_open(&o, &e);
    if (!c) fail_msg("%s", e.message);
    cygnet_close(c);
  }
}

/* ---- aborted, refused, failed ------------------------------------------------------------------------------------------------------- */

static void aborted_while_encoding(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(scenes); i += on_npu() ? 3 : 1) {
    const struct scene *x = &scenes[i];
    const struct scene_case *y = &x->cases[x->n_cases - 1], *text = &x->cases[0];
    struct answer want, gone, other, after, plain;
    struct cygnet *c = scene_engine(x, (struct cygnet_options){0});
    scene_ask(c, y, 3, &want, false);
    scene_ask(c, text, 6, &plain, false);
    cygnet_flush(c);
    for (int n = 1; n < 12; n += LESS ? 3 : 1) {
      struct cygnet_request r = scene_request(y, 3), t = scene_request(text, 6);
      answer_init(&gone, &r, false);
      submit(c, &r);
      answer_init(&other, &t, false);
      submit(c, &t);
      for (int k = 0; k < n; k++) cygnet_step(c), check(c);
      cygnet_abort(c, gone.number);
      if (n % 2) { /* another one that wants the same finds the job going on */
        struct cygnet_request again = scene_request(y, 3);
        answer_init(&after, &again, false);
        submit(c, &again);
      }
      run(c);
      assert_null(c->encode.x);
      assert_true(gone.over);
      assert_same(&plain, &other, "beside an aborted one");
      if (n % 2) {
        assert_same(&want, &after, "after an aborted one");
        answer_free(&after);
      }
      answer_free(&gone);
      answer_free(&other);
      cygnet_flush(c);
    }
    struct cygnet_request r = scene_request(y, 3); /* and closed in the middle */
    answer_init(&gone, &r, false);
    submit(c, &r);
    for (int k = 0; k < 3; k++) cygnet_step(c);
    cygnet_close(c);
    answer_free(&gone);
    answer_free(&want);
    answer_free(&plain);
  }
}

/* What is asked for again right after it was aborted, or was sent back, finds its job where it was. */
static void comes_again(void **state) {
  (void)state;
  int n_long = 0;
  for (size_t i = 0; i < ARRAY_LEN(scenes); i += on_npu() ? 3 : 1) {
    const struct scene_case *y = &scenes[i].cases[scenes[i].n_cases - 1];
    struct cygnet *c = scene_engine(&scenes[i], (struct cygnet_options){.chunk_tokens = 64});
    struct answer want, gone, again;
    struct cygnet_request r = scene_request(y, 3), s = scene_request(y, 3);
    scene_ask(c, y, 3, &want, false);
    cygnet_flush(c);
    answer_init(&gone, &r, false);
    submit(c, &r);
    cygnet_step(c), check(c);
    bool is_long = c->encode.x && c->encode.x->n_units >= 4;
    n_long += is_long;
    cygnet_abort(c, gone.number);
    answer_init(&again, &s, false);
    submit(c, &s);
    cygnet_step(c), check(c);
    if (is_long) assert_true(c->encode.x && c->encode.x->next_unit == 2);
    if (c->sched.running.first) sched_retract(&c->sched, c->sched.running.first);
    cygnet_step(c), check(c);
    if (is_long) assert_true(c->encode.x && c->encode.x->next_unit == 3);
    run(c);
    assert_same(&want, &again, scenes[i].folder);
    answer_free(&want);
    answer_free(&gone);
    answer_free(&again);
    cygnet_close(c);
  }
  assert_true(n_long >= (on_npu() ? 1 : 4));
}

static void refuse(struct cygnet *c, const struct cygnet_request *r, const char *says) {
  struct cygnet_error e = {0};
  assert_int_equal(cygnet_submit(c, r, &e), 0);
  assert_int_equal(e.status, 400);
  if (!strstr(e.message, says)) fail_msg("\"%s\" does not say \"%s\"", e.message, says);
}

static void refused(void **state) {
  (void)state;
  const struct scene *x = &scenes[E2B];
  const struct scene_case *y = scene_case(x, "both"), *sound = scene_case(x, "sound"), *image = scene_case(x, "image");
  struct cygnet *c = scene_engine(x, (struct cygnet_options){0});
  struct cygnet_request r = scene_request(y, 1);
  r.n_media = 1;
  refuse(c, &r, "1 pictures and sounds only");
  r = scene_request(image, 1);
  r.media = sound->media;
  refuse(c, &r, "the place of a picture");
  r = scene_request(image, 1);
  r.media = y->media, r.n_media = 2;
  refuse(c, &r, "has places for 1");
  r = scene_request(image, 1);
  const struct cygnet_media *none[1] = {NULL};
  r.media = none;
  refuse(c, &r, "found none");
  struct scene_case video = *scene_case(x, "video");
  video.media[1] = image->media[0]; /* a picture is no frame */
  r = scene_request(&video, 1);
  refuse(c, &r, "the place of a video frame");
  size_t row_bytes = c->plan.media_row_bytes;
  cygnet_close(c);

  c = scene_engine(x, (struct cygnet_options){.ctx_tokens = 70});
  r = scene_request(image, 1);
  refuse(c, &r, "rows of pictures and sounds included");
  cygnet_close(c);

  c = scene_engine(x, (struct cygnet_options){.media_bytes = 48 * row_bytes});
  r = scene_request(image, 1);
  refuse(c, &r, "--media-mem");
  struct answer a;
  scene_ask(c, sound, 1, &a, false); /* a small one fits */
  answer_free(&a);
  cygnet_close(c);

  struct cygnet_error e = {0}; /* a store that does not fit: what to make smaller is said */
  struct cygnet_options huge = {
      .model = test_path("golden/media-gemma4-e2b"), .media_bytes = (size_t)1 << 40, .mem_bytes = 1 << 30, .threads = 1, .quiet = 1};
  assert_null(cygnet_open(&huge, &e));
  assert_non_null(strstr(e.message, "--media-mem"));

  c = scene_engine(x, (struct cygnet_options){.disable_media = 1}); /* ids are what they are, and there are no media */
  r = scene_request(image, 1);
  refuse(c, &r, "neither pictures nor sound");
  r.n_media = 0;
  answer_init(&a, &r, false);
  submit(c, &r);
  run(c);
  assert_int_equal(a.last.prompt_tokens, image->n);
  answer_free(&a);
  struct cygnet_info info;
  cygnet_info(c, &info);
  assert_true(!info.vision && !info.audio && info.image_id == -1 && info.audio_id == -1 && info.media_bytes == 0 && info.media_rows == 0);
  cygnet_close(c);
}

/* A sound whose frames are no numbers fails its own request, and one that has the same sound. */
static void not_a_number(void **state) {
  (void)state;
  struct scene x;
  scene_open(&x, "media-gemma4-e2b");
  const struct scene_case *sound = scene_case(&x, "sound"), *image = scene_case(&x, "image");
  struct cygnet *c = scene_engine(&x, (struct cygnet_options){0});
  struct answer want, a[3];
  scene_ask(c, image, 5, &want, false);
  cygnet_flush(c);
  ((struct media *)(uintptr_t)sound->media[0])->frames[3] = NAN;
  struct cygnet_request r[3] = {scene_request(sound, 5), scene_request(image, 5), scene_request(sound, 2)};
  for (int i = 0; i < 3; i++) {
    answer_init(&a[i], &r[i], false);
    submit(c, &r[i]);
  }
  run(c);
  for (int i = 0; i < 3; i += 2) {
    assert_int_equal(a[i].last.finish, CYGNET_FINISH_ERROR);
    assert_int_equal(a[i].last.error.status, 500);
    assert_non_null(strstr(a[i].last.error.message, "no finite numbers"));
  }
  assert_same(&want, &a[1], "beside one that failed");
  assert_int_equal(banks_stats(c->banks).n_rows_held, 0);
  for (int i = 0; i < 3; i++) answer_free(&a[i]);
  answer_free(&want);
  cygnet_close(c);
  scene_close(&x);
}

/* Rows of a picture have no log-probability; those around it do. */
static void prompt_logprobs(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(scenes); i += on_npu() ? 3 : 1) {
    const struct scene *x = &scenes[i];
    const struct scene_case *y = &x->cases[x->n_cases - 1];
    struct cygnet *c = scene_engine(x, (struct cygnet_options){.chunk_tokens = 9});
    struct cygnet_info info;
    struct cygnet_request r = scene_request(y, 2);
    struct answer a;
    cygnet_info(c, &info);
    r.prompt_logprobs = 1;
    answer_init(&a, &r, false);
    submit(c, &r);
    run(c);
    assert_int_equal(a.n_prompt, a.last.prompt_tokens);
    int n_media = 0;
    for (int k = 0; k < a.n_prompt; k++) {
      int32_t id = a.prompt[k].id;
      bool is_medium = id == info.image_id || id == info.video_id || id == info.audio_id;
      n_media += is_medium;
      assert_int_equal(isnan(a.prompt[k].logprob), is_medium || k == 0);
      assert_true(id >= 0 && id < info.vocab + 8);
    }
    int rows = 0;
    for (int m = 0; m < y->n_media; m++) rows += cygnet_media_tokens(y->media[m]);
    assert_int_equal(n_media, rows);
    answer_free(&a);
    cygnet_close(c);
  }
}

static void facts(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(scenes); i += on_npu() ? 3 : 1) {
    struct cygnet *c = scene_engine(&scenes[i], (struct cygnet_options){.max_running = 3});
    struct cygnet_info info;
    cygnet_info(c, &info);
    assert_non_null(info.vision);
    assert_int_equal(info.audio != NULL, i == E2B || i == G12B);
    assert_true(info.image_id > 0 && info.media_rows > 0 && info.media_bytes > 0);
    assert_int_equal(info.audio_id >= 0, info.audio != NULL);
    assert_int_equal(info.audio_seconds > 0, info.audio != NULL);
    assert_int_equal(info.image_budgets[0], i == MLLAMA || i == MLLAMA_LONG || i == GEMMA3 ? 0 : 70);
    struct buf text;
    buf_init(&text, 0);
    plan_print(&c->plan, &c->config, &text);
    assert_non_null(strstr(buf_cstr(&text), "pictures"));
    buf_free(&text);
    assert_true(c->plan.sched.step_tokens >= c->plan.sched.chunk_tokens);
    cygnet_close(c);
  }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(golden_values),
    cmocka_unit_test(every_chunk),
    cmocka_unit_test(second_picture),
    cmocka_unit_test(encoded_once),
    cmocka_unit_test(second_turn),
    cmocka_unit_test(decoding_goes_on),
    cmocka_unit_test(guesses_stop_at_pictures),
    cmocka_unit_test(own_file),
    cmocka_unit_test(projector_beside_a_gguf),
    cmocka_unit_test(aborted_while_encoding),
    cmocka_unit_test(comes_again),
    cmocka_unit_test(refused),
    cmocka_unit_test(not_a_number),
    cmocka_unit_test(prompt_logprobs),
    cmocka_unit_test(facts),
};

SCENES_MAIN(tests)
