/* t_tok.c — the tokenizer against a slow twin, damaged files. */
#include "sample.h"

#include "tok_job.h"

/* --- a slow twin --------------------------------------------------------------------------------------------------------------------- */

enum { TWIN_PIECES_MAX = 700, TWIN_SYMBOLS_MAX = 400 };
enum twin_kind { TWIN_NORMAL, TWIN_USER, TWIN_CONTROL, TWIN_BYTE };

struct twin { /* spellings as in files, with U+2581 */
  int n;
  char spelling[TWIN_PIECES_MAX][40];
  size_t len[TWIN_PIECES_MAX];
  int first[4]; /* lowest index of each kind */
  enum twin_kind kind[TWIN_PIECES_MAX];
  double score[TWIN_PIECES_MAX]; /* normal pieces */
};

static void twin_add(struct twin *w, const char *spelling, enum twin_kind kind, double score) {
  assert_true(w->n < TWIN_PIECES_MAX && strlen(spelling) < sizeof w->spelling[0]);
  strcpy(w->spelling[w->n], spelling);
  w->len[w->n] = strlen(spelling);
  if (!w->first[kind]) w->first[kind] = w->n;
  w->kind[w->n] = kind;
  w->score[w->n++] = score;
}
static int twin_find(const struct twin *w, const char *p, size_t n, enum twin_kind kind) {
  for (int i = w->first[kind]; i < w->n; i++)
    if (w->kind[i] == kind && w->len[i] == n && !memcmp(w->spelling[i], p, n)) return i;
  return -1;
}
/* Longest piece of a kind at p. */
static int twin_longest(const struct twin *w, const char *p, size_t n, enum twin_kind kind) {
  int best = -1;
  for (int i = 0; i < w->n; i++)
    if (w->kind[i] == kind && w->len[i] <= n && !memcmp(w->spelling[i], p, w->len[i]) && (best < 0 || w->len[i] > w->len[best])) best = i;
  return best;
}

static void twin_word(const struct twin *w, const char *p, size_t n, struct tok_ids *out) {
  size_t at[TWIN_SYMBOLS_MAX + 1];
  int m = 0;
  for (size_t i = 0; i < n; m++) {
    assert_true(m < TWIN_SYMBOLS_MAX);
    at[m] = i++;
    while (i < n && ((unsigned char)p[i] & 0xC0) == 0x80) i++;
  }
  at[m] = n;
  for (;;) {
    int best = -1;
    double best_score = 0;
    for (int i = 0; i + 1 < m; i++) {
      int id = twin_find(w, p + at[i], at[i + 2] - at[i], TWIN_NORMAL);
      if (id >= 0 && (best < 0 || w->score[id] > best_score)) {
        best = i;
        best_score = w->score[id];
      }
    }
    if (best < 0) break;
    memmove(at + best + 1, at + best + 2, (size_t)(m - best - 1) * sizeof *at);
    m--;
  }
  for (int i = 0; i < m; i++) {
    int id = twin_find(w, p + at[i], at[i + 1] - at[i], TWIN_NORMAL);
    if (id >= 0) {
      tok_ids_push(out, id);
      continue;
    }
    for (size_t b = at[i]; b < at[i + 1]; b++) {
      char byte[8];
      snprintf(byte, sizeof byte, "<0x%02X>", (unsigned char)p[b]);
      tok_ids_push(out, twin_find(w, byte, 6, TWIN_BYTE));
    }
  }
}

static void twin_plain(const struct twin *w, const char *text, size_t n, struct tok_ids *out) {
  struct buf b;
  buf_init(&b, 0);
  for (size_t i = 0; i < n; i++)
    if (text[i] == ' ') buf_puts(&b, "\xE2\x96\x81");
    else buf_putc(&b, text[i]);
  size_t from = 0;
  for (size_t i = 0; i < b.len;) {
    int id = twin_longest(w, b.data + i, b.len - i, TWIN_USER);
    if (id < 0) {
      i++;
      continue;
    }
    twin_word(w, b.data + from, i - from, out);
    tok_ids_push(out, id);
    from = i += w->len[id];
  }
  twin_word(w, buf_cstr(&b) + from, b.len - from, out);
  buf_free(&b);
}

static void twin_encode(const struct twin *w, const char *text, bool special, struct tok_ids *out) {
  size_t n = strlen(text), from = 0;
  for (size_t i = 0; special && i < n;) {
    int id = twin_longest(w, text + i, n - i, TWIN_CONTROL);
    if (id < 0) {
      i++;
      continue;
    }
    twin_plain(w, text + from, i - from, out);
    tok_ids_push(out, id);
    from = i += w->len[id];
  }
  twin_plain(w, text + from, n - from, out);
}

static void random_text(uint64_t *rng, const struct twin *w, char *out, size_t cap) {
  static const char *const crumbs[] = {"a",  "b", "c",        "t",     "h",       "e", " ",      "  ",     "\n",     "\n\n",
                                       "\t", "<", ">",        "<b",    "b>",      "/", "é",      "字",     "😀",      "\xE2\x96\x81",
                                       "x",  "s", "<end_of_", "turn>", "<unused", "7", "<0x41>", "[multi", "modal]", "o",
                                       "i"};
  size_t n = 0;
  int want = test_rand_int(rng, 0, 40);
  out[0] = 0;
  while (want-- > 0) {
    const char *next = test_rand_int(rng, 0, 2) ? crumbs[test_rand_int(rng, 0, (int)ARRAY_LEN(crumbs) - 1)]
                                                : w->spelling[test_rand_int(rng, 0, w->n - 1)];
    size_t len = strlen(next);
    if (n + len + 1 > cap) break;
    memcpy(out + n, next, len + 1);
    n += len;
  }
}

static void compare_with_twin(const struct tokenizer *t, const struct twin *w, uint64_t seed, int rounds) {
  uint64_t rng = seed;
  for (int round = 0; round < rounds; round++) {
    char text[300];
    bool special = round % 3 == 0;
    random_text(&rng, w, text, sizeof text);
    struct tok_ids got = {0}, want = {0};
    tok_encode(t, str_c(text), special, false, &got);
    twin_encode(w, text, special, &want);
    if (!ids_equal(&got, &want)) {
      print_ids("expected", &want);
      print_ids("found", &got);
      fail_msg("seed %llu round %d: \"%s\"", (unsigned long long)seed, round, text);
    }
    for (size_t i = 0; i < got.n; i++) assert_true(special || !tok_is_control(t, got.v[i]));
    struct buf decoded, blanks;
    buf_init(&decoded, 0);
    buf_init(&blanks, 0);
    tok_decode(t, got.v, got.n, false, &decoded);
    for (const char *p = text; *p; p++) /* a literal U+2581 reads back as a blank */
      if (!strncmp(p, "\xE2\x96\x81", 3)) {
        buf_putc(&blanks, ' ');
        p += 2;
      } else {
        buf_putc(&blanks, *p);
      }
    assert_string_equal(buf_cstr(&decoded), buf_cstr(&blanks));
    buf_free(&decoded);
    buf_free(&blanks);
    tok_ids_free(&got);
    tok_ids_free(&want);
  }
}

static void twin_head(struct twin *w) {
  memset(w, 0, sizeof *w);
  static const char *const control[] = {"<pad>", "<eos>", "<bos>", "<unk>", "<mask>"};
  for (size_t i = 0; i < ARRAY_LEN(control); i++) twin_add(w, control[i], TWIN_CONTROL, 0);
  for (int b = 0; b < 256; b++) {
    char byte[8];
    snprintf(byte, sizeof byte, "<0x%02X>", (unsigned)b);
    twin_add(w, byte, TWIN_BYTE, 0);
  }
}

/* A vocabulary closed under splitting: every longer piece is two others put together. */
static void made_up(struct twin *w, uint64_t *rng, bool ties) {
  static const char *const letters[] = {"\xE2\x96\x81", "a", "b", "c", "é", "字", "<", ">", "\n", "s"};
  static const char *const control[] = {"<start_of_turn>", "<end_of_turn>", "<unused0>", "<unused1>", "<unused12>", "[multimodal]"};
  static const char *const user[] = {"\n\n", "\xE2\x96\x81\xE2\x96\x81", "<b>", "</b>", "<s>", "\n\n\n", "\t\t", "ab\xE2\x96\x81\x63"};
  twin_head(w);
  for (size_t i = 0; i < ARRAY_LEN(control); i++) twin_add(w, control[i], TWIN_CONTROL, 0);
  for (size_t i = 0; i < ARRAY_LEN(user); i++)
    if (test_rand_int(rng, 0, 1)) twin_add(w, user[i], TWIN_USER, 0);
  int first = w->n, rank = 0;
  for (size_t i = 0; i < ARRAY_LEN(letters); i++) twin_add(w, letters[i], TWIN_NORMAL, -1000);
  for (int tries = test_rand_int(rng, 10, 200); tries > 0; tries--) {
    char joined[80];
    snprintf(joined, sizeof joined, "%s%s", w->spelling[test_rand_int(rng, first, w->n - 1)],
             w->spelling[test_rand_int(rng, first, w->n - 1)]);
    bool taken = strlen(joined) >= 16;
    for (int i = 0; i < w->n; i++) taken |= !strcmp(w->spelling[i], joined);
    if (!taken) twin_add(w, joined, TWIN_NORMAL, -(ties ? test_rand_int(rng, 0, 6) : rank++));
  }
}

/* The twin as tokenizer.json: each piece by every split into two pieces, best score first. */
static char *made_up_json(const struct twin *w, bool merge_strings) {
  json_t *vocab = json_object(), *merges = json_array(), *added = json_array();
  for (int i = 0; i < w->n; i++) {
    json_object_set_new(vocab, w->spelling[i], json_integer(i));
    if (w->kind[i] == TWIN_USER || w->kind[i] == TWIN_CONTROL)
      json_array_append_new(
          added, json_pack("{s:i,s:s,s:b}", "id", i, "content", w->spelling[i], "special", i % 2 && strncmp(w->spelling[i], "ab", 2) != 0));
    for (size_t cut = 1; w->kind[i] == TWIN_NORMAL && cut < strlen(w->spelling[i]); cut++) {
      if (twin_find(w, w->spelling[i], cut, TWIN_NORMAL) < 0) continue;
      if (twin_find(w, w->spelling[i] + cut, strlen(w->spelling[i]) - cut, TWIN_NORMAL) < 0) continue;
      char left[80];
      snprintf(left, sizeof left, "%.*s%s", (int)cut, w->spelling[i], merge_strings ? " " : "");
      json_array_append_new(merges, merge_strings ? json_sprintf("%s%s", left, w->spelling[i] + cut)
                                                  : json_pack("[s,s]", left, w->spelling[i] + cut));
    }
  }
  json_t *root = json_pack("{s:o,s:{s:s,s:{s:s},s:s},s:{s:s,s:b,s:o,s:o}}", "added_tokens", added, "normalizer", "type", "Replace",
                           "pattern", "String", " ", "content", "\xE2\x96\x81", "model", "type", "BPE", "byte_fallback", 1, "vocab", vocab,
                           "merges", merges);
  assert_non_null(root);
  char *text = json_dumps(root, 0);
  json_decref(root);
  return text;
}

static void put_u32(struct buf *b, uint32_t v) { buf_append(b, &v, sizeof v); }
static void put_u64(struct buf *b, uint64_t v) { buf_append(b, &v, sizeof v); }
static void put_string(struct buf *b, const char *s) {
  put_u64(b, strlen(s));
  buf_puts(b, s);
}
static void put_string_key(struct buf *b, const char *key, const char *value) {
  put_string(b, key);
  put_u32(b, 8);
  put_string(b, value);
}
static void put_array_key(struct buf *b, const char *key, uint32_t type, uint64_t n) {
  put_string(b, key);
  put_u32(b, 9);
  put_u32(b, type);
  put_u64(b, n);
}

struct gguf_form { /* what to spoil; zeroed is sound */
  const char *arch, *model;
  int drop_types, drop_scores, n_scores; /* change of the number of scores */
  bool bad_score, bad_byte;
};

static void made_up_gguf(const struct twin *w, const struct gguf_form *f, struct buf *b) {
  static const int32_t types[] = {[TWIN_NORMAL] = 1, [TWIN_USER] = 4, [TWIN_CONTROL] = 3, [TWIN_BYTE] = 6};
  buf_init(b, 0);
  buf_puts(b, "GGUF");
  put_u32(b, 3);
  put_u64(b, 0);
  put_u64(b, (uint64_t)(5 - f->drop_types - f->drop_scores));
  put_string_key(b, "general.architecture", f->arch ? f->arch : "gemma3");
  put_string_key(b, "tokenizer.ggml.model", f->model ? f->model : "llama");
  put_array_key(b, "tokenizer.ggml.tokens", 8, (uint64_t)w->n);
  for (int i = 0; i < w->n; i++) {
    bool run = w->kind[i] == TWIN_USER && !strcmp(w->spelling[i], "\xE2\x96\x81\xE2\x96\x81");
    put_string(b, f->bad_byte && i == 6 ? "<0x00>" : run ? "  " : w->spelling[i]); /* runs have real blanks there */
  }
  if (!f->drop_scores) {
    put_array_key(b, "tokenizer.ggml.scores", 6, (uint64_t)(w->n + f->n_scores));
    for (int i = 0; i < w->n + f->n_scores; i++) {
      float score = f->bad_score && i == 20 ? 1.0f / 0.0f : i < w->n ? (float)w->score[i] : 0;
      buf_append(b, &score, sizeof score);
    }
  }
  if (!f->drop_types) {
    put_array_key(b, "tokenizer.ggml.token_type", 5, (uint64_t)w->n);
    for (int i = 0; i < w->n; i++) {
      int32_t type = types[w->kind[i]];
      if (!strcmp(w->spelling[i], "[multimodal]") || !strcmp(w->spelling[i], "<end_of_turn>")) type = 4; /* as real files have it */
      buf_append(b, &type, sizeof type);
    }
  }
}

static void made_up_vocabularies(void **state) {
  (void)state;
  static struct twin w;
  for (uint64_t seed = 1; seed <= 24; seed++) {
    uint64_t rng = seed;
    struct err e = {0};
    made_up(&w, &rng, false);
    char *json = made_up_json(&w, seed % 2);
    struct tokenizer *t = tok_from_json(json, strlen(json), "made.json", &e);
    if (!t) fail_msg("%s", e.msg);
    compare_with_twin(t, &w, seed, 120);
    tok_close(t);
    free(json);

    made_up(&w, &rng, seed % 2);
    struct buf file;
    made_up_gguf(&w, &(struct gguf_form){0}, &file);
    t = tok_open(test_write("made.gguf", file.data, file.len), &e);
    if (!t) fail_msg("%s", e.msg);
    compare_with_twin(t, &w, seed + 1000, 120);
    tok_close(t);
    buf_free(&file);
  }
}

/* --- the small vocabularies of the test models --------------------------------------------------------------------------------------- */

static void twin_from_json(struct twin *w, const char *path) {
  json_t *root = json_load_file(path, JSON_ALLOW_NUL, NULL);
  assert_non_null(root);
  json_t *model = json_object_get(root, "model"), *id, *merge;
  const char *spelling;
  size_t rank;
  w->n = (int)json_object_size(json_object_get(model, "vocab"));
  json_object_foreach(json_object_get(model, "vocab"), spelling, id) {
    int i = (int)json_integer_value(id);
    strcpy(w->spelling[i], spelling);
    w->len[i] = strlen(spelling);
    w->first[TWIN_NORMAL] = 261;
    w->kind[i] = i < 5 ? TWIN_CONTROL : i < 261 ? TWIN_BYTE : TWIN_NORMAL;
    w->score[i] = -1000;
  }
  json_array_foreach(json_object_get(model, "merges"), rank, merge) {
    char joined[80];
    snprintf(joined, sizeof joined, "%s%s", json_string_value(json_array_get(merge, 0)), json_string_value(json_array_get(merge, 1)));
    int made = twin_find(w, joined, strlen(joined), TWIN_NORMAL);
    assert_true(made >= 0);
    if (w->score[made] == -1000) w->score[made] = -(double)rank;
  }
  json_decref(root);
}

static void toy_against_twin(void **state) {
  (void)state;
  static struct twin w;
  twin_from_json(&w, test_path("golden/gemma3-text-tiny/tokenizer.json"));
  struct tokenizer *t = toy_tokenizer("gemma3-text-tiny");
  assert_int_equal(tok_vocab(t), 512);
  assert_int_equal(tok_bos(t), 2);
  compare_with_twin(t, &w, 7, 1500);
  tok_close(t);
}

static void toy_forms_agree(void **state) {
  (void)state;
  static const char *const pairs[][2] = {{"gemma3-text-tiny", "gemma3-text-tiny/model-mixed.gguf"},
                                         {"gemma3-text-ropescale", "gemma3-text-ropescale/model-q8_0.gguf"}};
  static struct twin w;
  twin_head(&w);
  uint64_t rng = 3;
  for (size_t k = 0; k < ARRAY_LEN(pairs); k++) {
    struct tokenizer *a = toy_tokenizer(pairs[k][0]), *b = toy_tokenizer(pairs[k][1]);
    int na, nb;
    assert_int_equal(tok_vocab(a), tok_vocab(b));
    assert_int_equal(tok_bos(a), tok_bos(b));
    const int32_t *ea = tok_eog(a, &na), *eb = tok_eog(b, &nb);
    assert_int_equal(na, 1);
    assert_int_equal(nb, 1);
    assert_int_equal(ea[0], 1);
    assert_int_equal(eb[0], 1);
    for (int32_t id = 0; id < tok_vocab(a); id++) {
      assert_true(str_eq(tok_piece(a, id), tok_piece(b, id)));
      assert_int_equal(tok_is_control(a, id), tok_is_control(b, id));
    }
    for (int round = 0; round < 2000; round++) {
      char text[300];
      random_text(&rng, &w, text, sizeof text);
      struct tok_ids x = {0}, y = {0};
      tok_encode(a, str_c(text), round & 1, round & 2, &x);
      tok_encode(b, str_c(text), round & 1, round & 2, &y);
      assert_true(ids_equal(&x, &y));
      tok_ids_free(&x);
      tok_ids_free(&y);
    }
    tok_close(a);
    tok_close(b);
  }
}

static void one_bos(void **state) {
  (void)state;
  struct tokenizer *t = toy_tokenizer("gemma3-text-tiny");
  static const struct {
    const char *text;
    bool special;
    int n_bos; /* leading */
  } cases[] = {{"", false, 1},      {"", true, 1},           {"a", true, 1},    {"<bos>a", false, 1},
               {"<bos>a", true, 1}, {"<bos><bos>", true, 2}, {"<bos>", true, 1}};
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct tok_ids ids = {0};
    tok_ids_push(&ids, 300); /* what is there already stays */
    tok_encode(t, str_c(cases[i].text), cases[i].special, true, &ids);
    assert_int_equal(ids.v[0], 300);
    int n = 0;
    while ((size_t)n + 1 < ids.n && ids.v[n + 1] == 2) n++;
    assert_int_equal(n, cases[i].n_bos);
    tok_ids_free(&ids);
  }
  struct tok_ids none = {0};
  tok_encode(t, (struct str){0}, false, false, &none);
  assert_int_equal(none.n, 0);
  tok_close(t);
}

static void long_words(void **state) {
  (void)state;
  struct tokenizer *t = toy_tokenizer("gemma3-text-tiny");
  static const char *const units[] = {"t", "te", " ", "the cat ", "字", "\n", "<", "z"};
  for (size_t k = 0; k < ARRAY_LEN(units); k++) {
    struct buf text, back;
    buf_init(&text, 0);
    buf_init(&back, 0);
    while (text.len < 300000) buf_puts(&text, units[k]);
    struct job job = {.tok = t, .text = str_of(text.data, text.len), .special = k & 1};
    run_small_stack(&job);
    tok_decode(t, job.ids.v, job.ids.n, false, &back);
    assert_true(str_eq(job.text, str_of(back.data, back.len)));
    tok_ids_free(&job.ids);
    buf_free(&text);
    buf_free(&back);
  }
  tok_close(t);
}

/* --- damaged files ------------------------------------------------------------------------------------------------------------------- */

static void expect_refused(struct tokenizer *t, const struct err *e, const char *part) {
  if (t) fail_msg("accepted what should be refused for: %s", part);
  if (!strstr(e->msg, part)) fail_msg("expected a message with \"%s\", found \"%s\"", part, e->msg);
}

static void bad_gguf(void **state) {
  (void)state;
  static struct twin w;
  uint64_t rng = 5;
  made_up(&w, &rng, false);
  static const struct {
    struct gguf_form form;
    const char *part;
  } cases[] = {{{.drop_types = 1}, "token_type is missing"},
               {{.drop_scores = 1}, "scores is missing"},
               {{.n_scores = -1}, "one for each token"},
               {{.n_scores = 1}, "one for each token"},
               {{.bad_score = true}, "token 20: expected a finite score"},
               {{.bad_byte = true}, "piece 6: expected a byte piece"},
               {{.arch = "gemma4"}, "merges is missing"},
               {{.model = "gemma4"}, "merges is missing"},
               {{.model = "gpt2"}, "gpt2"},
               {{.model = "bert", .arch = "bert"}, "bert"}};
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct buf file;
    struct err e = {0};
    made_up_gguf(&w, &cases[i].form, &file);
    expect_refused(tok_open(test_write("bad.gguf", file.data, file.len), &e), &e, cases[i].part);
    buf_free(&file);
  }
  struct err e = {0};
  expect_refused(tok_open("/no/such/file.gguf", &e), &e, "file.gguf");
  expect_refused(tok_open("/no/such/model.safetensors", &e), &e, "tokenizer.json");
}

/* The toy tokenizer.json with one thing changed. */
static void bad_json(void **state) {
  (void)state;
  static const struct {
    const char *path, *value, *part; /* path: keys with dots; value NULL removes */
  } cases[] = {{"model", NULL, "model.vocab"},
               {"model.vocab", "[]", "vocab"},
               {"model.vocab", "{}", "expected"},
               {"model.vocab.te", "\"x\"", "token te: expected an integer"},
               {"model.vocab.te", "-1", "token te: expected an id below"},
               {"model.vocab.te", "99999", "token te: expected an id below"},
               {"model.vocab.te", "4", "expected one spelling"},
               {"model.vocab.te", NULL, "expected"},
               {"model.vocab.<0x41>", NULL, "expected"},
               {"model.vocab.\xC4\xA0", "512", "Llama 3"},
               {"model.merges", "[[\"t\"]]", "merges[0]"},
               {"model.merges", "[\"te\"]", "model.merges[0]"},
               {"model.merges", "[[\"q\",\"q\"]]", "merges[0]"},
               {"model.merges", "[[\"t\",\"e\"],[\"q\",\"q\"]]", "merges[1]"},
               {"model.merges", "[[\"t\",\"e\",\"e\"]]", "merges[0]"},
               {"model.merges", "[[\"t\",7]]", "merges[0]"},
               {"model.merges", "[[\"\",\"e\"]]", "merges[0]"},
               {"model.merges", "[\"t \"]", "merges[0]"},
               {"model.merges", "[7]", "merges[0]"},
               {"model.merges", "{}", "merges"},
               {"model.type", "\"Unigram\"", "type BPE"},
               {"model.byte_fallback", "false", "byte_fallback"},
               {"normalizer.content", "\"_\"", "U+2581"},
               {"normalizer", "null", "U+2581"},
               {"added_tokens", "{}", "added_tokens"},
               {"added_tokens", "[7]", "added_tokens[0]"},
               {"added_tokens", "[{\"id\":\"x\",\"content\":\"y\"}]", "added_tokens[0]"},
               {"added_tokens", "[{\"id\":2,\"content\":\"<other>\"}]", "expected one spelling"}};
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    json_t *root = json_load_file(test_path("golden/gemma3-text-tiny/tokenizer.json"), 0, NULL), *at = root;
    char path[60], *key = path, *dot;
    strcpy(path, cases[i].path);
    for (; (dot = strchr(key, '.')); key = dot + 1) {
      *dot = 0;
      at = json_object_get(at, key);
    }
    if (cases[i].value) json_object_set_new(at, key, json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
    else json_object_del(at, key);
    char *text = json_dumps(root, 0);
    struct err e = {0};
    expect_refused(tok_from_json(text, strlen(text), "toy", &e), &e, cases[i].part);
    free(text);
    json_decref(root);
  }
  static const char *const broken[] = {"", "[]", "7", "{", "{\"model\":{\"vocab\":{\"a\":0}}}", "{\"model\":7}"};
  for (size_t i = 0; i < ARRAY_LEN(broken); i++) {
    struct err e = {0};
    expect_refused(tok_from_json(broken[i], strlen(broken[i]), "toy", &e), &e, "toy");
  }
}

/* A model without a vocabulary. */
static void blank(void **s) {
  (void)s;
  struct tokenizer *t = tok_blank(300);
  struct tok_ids ids = {0};
  struct buf out;
  tok_encode(t, str_c("anything <bos>"), true, true, &ids);
  assert_int_equal(ids.n, 0);
  assert_true(tok_is_blank(t) && tok_vocab(t) == 300 && tok_bos(t) == -1 && !tok_is_control(t, 2));
  buf_init(&out, 0);
  tok_decode(t, (const int32_t[]){0, 299, 7}, 3, true, &out);
  assert_string_equal(buf_cstr(&out), "[0][299][7]");
  buf_free(&out);
  tok_ids_free(&ids);
  tok_close(t);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(blank),
    cmocka_unit_test(made_up_vocabularies),
    cmocka_unit_test(toy_against_twin),
    cmocka_unit_test(toy_forms_agree),
    cmocka_unit_test(one_bos),
    cmocka_unit_test(long_words),
    cmocka_unit_test(bad_gguf),
    cmocka_unit_test(bad_json),
};
TEST_MAIN(tests)
