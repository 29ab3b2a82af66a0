/* t_chat_media.c — pictures and sounds in conversations: each family's wrapping, order, what is refused; and text without turns. */
#include "t_chat.h"

enum { PLACEHOLDER = 900001, BEGIN, END, SOUND, SOUND_BEGIN, SOUND_END }; /* ids that no vocabulary here has */

static const struct chat_wrapping gemma3_image = {BEGIN, PLACEHOLDER, END, true}, gemma4_image = {BEGIN, PLACEHOLDER, END, false},
                                  gemma4_audio = {SOUND_BEGIN, SOUND, SOUND_END, false}, llama_image = {-1, PLACEHOLDER, -1, false};

/* --- the published lines ------------------------------------------------------------------------------------------------------------- */

struct tally {
  const struct tokenizer *tok;
  enum chat_template template;
  struct chat_wrapping image, audio;
  int compared, refused;
};

static bool is_marker(enum tok_family f, int64_t id, const struct chat_wrapping **w, const struct tally *t) {
  const char *spelling = released_spelling(f, id);
  bool image = spelling && (!strcmp(spelling, "<|image|>") || (f == TOK_GEMMA3 && !strcmp(spelling, "<start_of_image>"))),
       audio = spelling && !strcmp(spelling, "<|audio|>");
  *w = image ? &t->image : &t->audio;
  return image || audio;
}

/* The published segments with each marker replaced as the processors do it. */
static void expect_segments(const struct tally *t, const char *name, const struct chat_rendered *r, const json_t *segments) {
  struct tok_ids want = {0}, found = {0};
  struct buf text;
  buf_init(&text, 0);
  for (size_t i = 0; i <= json_array_size(segments); i++) {
    const json_t *s = json_array_get(segments, i);
    const struct chat_wrapping *w = NULL;
    if (json_is_string(s)) {
      buf_puts(&text, json_string_value(s));
      continue;
    }
    bool media = s && is_marker(tok_family(t->tok), json_integer_value(s), &w, t);
    if (media && w->newlines) buf_puts(&text, "\n\n");
    tok_encode(t->tok, str_of(buf_cstr(&text), text.len), false, false, &want);
    buf_clear(&text);
    if (media) {
      if (w->begin >= 0) tok_ids_push(&want, w->begin);
      tok_ids_push(&want, w->placeholder);
      if (w->end >= 0) tok_ids_push(&want, w->end);
      if (w->newlines) buf_puts(&text, "\n\n");
    } else if (s) {
      tok_ids_push(&want, tok_find(t->tok, released_spelling(tok_family(t->tok), json_integer_value(s))));
    }
  }
  chat_ids(t->tok, r, &found);
  if (found.n != want.n || memcmp(found.v, want.v, want.n * sizeof *want.v)) fail_msg("%s: ids differ", name);
  tok_ids_free(&want);
  tok_ids_free(&found);
  buf_free(&text);
}

static bool has_kind(const json_t *messages, const char *what) {
  char *text = json_dumps(messages, 0);
  bool found = strstr(text, what) != NULL;
  free(text);
  return found;
}

static void published_line(const json_t *line, void *ctx) {
  struct tally *t = ctx;
  const char *name = json_string_value(json_object_get(line, "name"));
  const json_t *messages = json_object_get(line, "messages");
  bool media = has_kind(messages, "\"type\": \"image") || has_kind(messages, "\"type\": \"input_image") || has_kind(messages, "audio");
  if (!media || has_kind(messages, "\"type\": \"video") || json_is_string(json_object_get(line, "error"))) return;
  struct chat_options o = line_options(line, t->template);
  struct chat_rendered r;
  struct err e = {0};
  o.allow_media = false;
  o.image = &t->image;
  o.audio = t->audio.placeholder >= 0 ? &t->audio : NULL;
  if (chat_render(t->tok, messages, json_object_get(line, "tools"), &o, &r, &e)) {
    if (!strstr(e.msg, "leaves this part out") && !strstr(e.msg, "text only")) fail_msg("%s: %s", name, e.msg);
    t->refused++;
    return;
  }
  expect_segments(t, name, &r, json_object_get(line, "segments"));
  chat_rendered_free(&r);
  t->compared++;
}

static void published(const char *file, enum tok_family f, struct tally t, int at_least) {
  struct tokenizer *tok = made_up_tokenizer(f);
  t.tok = tok;
  each_line(file, published_line, &t);
  print_message("%s: %d with pictures or sounds, %d refused\n", file, t.compared, t.refused);
  assert_true(t.compared >= at_least);
  tok_close(tok);
}

static void published_lines(void **state) {
  (void)state;
  const struct chat_wrapping none = {-1, -1, -1, false};
  published("chat_gemma3.jsonl", TOK_GEMMA3, (struct tally){.template = CHAT_GEMMA3, .image = gemma3_image, .audio = none}, 3);
  published("chat_gemma4.jsonl", TOK_GEMMA4, (struct tally){.template = CHAT_GEMMA4_LARGE, .image = gemma4_image, .audio = gemma4_audio},
            3);
  published("chat_llama32v.jsonl", TOK_LLAMA3, (struct tally){.template = CHAT_LLAMA32V, .image = llama_image, .audio = none}, 3);
}

/* With the released vocabulary: the ids that the released processor makes, each run of rows as one. */
struct expansion {
  const struct tokenizer *tok;
  enum chat_template template;
  struct chat_wrapping image, audio;
  int compared;
};

static void expanded_line(const json_t *line, void *ctx) {
  struct expansion *x = ctx;
  const char *name = json_string_value(json_object_get(line, "name"));
  const json_t *want = json_object_get(line, "expanded_ids");
  if (!want || has_kind(json_object_get(line, "messages"), "\"type\": \"video")) return;
  struct chat_options o = line_options(line, x->template);
  struct chat_rendered r;
  struct tok_ids ids = {0};
  struct err e = {0};
  o.image = &x->image;
  o.audio = x->audio.placeholder >= 0 ? &x->audio : NULL;
  if (chat_render(x->tok, json_object_get(line, "messages"), json_object_get(line, "tools"), &o, &r, &e)) fail_msg("%s: %s", name, e.msg);
  chat_ids(x->tok, &r, &ids);
  expect_ids(name, &ids, want);
  tok_ids_free(&ids);
  chat_rendered_free(&r);
  x->compared++;
}

static void expanded_as_the_processor_does(void **state) {
  (void)state;
  struct expansion x = {
      .tok = sample_tokenizer(), .template = CHAT_GEMMA3, .image = {255999, 262144, 256000, true}, .audio = {.placeholder = -1}};
  each_line("chat_gemma3.jsonl", expanded_line, &x);
  assert_true(x.compared >= 3);
}

static void expanded_with_the_vocabulary_of_gemma4(void **state) {
  (void)state;
  struct tokenizer *t = real_tokenizer("ggml-vocab-gemma-4.gguf");
  struct expansion x = {
      .tok = t, .template = CHAT_GEMMA4_LARGE, .image = {255999, 258880, 258882, false}, .audio = {256000, 258881, 258883, false}};
  each_line("chat_gemma4.jsonl", expanded_line, &x);
  assert_true(x.compared >= 3);
  tok_close(t);
}

/* --- by hand ------------------------------------------------------------------------------------------------------------------------- */

#define IMAGE       "{\"type\":\"image_url\"}"
#define AUDIO       "{\"type\":\"input_audio\"}"
#define TEXT(t)     "{\"type\":\"text\",\"text\":\"" t "\"}"
#define USER(parts) "{\"role\":\"user\",\"content\":[" parts "]}"

/* Ids as a line: names for control tokens and placeholders, text between. */
static char *shown(const struct tokenizer *t, const struct chat_rendered *r) {
  static const char *const names[] = {"[P]", "[B]", "[E]", "[S]", "[SB]", "[SE]"};
  struct buf out;
  buf_init(&out, 0);
  for (int i = 0; i < r->n_segments; i++) {
    const struct chat_segment *s = &r->segments[i];
    if (s->id >= PLACEHOLDER) buf_puts(&out, names[s->id - PLACEHOLDER]);
    else if (s->id >= 0) buf_append(&out, tok_piece(t, s->id).p, tok_piece(t, s->id).n);
    else buf_append(&out, s->text, s->n);
  }
  buf_append(&out, "", 0);
  return buf_take(&out, NULL);
}

static const struct {
  enum tok_family family;
  enum chat_template template;
  bool tools;
  const char *messages, *want, *error; /* part of the text; part of the message */
} cases[] = {
    {TOK_GEMMA3, CHAT_GEMMA3, false, "[" USER(TEXT("a") "," IMAGE "," IMAGE "," TEXT("b")) "]",
     "<start_of_turn>user\na\n\n[B][P][E]\n\n\n\n[B][P][E]\n\nb<end_of_turn>", NULL},
    {TOK_GEMMA3, CHAT_GEMMA3, false, "[" USER(AUDIO) "]", NULL, "messages[0].content[0]: expected text, this model takes no sound"},
    {TOK_GEMMA3, CHAT_GEMMA3, false, "[{\"role\":\"system\",\"content\":[" IMAGE "]}," USER(TEXT("a")) "]", NULL, "messages[0].content[0]"},
    {TOK_GEMMA3, CHAT_GEMMA3, true,
     "[" USER(TEXT("a")) ",{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"f\"}}]},"
                         "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":[" IMAGE "," TEXT("seen") "]}]",
     "Result of f:\nseen\n\n[B][P][E]\n\n<end_of_turn>", NULL},
    {TOK_GEMMA4, CHAT_GEMMA4_SMALL, false, "[" USER(IMAGE "," TEXT(" a ") "," AUDIO "," IMAGE) "]",
     "<|turn>user\n[B][P][E]a[SB][S][SE][B][P][E]<turn|>", NULL},
    {TOK_GEMMA4, CHAT_GEMMA4_LARGE, false, "[" USER("{\"type\":\"video_url\"}") "]", NULL, "this model takes no video"},
    {TOK_GEMMA4, CHAT_GEMMA4_LARGE, false,
     "[" USER(TEXT("a")) ",{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"f\"}}]},"
                         "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":[" IMAGE "," TEXT("seen") "]}]",
     "seen<|\"|>}<tool_response|>[B][P][E]", NULL},
    {TOK_GEMMA4, CHAT_GEMMA4_LARGE, false, /* the results stand before the message's own pictures: their order would turn round */
     "[" USER(TEXT("a")) ",{\"role\":\"assistant\",\"content\":[" IMAGE "],\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\","
                         "\"function\":{\"name\":\"f\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":[" IMAGE "]}]",
     NULL, "messages[1].content[0]: expected text only in a message whose calls"},
    {TOK_GEMMA4, CHAT_GEMMA4_LARGE, false, "[" USER(TEXT("a")) ",{\"role\":\"tool\",\"content\":[" IMAGE "]}]", NULL,
     "messages[1].content[0]: expected text, the template of this model leaves this part out"},
    {TOK_LLAMA3, CHAT_LLAMA32V, false, "[" USER(IMAGE "," TEXT(" a")) "]", "<|end_header_id|>\n\n[P] a<|eot_id|>", NULL},
    {TOK_LLAMA3, CHAT_LLAMA32V, false, "[{\"role\":\"system\",\"content\":\" Be brief. \"}," USER(IMAGE "," TEXT("a")) "]",
     "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n[P]a",
     NULL},
    {TOK_LLAMA3, CHAT_LLAMA32V, false, "[" USER(IMAGE "," AUDIO) "]", NULL,
     "messages[0].content[1]: expected text, this model takes no sound"},
};

static void rendered_by_hand(void **state) {
  (void)state;
  struct tokenizer *toks[3] = {0};
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    enum tok_family f = cases[i].family;
    if (!toks[f]) toks[f] = made_up_tokenizer(f);
    json_t *messages = json_loads(cases[i].messages, 0, NULL);
    assert_non_null(messages);
    struct chat_options o = {.template = cases[i].template,
                             .image = f == TOK_GEMMA3   ? &gemma3_image
                                      : f == TOK_GEMMA4 ? &gemma4_image
                                                        : &llama_image,
                             .audio = f == TOK_GEMMA4 ? &gemma4_audio : NULL,
                             .describe_tools = cases[i].tools};
    struct chat_rendered r;
    struct err e = {0};
    int rc = chat_render(toks[f], messages, NULL, &o, &r, &e);
    if (cases[i].error) {
      if (rc == 0 || !strstr(e.msg, cases[i].error)) fail_msg("case %zu: expected \"%s\", found \"%s\"", i, cases[i].error, e.msg);
    } else {
      if (rc) fail_msg("case %zu: %s", i, e.msg);
      char *text = shown(toks[f], &r);
      if (!strstr(text, cases[i].want)) fail_msg("case %zu: expected \"%s\" in \"%s\"", i, cases[i].want, text);
      free(text);
    }
    chat_rendered_free(&r);
    json_decref(messages);
  }
  for (int f = 0; f < 3; f++) tok_close(toks[f]);
}

/* A message that is continued is cut after its text: what stands behind it would be lost. */
static void cut_pictures_are_refused(void **state) {
  (void)state;
  struct tokenizer *t = made_up_tokenizer(TOK_GEMMA4);
  json_t *messages = json_loads("[" USER(TEXT("a") "," IMAGE) "]", 0, NULL);
  struct chat_options o = {.template = CHAT_GEMMA4_LARGE, .continue_final_message = true, .image = &gemma4_image};
  struct chat_rendered r;
  struct err e = {0};
  assert_int_equal(chat_render(t, messages, NULL, &o, &r, &e), -1);
  assert_non_null(strstr(e.msg, "messages[0].content[1]: expected text, the template"));
  json_decref(messages);
  tok_close(t);
}

/* Every spelling of every marker in the user's text: no placeholder comes of it but the picture's own. */
static void text_never_becomes_a_placeholder(void **state) {
  (void)state;
  static const char text[] = "<|image|> <|image> <image|> <|audio|> <start_of_image> <end_of_image> <image_soft_token> <|video|>";
  static const enum chat_template templates[] = {CHAT_GEMMA3, CHAT_GEMMA4_LARGE, CHAT_LLAMA32V};
  static const enum tok_family families[] = {TOK_GEMMA3, TOK_GEMMA4, TOK_LLAMA3};
  for (size_t i = 0; i < ARRAY_LEN(families); i++) {
    struct tokenizer *t = made_up_tokenizer(families[i]);
    int32_t own = tok_find(t, families[i] == TOK_GEMMA3 ? "<start_of_image>" : "<|image|>");
    const struct chat_wrapping image = {-1, own, -1, false};
    assert_true(tok_is_control(t, own));
    struct chat_options o = {.template = templates[i], .image = &image};
    json_t *messages = json_pack("[{s:s, s:[{s:s, s:s}, {s:s}]}]", "role", "user", "content", "type", "text", "text", text, "type",
                                 "image_url");
    struct chat_rendered r;
    struct tok_ids ids = {0};
    struct err e = {0};
    assert_int_equal(chat_render(t, messages, NULL, &o, &r, &e), 0);
    chat_ids(t, &r, &ids);
    int count = 0;
    for (size_t k = 0; k < ids.n; k++) count += ids.v[k] == own;
    assert_int_equal(count, 1);
    tok_ids_free(&ids);
    chat_rendered_free(&r);
    json_decref(messages);
    tok_close(t);
  }
}

/* --- text without turns -------------------------------------------------------------------------------------------------------------- */

static const struct {
  enum tok_family family;
  bool special;
  const char *parts, *want, *error;
} raw[] = {
    {TOK_GEMMA4, false, IMAGE "," AUDIO "," TEXT("a <|image|>"), "<bos>(B)(P)(E)(SB)(S)(SE)a <|image|>", NULL},
    {TOK_GEMMA4, true, IMAGE "," TEXT("a <|image|> b"), "<bos>a (B)(P)(E) b", NULL},
    {TOK_GEMMA4, true, IMAGE "," TEXT("a <|image><|image|><image|> b"), "<bos>a (B)(P)(E) b", NULL},
    {TOK_GEMMA4, true, IMAGE "," IMAGE "," TEXT("<|image|><|image|>"), "<bos>(B)(P)(E)(B)(P)(E)", NULL},
    {TOK_GEMMA4, true, IMAGE "," TEXT("<|image><|image|><|image|><image|>"), "<bos>(B)(P)(E)", NULL},
    {TOK_GEMMA4, true, IMAGE "," AUDIO "," TEXT("x <|audio|>"), "<bos>(B)(P)(E)x (SB)(S)(SE)", NULL},
    {TOK_GEMMA4, true, IMAGE "," TEXT("<|image|> and <|image|>"), NULL,
     "expected a marker for each of the 1 pictures, or none at all, found 2"},
    {TOK_GEMMA4, true, TEXT("<|image|>"), NULL, "expected a marker for each of the 0 pictures"},
    {TOK_GEMMA3, true, IMAGE "," TEXT("a <start_of_image> b"), "<bos>a \n\n(B)(P)(E)\n\n b", NULL},
    {TOK_GEMMA3, false, IMAGE "," TEXT("a"), "<bos>\n\n(B)(P)(E)\n\na", NULL},
    {TOK_LLAMA3, true, IMAGE "," TEXT("a"), "<|begin_of_text|>(P)a", NULL},
};

static void raw_texts(void **state) {
  (void)state;
  struct tokenizer *toks[3] = {0};
  for (size_t i = 0; i < ARRAY_LEN(raw); i++) {
    enum tok_family f = raw[i].family;
    if (!toks[f]) toks[f] = made_up_tokenizer(f);
    const struct tokenizer *t = toks[f];
    bool three = f == TOK_GEMMA3;
    const char *spelling = three ? NULL : "<|image|>"; /* Gemma 3's made-up vocabulary has no word for the rows themselves */
    const struct chat_wrapping image = {tok_find(t, three ? "<start_of_image>" : "<|image>"),
                                        spelling ? tok_find(t, spelling) : PLACEHOLDER, tok_find(t, three ? "<end_of_image>" : "<image|>"),
                                        three},
                               audio = {tok_find(t, "<|audio>"), tok_find(t, "<|audio|>"), tok_find(t, "<audio|>"), false},
                               bare = {-1, image.placeholder, -1, false};
    const struct chat_wrapping *used = f == TOK_LLAMA3 ? &bare : &image;
    struct chat_options o = {.image = used, .audio = f == TOK_GEMMA4 ? &audio : NULL};
    char *json = NULL;
    assert_true(asprintf(&json, "[{\"role\":\"user\",\"content\":[%s]}]", raw[i].parts) > 0);
    json_t *messages = json_loads(json, 0, NULL);
    assert_non_null(messages);
    struct chat_rendered r;
    struct err e = {0};
    int rc = chat_raw(t, messages, raw[i].special, &o, &r, &e);
    if (raw[i].error) {
      if (rc == 0 || !strstr(e.msg, raw[i].error)) fail_msg("case %zu: expected \"%s\", found \"%s\"", i, raw[i].error, e.msg);
    } else {
      if (rc) fail_msg("case %zu: %s", i, e.msg);
      const struct {
        int32_t id;
        const char *name;
      } names[] = {{used->begin, "(B)"},  {used->placeholder, "(P)"}, {used->end, "(E)"},
                   {audio.begin, "(SB)"}, {audio.placeholder, "(S)"}, {audio.end, "(SE)"}};
      struct tok_ids ids = {0}, want = {0};
      chat_ids(t, &r, &ids);
      for (const char *p = raw[i].want; *p;) {
        size_t n = strcspn(p, "("), k = 0;
        tok_encode(t, str_of(p, n), p == raw[i].want, false, &want);
        p += n;
        if (!*p) break;
        while (strncmp(p, names[k].name, strlen(names[k].name))) k++;
        tok_ids_push(&want, names[k].id);
        p += strlen(names[k].name);
      }
      if (ids.n != want.n || memcmp(ids.v, want.v, ids.n * sizeof *ids.v)) fail_msg("case %zu: ids differ", i);
      tok_ids_free(&ids);
      tok_ids_free(&want);
    }
    chat_rendered_free(&r);
    json_decref(messages);
    free(json);
  }
  for (int f = 0; f < 3; f++) tok_close(toks[f]);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(published_lines),
    cmocka_unit_test(expanded_as_the_processor_does),
    cmocka_unit_test(expanded_with_the_vocabulary_of_gemma4),
    cmocka_unit_test(rendered_by_hand),
    cmocka_unit_test(cut_pictures_are_refused),
    cmocka_unit_test(text_never_becomes_a_placeholder),
    cmocka_unit_test(raw_texts),
};
TEST_MAIN(tests)
