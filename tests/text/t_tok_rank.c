/* t_tok_rank.c — the families that merge by rank against a slow twin, on made-up vocabularies; templates; what is refused; linear time. */
#include "sample.h"

#include "../gguf_maker.h"
#include "text/detok.h"
#include "text/pretok.h"
#include "text/tok_work.h"
#include "tok_job.h"

/* --- made-up vocabularies and their twin ------------------------------------------------------------------------------------------ */

enum { PIECES_MAX = 900, MERGES_MAX = 400, SYMBOLS_MAX = 600 };
enum kind { NORMAL, CONTROL, BYTE, USER };

struct twin {
  bool llama;
  int n;
  char text[PIECES_MAX][40]; /* as in text: blanks are blanks */
  size_t len[PIECES_MAX];
  enum kind kind[PIECES_MAX];
  int n_merges, merge[MERGES_MAX][3]; /* left, right, made */
};

static int add(struct twin *w, const char *text, size_t n, enum kind kind) {
  assert_true(w->n < PIECES_MAX && n < sizeof w->text[0]);
  memcpy(w->text[w->n], text, n);
  w->text[w->n][n] = 0;
  w->len[w->n] = n;
  w->kind[w->n] = kind;
  return w->n++;
}
static int find(const struct twin *w, const char *p, size_t n, enum kind kind) {
  for (int i = 0; i < w->n; i++)
    if (w->kind[i] == kind && w->len[i] == n && !memcmp(w->text[i], p, n)) return i;
  return -1;
}
static int byte_piece(const struct twin *w, unsigned char byte) { return find(w, (const char *)&byte, 1, w->llama ? NORMAL : BYTE); }

/* Merges of random pairs in random order: most pieces by some of their splits only, some by none. */
static void make(struct twin *w, bool llama, uint64_t *rng) {
  static const char *const gemma_control[] = {"<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>", "<|tool_response>",
                                              "<|\"|>"};
  static const char *const llama_control[] = {"<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|reserved_special_token_2|>",
                                              "<|reserved_special_token_21|>"};
  static const char *const letters[] = {" ", "a", "b", "t", "\n", "<", "|", ">", "\xC3\xA9", "\xE5\xAD\x97", "'", "s", "7"};
  memset(w, 0, sizeof *w);
  w->llama = llama;
  if (!llama)
    for (size_t i = 0; i < ARRAY_LEN(gemma_control); i++) add(w, gemma_control[i], strlen(gemma_control[i]), CONTROL);
  for (int b = 0; b < 256; b++) add(w, (const char[]){(char)b}, 1, llama ? NORMAL : BYTE);
  int first = w->n, bases[40], n_bases = 0;
  for (size_t i = 0; i < ARRAY_LEN(letters); i++) {
    size_t len = strlen(letters[i]);
    if (!llama) bases[n_bases++] = add(w, letters[i], len, NORMAL);
    for (size_t k = 0; llama && k < len; k++) bases[n_bases++] = find(w, letters[i] + k, 1, NORMAL);
  }
  for (int tries = test_rand_int(rng, 20, 200); tries > 0; tries--) {
    int grown = llama ? 256 : first + n_bases, side[2];
    for (int k = 0; k < 2; k++)
      side[k] = w->n > grown && test_rand_int(rng, 0, 1) ? test_rand_int(rng, grown, w->n - 1) : bases[test_rand_int(rng, 0, n_bases - 1)];
    char joined[48];
    size_t len = w->len[side[0]] + w->len[side[1]];
    memcpy(joined, w->text[side[0]], w->len[side[0]]);
    memcpy(joined + w->len[side[0]], w->text[side[1]], w->len[side[1]]);
    if (len > 10) continue;
    int made = find(w, joined, len, NORMAL);
    if (made < 0) made = add(w, joined, len, NORMAL);
    bool known = false;
    for (int i = 0; i < w->n_merges; i++) known |= w->merge[i][0] == side[0] && w->merge[i][1] == side[1];
    if (known || !test_rand_int(rng, 0, 5)) continue;
    int at = test_rand_int(rng, 0, w->n_merges); /* somewhere in the order */
    memmove(w->merge[at + 1], w->merge[at], (size_t)(w->n_merges - at) * sizeof w->merge[0]);
    memcpy(w->merge[at], (int[]){side[0], side[1], made}, sizeof w->merge[0]);
    w->n_merges++;
  }
  if (!llama) return;
  for (size_t i = 0; i < ARRAY_LEN(llama_control); i++) add(w, llama_control[i], strlen(llama_control[i]), CONTROL);
  if (test_rand_int(rng, 0, 1)) add(w, "[extra]", 7, USER);
}

static void twin_merge(const struct twin *w, const char *p, size_t n, struct tok_ids *out) {
  int id[SYMBOLS_MAX], m = 0;
  char fallback[SYMBOLS_MAX][4];
  size_t len[SYMBOLS_MAX];
  for (size_t i = 0; i < n; m++) {
    size_t step = 1;
    while (!w->llama && i + step < n && ((unsigned char)p[i + step] & 0xC0) == 0x80) step++;
    assert_true(m < SYMBOLS_MAX);
    id[m] = find(w, p + i, step, NORMAL);
    memcpy(fallback[m], p + i, step);
    len[m] = step;
    i += step;
  }
  for (;;) {
    int best = -1, best_at = 0;
    for (int r = 0; best < 0 && r < w->n_merges; r++)
      for (int i = 0; best < 0 && i + 1 < m; i++)
        if (id[i] == w->merge[r][0] && id[i + 1] == w->merge[r][1]) best = r, best_at = i;
    if (best < 0) break;
    id[best_at] = w->merge[best][2];
    memmove(id + best_at + 1, id + best_at + 2, (size_t)(m - best_at - 2) * sizeof *id);
    memmove(len + best_at + 1, len + best_at + 2, (size_t)(m - best_at - 2) * sizeof *len);
    memmove(fallback + best_at + 1, fallback + best_at + 2, (size_t)(m - best_at - 2) * sizeof *fallback);
    m--;
  }
  for (int i = 0; i < m; i++) {
    if (id[i] >= 0) tok_ids_push(out, id[i]);
    for (size_t k = 0; id[i] < 0 && k < len[i]; k++) tok_ids_push(out, byte_piece(w, (unsigned char)fallback[i][k]));
  }
}

static void twin_stretch(const struct twin *w, const char *p, size_t n, struct tok_ids *out) {
  if (!w->llama) {
    twin_merge(w, p, n, out);
    return;
  }
  for (size_t word; n; p += word, n -= word) {
    word = pretok_llama3(p, n);
    int whole = find(w, p, word, NORMAL);
    if (whole >= 0) tok_ids_push(out, whole);
    else twin_merge(w, p, word, out);
  }
}

/* Cuts text at the longest pieces of a kind, leftmost first. */
static void twin_cut(const struct twin *w, const char *p, size_t n, enum kind kind, struct tok_ids *out) {
  size_t from = 0;
  for (size_t i = 0; i < n;) {
    int best = -1;
    for (int k = 0; k < w->n; k++)
      if (w->kind[k] == kind && w->len[k] <= n - i && !memcmp(w->text[k], p + i, w->len[k]) && (best < 0 || w->len[k] > w->len[best]))
        best = k;
    if (best < 0) {
      i++;
      continue;
    }
    if (kind == CONTROL) twin_cut(w, p + from, i - from, USER, out);
    else twin_stretch(w, p + from, i - from, out);
    tok_ids_push(out, best);
    from = i += w->len[best];
  }
  if (kind == CONTROL) twin_cut(w, p + from, n - from, USER, out);
  else twin_stretch(w, p + from, n - from, out);
}

/* --- the same vocabulary as files --------------------------------------------------------------------------------------------------- */

/* Spelling in a file, in one of a ring of texts. */
static const char *spelled(const struct twin *w, int i) {
  static char ring[4][120];
  static int next;
  char *to = ring[next++ % 4];
  struct buf b;
  buf_init(&b, 0);
  for (size_t k = 0; k < w->len[i]; k++) {
    unsigned char c = (unsigned char)w->text[i][k];
    if (w->kind[i] == BYTE) {
      buf_printf(&b, "<0x%02X>", (unsigned)c);
    } else if (w->llama && w->kind[i] == NORMAL) {
      char utf8[4];
      uint32_t cp = (c > 0x20 && c < 0x7F) || (c > 0xA0 && c != 0xAD) ? c : c <= 0x20 ? 0x100u + c : c == 0xAD ? 0x143 : 0x121u + c - 0x7F;
      buf_append(&b, utf8, (size_t)utf8_put(cp, utf8));
    } else if (c == ' ' && !w->llama) {
      buf_puts(&b, "\xE2\x96\x81");
    } else {
      buf_putc(&b, (char)c);
    }
  }
  assert_true(b.len < sizeof ring[0]);
  strcpy(to, buf_cstr(&b));
  buf_free(&b);
  return to;
}

static json_t *as_json(const struct twin *w, bool strings) {
  json_t *vocab = json_object(), *added = json_array(), *merges = json_array(), *root;
  for (int i = 0; i < w->n; i++) {
    bool extra = w->kind[i] == CONTROL || w->kind[i] == USER;
    if (!w->llama || !extra) json_object_set_new(vocab, spelled(w, i), json_integer(i));
    if (extra && (w->llama || i % 2)) /* some control pieces of Gemma stand in the vocabulary only */
      json_array_append_new(added,
                            json_pack("{s:i,s:s,s:b}", "id", i, "content", spelled(w, i), "special", w->kind[i] == CONTROL && i % 3 != 0));
  }
  for (int i = 0; i < w->n_merges; i++) {
    const char *l = spelled(w, w->merge[i][0]), *r = spelled(w, w->merge[i][1]);
    json_array_append_new(merges, strings ? json_sprintf("%s %s", l, r) : json_pack("[s,s]", l, r));
  }
  if (w->llama)
    root = json_pack("{s:o,s:{s:s,s:[{s:s,s:{s:s},s:s},{s:s,s:b,s:b}]},s:{s:o,s:s,s:o}}", "added_tokens", added, "pre_tokenizer", "type",
                     "Sequence", "pretokenizers", "type", "Split", "pattern", "Regex", PRETOK_LLAMA3, "behavior", "Isolated", "type",
                     "ByteLevel", "add_prefix_space", 0, "use_regex", 0, "model", "vocab", vocab, "type", "BPE", "merges", merges);
  else
    root = json_pack("{s:o,s:{s:s,s:{s:s},s:s},s:{s:o,s:s,s:b,s:o}}", "added_tokens", added, "normalizer", "type", "Replace", "pattern",
                     "String", " ", "content", "\xE2\x96\x81", "model", "merges", merges, "type", "BPE", "byte_fallback", 1, "vocab",
                     vocab);
  assert_non_null(root);
  return root;
}

static struct tokenizer *open_json_value(json_t *root, size_t flags, struct err *e) {
  char *text = json_dumps(root, flags);
  struct tokenizer *t = tok_from_json(text, strlen(text), "made.json", e);
  free(text);
  json_decref(root);
  return t;
}

struct spoil { /* zeroed is sound */
  const char *model, *pre, *arch, *merge, *template;
  bool no_merges, bad_spelling;
};

static struct tokenizer *open_gguf(const struct twin *w, const struct spoil *spoil, struct err *e) {
  struct gguf_maker m;
  char *pieces[PIECES_MAX], *merges[MERGES_MAX];
  int32_t types[PIECES_MAX];
  gguf_maker_init(&m);
  for (int i = 0; i < w->n; i++) {
    pieces[i] = strdup(spoil->bad_spelling && i == 300 ? "a b" : spelled(w, i));
    /* nothing of this is to be trusted */
    types[i] = w->kind[i] == CONTROL ? (i % 3 == 0 ? 1 : i % 3 == 1 ? 4 : 3) : w->kind[i] == USER ? 4 : w->kind[i] == BYTE ? 6 : 1;
  }
  for (int i = 0; i < w->n_merges; i++) {
    struct buf b;
    buf_init(&b, 0);
    buf_printf(&b, "%s %s", spelled(w, w->merge[i][0]), spelled(w, w->merge[i][1]));
    merges[i] = strdup(spoil->merge && i == 2 ? spoil->merge : buf_cstr(&b));
    buf_free(&b);
  }
  gguf_maker_str(&m, "general.architecture", spoil->arch ? spoil->arch : w->llama ? "mllama" : "gemma4");
  gguf_maker_str(&m, "tokenizer.ggml.model", spoil->model ? spoil->model : w->llama ? "gpt2" : "gemma4");
  if (spoil->pre || w->llama) gguf_maker_str(&m, "tokenizer.ggml.pre", spoil->pre ? spoil->pre : "llama-bpe");
  gguf_maker_strings(&m, "tokenizer.ggml.tokens", (const char *const *)pieces, (uint64_t)w->n);
  gguf_maker_array(&m, "tokenizer.ggml.token_type", GM_I32, types, (uint64_t)w->n, 4);
  if (!spoil->no_merges) gguf_maker_strings(&m, "tokenizer.ggml.merges", (const char *const *)merges, (uint64_t)w->n_merges);
  if (spoil->template) gguf_maker_str(&m, "tokenizer.chat_template", spoil->template);
  for (int i = 0; i < w->n; i++) free(pieces[i]);
  for (int i = 0; i < w->n_merges; i++) free(merges[i]);
  size_t n;
  unsigned char *file = gguf_maker_finish(&m, &n);
  struct tokenizer *t = tok_open(test_write("made.gguf", file, n), e);
  free(file);
  return t;
}

/* --- tests --------------------------------------------------------------------------------------------------------------------------- */

static size_t random_text(uint64_t *rng, const struct twin *w, char *out, size_t cap) {
  static const char *const crumbs[] = {"a", "b",      "t",      " ",     "  ",   "\n",          "\t",           "<",
                                       "|", ">",      "'s",     "'",     "7",    "\xC3\xA9",    "\xE5\xAD\x97", "\xF0\x9F\x98\x80",
                                       "x", "<|turn", "turn|>", "_id|>", "[ext", "\xE2\x96\x81"};
  size_t n = 0;
  for (int want = test_rand_int(rng, 0, 50); want > 0; want--) {
    int piece = test_rand_int(rng, 0, w->n - 1);
    const char *next = crumbs[test_rand_int(rng, 0, (int)ARRAY_LEN(crumbs) - (w->llama ? 1 : 2))]; /* U+2581 only where it is no blank */
    size_t len = strlen(next);
    if (test_rand_int(rng, 0, 2) == 0 && utf8_valid(w->text[piece], w->len[piece])) next = w->text[piece], len = w->len[piece];
    if (n + len > cap) break;
    memcpy(out + n, next, len);
    n += len;
  }
  return n;
}

static void compare(const struct tokenizer *t, const struct twin *w, uint64_t seed, int rounds) {
  uint64_t rng = seed;
  for (int round = 0; round < rounds; round++) {
    char text[400];
    size_t n = random_text(&rng, w, text, sizeof text);
    bool special = round % 3 == 0;
    struct tok_ids got = {0}, want = {0};
    tok_encode(t, str_of(text, n), special, false, &got);
    twin_cut(w, text, n, special ? CONTROL : USER, &want);
    if (!ids_equal(&got, &want)) {
      print_ids("expected", &want);
      print_ids("found", &got);
      fail_msg("seed %llu round %d: \"%.*s\"", (unsigned long long)seed, round, (int)n, text);
    }
    for (size_t i = 0; i < got.n; i++) assert_true(special || w->kind[got.v[i]] != CONTROL);
    struct buf decoded, streamed;
    struct detok d;
    buf_init(&decoded, 0);
    buf_init(&streamed, 0);
    tok_decode(t, got.v, got.n, false, &decoded);
    expect_text("decoded", &decoded, str_of(text, n));
    detok_init(&d, t, false);
    for (size_t i = 0; i < got.n; i++) detok_push(&d, got.v[i], &streamed);
    detok_finish(&d, &streamed);
    expect_text("streamed", &streamed, str_of(text, n));
    buf_free(&decoded);
    buf_free(&streamed);
    tok_ids_free(&got);
    tok_ids_free(&want);
  }
}

static void against_twin(void **state) {
  (void)state;
  static struct twin w;
  for (uint64_t seed = 1; seed <= 40; seed++) {
    uint64_t rng = seed;
    struct err e = {0};
    make(&w, seed % 2, &rng);
    for (int form = 0; form < 2; form++) {
      struct tokenizer *t = form ? open_gguf(&w, &(struct spoil){0}, &e)
                                 : open_json_value(as_json(&w, seed & 2), seed & 4 ? JSON_ENSURE_ASCII : JSON_INDENT(1), &e);
      if (!t) fail_msg("%s", e.msg);
      assert_int_equal(tok_family(t), w.llama ? TOK_LLAMA3 : TOK_GEMMA4);
      assert_int_equal(tok_vocab(t), w.n);
      for (int i = 0; i < w.n; i++) {
        assert_true(str_eq(tok_piece(t, i), str_of(w.text[i], w.len[i])));
        assert_int_equal(tok_is_control(t, i), w.kind[i] == CONTROL);
      }
      compare(t, &w, seed, 60);
      tok_close(t);
    }
  }
}

static void ends(void **state) {
  (void)state;
  static struct twin w;
  uint64_t rng = 9;
  for (int llama = 0; llama < 2; llama++) {
    struct err e = {0};
    make(&w, llama, &rng);
    struct tokenizer *t = open_gguf(&w, &(struct spoil){.template = "{{ bos_token }}"}, &e);
    if (!t) fail_msg("%s", e.msg);
    int n;
    const int32_t *eog = tok_eog(t, &n);
    static const char *const names[2][3] = {{"<eos>", "<turn|>", "<|tool_response>"}, {"<|end_of_text|>", "<|eot_id|>"}};
    assert_int_equal(n, llama ? 2 : 3);
    for (int i = 0; i < n; i++) assert_int_equal(eog[i], tok_find(t, names[llama][i]));
    assert_int_equal(tok_bos(t), tok_find(t, llama ? "<|begin_of_text|>" : "<bos>"));
    assert_true(str_is(tok_chat_template(t), "{{ bos_token }}"));
    assert_int_equal(tok_find(t, "<0x41>"), llama ? -1 : byte_piece(&w, 'A'));
    /* one BOS, whether the text spells it or not */
    const char *bos = llama ? "<|begin_of_text|>a" : "<bos>a";
    for (int special = 0; special < 2; special++) {
      struct tok_ids ids = {0};
      tok_encode(t, str_c(special ? bos : "a"), special, true, &ids);
      assert_int_equal(ids.n, 2);
      assert_int_equal(ids.v[0], tok_bos(t));
      tok_ids_free(&ids);
    }
    tok_close(t);
  }
}

/* Text behind a control token is encoded as if it stood alone: no blank appears or disappears. */
static void after_a_marker(void **state) {
  (void)state;
  static struct twin w;
  static const char *const texts[] = {"", " ", "  ", "\n", " a", "  a", "a ", "\t\t\t\t\t\ta", "\r\n\r\n a", "\n\nthe"};
  uint64_t rng = 15;
  for (int family = 0; family < 3; family++) {
    struct err e = {0};
    make(&w, family == 2, &rng);
    struct tokenizer *t = family ? open_gguf(&w, &(struct spoil){0}, &e) : toy_tokenizer("gemma3-text-tiny");
    if (!t) fail_msg("%s", e.msg);
    struct str marker = tok_piece(t, tok_bos(t));
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
      struct tok_ids alone = {0}, behind = {0};
      struct buf text, decoded;
      buf_init(&text, 0);
      buf_init(&decoded, 0);
      buf_append(&text, marker.p, marker.n);
      buf_puts(&text, texts[i]);
      tok_ids_push(&alone, tok_bos(t));
      tok_encode(t, str_c(texts[i]), false, false, &alone);
      tok_encode(t, str_of(text.data, text.len), true, false, &behind);
      assert_true(ids_equal(&alone, &behind));
      tok_decode(t, behind.v, behind.n, true, &decoded);
      expect_text("decoded", &decoded, str_c(texts[i]));
      buf_free(&text);
      buf_free(&decoded);
      tok_ids_free(&alone);
      tok_ids_free(&behind);
    }
    tok_close(t);
  }
}

static void refused_gguf(void **state) {
  (void)state;
  static struct twin w;
  static const struct {
    bool llama;
    struct spoil spoil;
    const char *part;
  } cases[] = {{false, {.no_merges = true}, "tokenizer.ggml.merges is missing"},
               {true, {.no_merges = true}, "tokenizer.ggml.merges is missing"},
               {false, {.merge = "ab"}, "element 2: expected two pieces"},
               {true, {.merge = " ab"}, "element 2: expected two pieces"},
               {false, {.merge = "qq zz"}, "merges[2]: expected two pieces"},
               {true, {.merge = "a \xE5\xAD\x97"}, "merges[2]: expected two pieces"},
               {true, {.bad_spelling = true}, "piece 300: expected a spelling with one character for each byte"},
               {true, {.pre = "gpt-2"}, "pre \"gpt-2\""},
               {true, {.model = "bert"}, "\"bert\""},
               {false, {.model = "llama", .arch = "llama"}, "\"llama\""}};
  uint64_t rng = 3;
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct err e = {0};
    do make(&w, cases[i].llama, &rng);
    while (w.n_merges < 3 || w.n < 310);
    struct tokenizer *t = open_gguf(&w, &cases[i].spoil, &e);
    if (t) fail_msg("accepted what should be refused for: %s", cases[i].part);
    if (!strstr(e.msg, cases[i].part)) fail_msg("expected a message with \"%s\", found \"%s\"", cases[i].part, e.msg);
  }
  static const struct spoil kinds[] = {{.model = "llama", .pre = "gemma4", .arch = "gemma4"}, {.model = "llama", .arch = "gemma4"}};
  for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
    struct err e = {0};
    make(&w, false, &rng);
    struct tokenizer *t = open_gguf(&w, &kinds[i], &e);
    if (!t) fail_msg("%s", e.msg);
    assert_int_equal(tok_family(t), TOK_GEMMA4);
    tok_close(t);
  }
}

static void refused_json(void **state) {
  (void)state;
  static struct twin w;
  uint64_t rng = 4;
  static const struct {
    const char *key, *value;
  } llama[] = {{"pre_tokenizer", "null"}, {"pre_tokenizer", "{\"pretokenizers\":[]}"}, {"pre_tokenizer", "{\"type\":\"ByteLevel\"}"}};
  for (size_t i = 0; i < ARRAY_LEN(llama); i++) {
    struct err e = {0};
    make(&w, true, &rng);
    json_t *root = as_json(&w, false);
    json_object_set_new(root, llama[i].key, json_loads(llama[i].value, JSON_DECODE_ANY, NULL));
    assert_null(open_json_value(root, 0, &e));
    assert_non_null(strstr(e.msg, "Llama 3"));
  }
  /* the list of merges is read by our own hand */
  static const char *const lists[] = {"[\"\\u\"]", "[\"\\ud800 a\"]",  "[\"\\udc00 a\"]", "[\"a\nb\"]",   "[\"a b\" \"a b\"]",
                                      "[\"a b\"",  "[[\"a\",\"b\"],]", "[\"a b\"}",       "[\"a b\\x\"]", "[{}]",
                                      "[\"a b"};
  make(&w, false, &rng);
  for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
    struct err e = {0};
    json_t *root = as_json(&w, false);
    json_object_set_new(json_object_get(root, "model"), "merges", json_string("HERE"));
    char *text = json_dumps(root, 0), *here = strstr(text, "\"HERE\"");
    struct buf b;
    buf_init(&b, 0);
    buf_append(&b, text, (size_t)(here - text));
    buf_puts(&b, lists[i]);
    buf_puts(&b, here + 6);
    struct tokenizer *t = tok_from_json(b.data, b.len, "made.json", &e);
    if (t) fail_msg("accepted %s", lists[i]);
    assert_true(e.code != ERR_NONE && e.msg[0]);
    buf_free(&b);
    free(text);
    json_decref(root);
  }
}

static void template_files(void **state) {
  (void)state;
  static struct twin w;
  uint64_t rng = 6;
  struct err e = {0};
  make(&w, false, &rng);
  json_t *root = as_json(&w, false);
  char *text = json_dumps(root, 0);
  test_write("tokenizer.json", text, strlen(text));
  free(text);
  json_decref(root);
  static const struct {
    const char *file, *data, *want; /* want NULL: refused */
  } steps[] = {{"config.json", "{\"model_type\":\"gemma4\"}", ""},
               {"chat_template.json", "{\"chat_template\":\"oldest\"}", "oldest"},
               {"tokenizer_config.json", "{\"chat_template\":null}", "oldest"},
               {"tokenizer_config.json", "{}", "oldest"},
               {"tokenizer_config.json", "{\"chat_template\":\"older \\u00e9\"}", "older \xC3\xA9"},
               {"tokenizer_config.json",
                "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"no\"},{\"name\":\"default\",\"template\":\"yes\"}]}", "yes"},
               {"tokenizer_config.json", "{\"chat_template\":7}", NULL},
               {"tokenizer_config.json", "{", NULL},
               {"chat_template.jinja", "\xFF", NULL},
               {"chat_template.jinja", "{# newest #}\n", "{# newest #}\n"}};
  for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
    test_write(steps[i].file, steps[i].data, strlen(steps[i].data));
    e = (struct err){0};
    struct tokenizer *t = tok_open(test_tmpdir(), &e);
    if (!steps[i].want) {
      assert_null(t);
      assert_non_null(strstr(e.msg, steps[i].file));
      continue;
    }
    if (!t) fail_msg("%s", e.msg);
    if (!str_is(tok_chat_template(t), steps[i].want)) fail_msg("step %zu: expected \"%s\"", i, steps[i].want);
    tok_close(t);
  }
}

/* The small vocabularies of the test models: nothing in them says which family they are but config.json and the keys of the GGUF. */
static void toys(void **state) {
  (void)state;
  static const char *const names[] = {"gemma4-dense-tiny", "gemma4-e-tiny", "gemma4-moe-tiny", "gemma4-12b-tiny"};
  int n = 0;
  for (size_t i = 0; i < ARRAY_LEN(names); i++) {
    char path[200];
    struct err e = {0};
    snprintf(path, sizeof path, "golden/%s", names[i]);
    if (access(test_path(path), R_OK) != 0) continue;
    struct tokenizer *a = tok_open(test_path(path), &e), *b = NULL;
    if (!a) fail_msg("%s", e.msg);
    assert_int_equal(tok_family(a), TOK_GEMMA4);
    strcat(path, "/model-q8_0.gguf");
    if (access(test_path(path), R_OK) == 0 && !(b = tok_open(test_path(path), &e))) fail_msg("%s", e.msg);
    static const char *const texts[] = {"the cat\n\n sat", "  ee <bos> ", "\xF0\x9F\x98\x80 te he", ""};
    for (size_t k = 0; b && k < ARRAY_LEN(texts); k++) {
      struct tok_ids x = {0}, y = {0};
      tok_encode(a, str_c(texts[k]), k & 1, true, &x);
      tok_encode(b, str_c(texts[k]), k & 1, true, &y);
      assert_true(ids_equal(&x, &y));
      tok_ids_free(&x);
      tok_ids_free(&y);
    }
    tok_close(a);
    tok_close(b);
    n++;
  }
  if (!n) {
    print_message("no gemma4-*-tiny in tests/golden: skipped\n");
    skip();
  }
}

/* Ten times the text is at most twelve times the work, on a stack of 256 KiB. */
static void linear(void **state) {
  (void)state;
#ifdef CYGNET_DEBUG
  static const char *const units[] = {
      "Z", "a", " ", "\n", "\xF0\x9F\x98\x80", "ab", "<|", "<|turn", " \n", "'", "\xE5\xAD\x97", "7", "<|begin_of_text", "\r\n ", "a b'"};
  static struct twin w;
  for (int family = 0; family < 3; family++) {
    struct err e = {0};
    uint64_t rng = 12;
    make(&w, family == 2, &rng);
    struct tokenizer *t = family ? open_json_value(as_json(&w, false), 0, &e) : toy_tokenizer("gemma3-text-tiny");
    if (!t) fail_msg("%s", e.msg);
    for (size_t k = 0; k < ARRAY_LEN(units); k++) {
      double steps[2];
      for (int size = 0; size < 2; size++) {
        struct buf text;
        buf_init(&text, 0);
        while (text.len < (size ? 300000 : 30000)) buf_puts(&text, units[k]);
        struct job job = {.tok = t, .text = str_of(text.data, text.len), .special = k & 1};
        run_small_stack(&job);
        steps[size] = (double)job.steps;
        tok_ids_free(&job.ids);
        buf_free(&text);
      }
      if (steps[1] > 12 * steps[0])
        fail_msg("family %d, \"%s\": %.0f steps, ten times the text %.0f", family, units[k], steps[0], steps[1]);
      assert_true(steps[1] > 300000 / 16);
    }
    tok_close(t);
  }
#else
  print_message("steps are counted in debug builds only: skipped\n");
  skip();
#endif
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(against_twin), cmocka_unit_test(ends),           cmocka_unit_test(after_a_marker), cmocka_unit_test(refused_gguf),
    cmocka_unit_test(refused_json), cmocka_unit_test(template_files), cmocka_unit_test(toys),           cmocka_unit_test(linear),
};
TEST_MAIN(tests)
