/* t_media — pictures and sounds over HTTP, with the scripted engine: every dialect, every way in, limits, errors that say where,
 * transcriptions. */
#include "fake.h"

#include <sys/stat.h>

#include "server/media.h"

/* "IMG a 4" and the like in base 64. */
#define A4   "SU1HIGEgNA=="     /* IMG a 4 */
#define B2   "SU1HIGIgMg=="     /* IMG b 2 */
#define C999 "SU1HIGMgOTk5"     /* IMG c 999 */
#define S3   "U05EIHMgMw=="     /* SND s 3 */
#define BAD  "bm8gcGljdHVyZQ==" /* no picture */
#define BOMB "Qk9NQg=="         /* BOMB */

static struct fixture *start(const struct media_limits *l) {
  struct serve_options o = {.media = l};
  fixture_sees = fixture_hears = fixture_budgets = true;
  return fixture_start(&o, 4, 16);
}

/* Status and body of one request; the body must have `has`. */
static void expect(struct fixture *f, const char *path, const char *body, int status, const char *has) {
  struct answer a;
  client_ask(f->port, path, body, &a);
  if (a.status != status || (has && !strstr(buf_cstr(&a.body), has)))
    fail_msg("%s %.300s: expected %d and \"%s\", found %d: %s", path, body, status, has ? has : "", a.status, buf_cstr(&a.body));
  answer_free(&a);
}

#define CHAT(parts) "{\"messages\":[{\"role\":\"user\",\"content\":[" parts "]}]}"
#define TEXT(t)     "{\"type\":\"text\",\"text\":\"" t "\"}"
#define IMAGE(u)    "{\"type\":\"image_url\",\"image_url\":{\"url\":\"" u "\"}}"
#define SOUND(d)    "{\"type\":\"input_audio\",\"input_audio\":{\"data\":\"" d "\",\"format\":\"wav\"}}"
static const char chat[] = "/v1/chat/completions";

/* ---- ways in -------------------------------------------------------------------------------------------------------------------- */

static void chat_takes_every_spelling(void **state) {
  (void)state;
  struct fixture *f = start(NULL);
  static const char *const one[] = {IMAGE("data:image/png;base64," A4),
                                    IMAGE("data:image/jpeg;base64," A4),
                                    IMAGE("data:;BASE64," A4),
                                    IMAGE(A4),
                                    IMAGE("data:,IMG%20a%204"),
                                    IMAGE("data:image/png;base64,SU1H IGEg\\nNA"),
                                    "{\"type\":\"image_url\",\"image_url\":\"" A4 "\"}",
                                    "{\"type\":\"image_url\",\"image_url\":{\"url\":\"" A4 "\",\"detail\":\"auto\"}}",
                                    "{\"type\":\"input_image\",\"image_url\":\"" A4 "\"}",
                                    "{\"type\":\"image\",\"image\":\"" A4 "\"}",
                                    "{\"type\":\"image\",\"url\":\"" A4 "\"}"};
  for (size_t i = 0; i < ARRAY_LEN(one); i++) {
    char body[600];
    snprintf(body, sizeof body, CHAT(TEXT("!media") ",%s"), one[i]);
    expect(f, chat, body, 200, "\"content\":\"a/4 at i13\"");
  }
  expect(f, chat, CHAT(TEXT("!media") "," IMAGE(A4) "," SOUND(S3) "," IMAGE(B2) "," TEXT("x") "," IMAGE(A4)), 200,
         "\"content\":\"a/4 s/3 b/2 a/4 at i13,s14,i15,i17\"");
  expect(f, chat,
         CHAT(TEXT("!media") ","
                             "{\"type\":\"audio_url\",\"audio_url\":{\"url\":\"data:audio/x;base64," S3 "\"}}"),
         200, "s/3 at s13");
  /* ids in place of messages: the same pictures belong to their placeholders */
  expect(f, chat,
         "{\"input_ids\":[33,109,101,100,105,97,300,32,301],\"messages\":[{\"role\":\"user\",\"content\":[" SOUND(S3) "," IMAGE(A4) "]}]}",
         200, "a/4 s/3 at i6,s8");
  expect(f, chat, "{\"input_ids\":[33,300,300],\"messages\":[{\"role\":\"user\",\"content\":[" IMAGE(A4) "]}]}", 400,
         "expected as many pictures as the prompt has placeholders for them, 2, found 1");
  assert_true(becomes(&f->fake.n_media, 0));
  fixture_stop(f);
}

static void usage_counts_rows(void **state) {
  (void)state;
  struct fixture *f = start(NULL);
  /* <bos> <user> 14 characters, a picture, a sound, newline */
  expect(
      f, chat, CHAT(TEXT("!cached=2") "," IMAGE(A4) "," SOUND(S3)), 200,
      "\"usage\":{\"prompt_tokens\":24,\"completion_tokens\":13,\"total_tokens\":37,\"reasoning_tokens\":0,\"prompt_tokens_details\":{\"cached_tokens\":2,"
      "\"image_tokens\":4,\"audio_tokens\":3,\"media\":2,\"media_cached\":1}");
  expect(
      f, "/v1/responses",
      "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"!media\"},{\"type\":\"input_image\",\"image_url\":\"" A4
      "\"}]}]}",
      200, "\"input_tokens\":18,");
  expect(
      f, "/v1/messages",
      "{\"max_tokens\":50,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"!cached=2\"},{\"type\":\"image\",\"source\":{\"type\":\"base64\","
      "\"media_type\":\"image/png\",\"data\":\"" A4 "\"}}]}]}",
      200, "\"input_tokens\":19,");
  expect(
      f, "/v1/messages/count_tokens",
      "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":\"base64\",\"media_type\":\"image/png\",\"data\":\"" A4
      "\"}}]}]}",
      200, "{\"input_tokens\":12}");
  expect(f, "/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":[" IMAGE(B2) "]}]}", 200, "300,300,10],\"count\":10,");
  /* room in the context is counted with rows */
  expect(f, chat, CHAT(IMAGE(C999) "," IMAGE(C999) "," IMAGE(C999) "," IMAGE(C999) "," IMAGE(C999)), 400,
         "your messages resulted in 5003 tokens");
  fixture_stop(f);
}

static void other_dialects(void **state) {
  (void)state;
  struct fixture *f = start(NULL);
  expect(
      f, "/v1/responses",
      "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"!media\"},{\"type\":\"input_image\",\"image_url\":\"" A4
      "\",\"detail\":\"high\"},"
      "{\"type\":\"input_audio\",\"input_audio\":{\"data\":\"" S3 "\",\"format\":\"mp3\"}}]}]}",
      200, "a/4 s/3 at i13,s14");
  expect(
      f, "/v1/messages",
      "{\"max_tokens\":50,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"!media\"},{\"type\":\"image\",\"source\":{\"type\":\"base64\","
      "\"media_type\":\"image/png\",\"data\":\"" A4 "\"}},{\"type\":\"image\",\"source\":{\"type\":\"url\",\"url\":\"data:;base64," B2
      "\"}}]}]}",
      200, "a/4 b/2 at i13,i14");
  /* pictures of results, and turns that follow one another */
  expect(
      f, "/v1/messages",
      "{\"max_tokens\":90,\"messages\":[{\"role\":\"user\",\"content\":\"!media\"},{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":\"base64\","
      "\"media_type\":\"image/png\",\"data\":\"" A4
      "\"}}]},{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\",\"input\":{}}]},"
      "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t\",\"content\":[{\"type\":\"text\",\"text\":\"seen\"},{\"type\":\"image\",\"source\":"
      "{\"type\":\"base64\",\"media_type\":\"image/png\",\"data\":\"" B2 "\"}}]}]}]}",
      200, "a/4 b/2 at i13,i");
  /* SGLang's own */
  expect(f, "/generate", "{\"text\":\"!media\",\"image_data\":\"" A4 "\"}", 200, "\"text\":\"a/4 at i1\"");
  expect(f, "/generate", "{\"text\":\"!media\",\"image_data\":[\"" A4 "\",{\"url\":\"" B2 "\"}],\"audio_data\":\"" S3 "\"}", 200,
         "\"text\":\"a/4 b/2 s/3 at i1,i2,s3\"");
  expect(f, "/generate", "{\"input_ids\":[33,109,101,100,105,97,300,301],\"image_data\":[\"" A4 "\"],\"audio_data\":[\"" S3 "\"]}", 200,
         "a/4 s/3 at i6,s7");
  expect(f, "/generate", "{\"text\":[\"!media\",\"!media\"],\"image_data\":[[\"" A4 "\"],null]}", 200, "\"text\":\"a/4 at i1\"");
  expect(f, "/generate", "{\"text\":\"!media\",\"image_data\":\"" A4 "\"}", 200, "\"prompt_tokens\":11,");
  expect(f, "/generate", "{\"text\":\"!media\",\"image_data\":\"" A4 "\",\"return_logprob\":true,\"logprob_start_len\":10}", 200, NULL);
  expect(f, "/generate", "{\"text\":\"!media\",\"image_data\":\"" A4 "\",\"return_logprob\":true,\"logprob_start_len\":11}", 400,
         "less than the prompt's 11 tokens, found 11");
  expect(f, "/generate", "{\"text\":\"!media\",\"image_data\":\"" A4 "\"}", 200,
         "\"image_tokens\":4,\"audio_tokens\":0,\"media\":1,\"media_cached\":0");
  expect(f, "/generate", "{\"input_ids\":[33,300]}", 400, "expected as many pictures as the prompt has placeholders for them, 1, found 0");
  expect(f, "/generate", "{\"text\":[\"a\",\"b\"],\"image_data\":[\"" A4 "\"]}", 400, "one for each of the 2 prompts");
  expect(f, "/generate", "{\"text\":\"a\",\"image_data\":[\"" A4 "\",\"" BAD "\"]}", 400, "image_data[1]: damaged");
  expect(f, "/v1/completions", "{\"prompt\":[33,300]}", 400, "expected as many pictures");
  expect(f, "/v1/completions", "{\"prompt\":[33,34]}", 200, NULL);
  assert_true(becomes(&f->fake.n_media, 0));
  fixture_stop(f);
}

static void streams_carry_them(void **state) {
  (void)state;
  struct fixture *f = start(NULL);
  expect(f, chat,
         "{\"stream\":true,\"stream_options\":{\"include_usage\":true},\"n\":2,\"messages\":[{\"role\":\"user\",\"content\":[" TEXT(
             "!media") "," IMAGE(A4) "]}]}",
         200, "\"image_tokens\":4,\"audio_tokens\":0,\"media\":1,");
  assert_true(becomes(&f->fake.n_media, 0));
  fixture_stop(f);
}

/* ---- what is refused -------------------------------------------------------------------------------------------------------------- */

static void errors_say_where(void **state) {
  (void)state;
  struct fixture *f = start(NULL);
  static const struct {
    const char *body;
    int status;
    const char *has;
  } cases[] = {
      {CHAT(TEXT("a") "," IMAGE(BAD)), 400,
       "{\"error\":{\"message\":\"messages[0].content[1]: damaged\",\"type\":\"invalid_request_error\",\"param\":\"messages\",\"code\":\"invalid_image\"}}"},
      {CHAT(TEXT("a") "," SOUND(BAD)), 400, "\"code\":\"invalid_audio\""},
      {CHAT(TEXT("a") "," IMAGE(BOMB)), 413, "messages[0].content[1]: too many pixels"},
      {CHAT(IMAGE("")), 400, "messages[0].content[0]: expected a picture"},
      {CHAT(IMAGE("data:;base64,")), 400, "messages[0].content[0]: expected a picture, found nothing"},
      {CHAT(IMAGE("data:;base64,A*")), 400, "messages[0].content[0]: expected base64"},
      {CHAT(IMAGE("data:image/png;base64")), 400, "messages[0].content[0]: expected a comma"},
      {CHAT(IMAGE("http://127.0.0.1/x")), 400, "this server fetches nothing from the web"},
      {CHAT(IMAGE("https://example.org/x.png")), 400, "--media-urls"},
      {CHAT(IMAGE("file:///etc/passwd")), 400, "this server reads no files"},
      {CHAT(IMAGE("/etc/passwd")), 400, "messages[0].content[0]"},
      {CHAT(IMAGE("../../x")), 400, "messages[0].content[0]: expected base64"},
      {CHAT(IMAGE("ftp://x/y")), 400, "expected a data: address, base64, http or https"},
      {CHAT(IMAGE("javascript:alert(1)")), 400, "expected a data: address"},
      {CHAT("{\"type\":\"image_url\"}"), 400, "messages[0].content[0]: expected a picture as a data: address or base64"},
      {CHAT("{\"type\":\"image_url\",\"image_url\":5}"), 400, "messages[0].content[0]"},
      {CHAT("{\"type\":\"image_url\",\"image_url\":{\"url\":\"" A4 "\",\"detail\":\"most\"}}"), 400, "messages[0].content[0].detail"},
      {CHAT("{\"type\":\"input_image\",\"file_id\":\"x\"}"), 400, "nothing is stored"},
      {"{\"max_soft_tokens\":71,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", 400, "expected one of 70, 280, 1120, found 71"},
      {"{\"mm_processor_kwargs\":{\"crop\":1},\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", 400, "mm_processor_kwargs"},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    expect(f, chat, cases[i].body, cases[i].status, cases[i].has);
    expect(f, chat, cases[i].body, cases[i].status, cases[i].has); /* the same once more */
    expect(f, chat, CHAT(TEXT("!media") "," IMAGE(A4)), 200, "a/4");
  }
  expect(
      f, "/v1/responses",
      "{\"input\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"},{\"type\":\"input_image\",\"image_url\":\"" BAD
      "\"}]}]}",
      400, "\"message\":\"input[1].content[1]: damaged\",\"type\":\"invalid_request_error\",\"param\":\"input\"");
  expect(f, "/v1/responses", "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_file\",\"file_data\":\"x\"}]}]}", 400,
         "input[0].content[0]: files are not taken");
  expect(
      f, "/v1/messages",
      "{\"max_tokens\":5,\"system\":\"s\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image\",\"source\":{\"type\":"
      "\"base64\",\"media_type\":\"image/png\",\"data\":\"" BAD "\"}}]}]}",
      400, "\"message\":\"messages[0].content[1]: damaged\"");
  expect(
      f, "/v1/messages",
      "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":\"file\",\"file_id\":\"x\"}}]}]}",
      400, "messages[0].content[0].source.type");
  assert_true(becomes(&f->fake.n_media, 0));
  fixture_stop(f);
}

static void models_that_take_none(void **state) {
  (void)state;
  fixture_sees = fixture_hears = fixture_budgets = false;
  struct fixture *f = fixture_start(NULL, 4, 16);
  expect(f, chat, CHAT(IMAGE(A4)), 400, "messages[0].content[0]: expected text, this model takes no pictures");
  expect(f, chat, CHAT(SOUND(S3)), 400, "messages[0].content[0]: expected text, this model takes no sound");
  expect(f, "/generate", "{\"text\":\"a\",\"image_data\":\"" A4 "\"}", 400, "this model takes no pictures");
  expect(f, chat, "{\"max_soft_tokens\":70,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", 400, "unsupported_parameter");
  struct answer a;
  client_get(f->port, "/v1/models", &a);
  assert_non_null(strstr(buf_cstr(&a.body), "\"supports_vision\":false,\"supports_audio\":false,\"input_modalities\":[\"text\"]"));
  answer_free(&a);
  fixture_stop(f);
  fixture_sees = true;
  f = fixture_start(NULL, 4, 16);
  expect(f, chat, CHAT(SOUND(S3)), 400, "takes no sound");
  client_get(f->port, "/v1/models", &a);
  assert_non_null(strstr(buf_cstr(&a.body), "\"supports_vision\":true,\"supports_audio\":false,\"input_modalities\":[\"text\",\"image\"]"));
  answer_free(&a);
  client_get(f->port, "/get_model_info", &a);
  assert_non_null(strstr(buf_cstr(&a.body), "\"has_image_understanding\":true,\"has_audio_understanding\":false"));
  answer_free(&a);
  client_get(f->port, "/metrics", &a);
  assert_non_null(strstr(buf_cstr(&a.body), "cygnet:media_total"));
  answer_free(&a);
  client_get(f->port, "/server_info", &a);
  assert_non_null(strstr(buf_cstr(&a.body), "\"media\":{\"vision\":\"fake-eye\""));
  answer_free(&a);
  fixture_stop(f);
}

static void budgets_and_detail(void **state) {
  (void)state;
  struct fixture *f = start(NULL);
  static const struct {
    const char *more, *detail, *want;
  } cases[] = {{"", "", "c/999"},
               {"", ",\"detail\":\"low\"", "c/70"},
               {"", ",\"detail\":\"high\"", "c/999"},
               {"\"max_soft_tokens\":280,", "", "c/280"},
               {"\"mm_processor_kwargs\":{\"max_soft_tokens\":70},", ",\"detail\":\"auto\"", "c/70"},
               {"\"max_soft_tokens\":280,", ",\"detail\":\"low\"", "c/70"}};
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    char body[500];
    snprintf(body, sizeof body,
             "{%s\"messages\":[{\"role\":\"user\",\"content\":[" TEXT("!media") ",{\"type\":\"image_url\",\"image_url\":{\"url\":\"" C999
                                                                                "\"%s}}]}]}",
             cases[i].more, cases[i].detail);
    expect(f, chat, body, 200, cases[i].want);
  }
  fixture_stop(f);
}

static void limits_hold(void **state) {
  (void)state;
  const struct media_limits l = {.items = 3, .item_bytes = 64, .total_bytes = 250};
  struct fixture *f = start(&l);
  expect(f, chat, CHAT(IMAGE(B2) "," IMAGE(B2) "," IMAGE(B2) "," IMAGE(B2)), 400,
         "messages[0].content[3]: expected at most 3 pictures and sounds in a request");
  expect(f, "/generate",
         "{\"text\":[\"a\",\"b\"],\"image_data\":[[\"SU1HIGQgMQ==\",\"SU1HIGQgMQ==\"],[\"SU1HIGQgMQ==\",\"SU1HIGQgMQ==\"]]}", 400,
         "at most 3");
  char body[800], long64[300];
  memset(long64, 'Q', sizeof long64 - 1);
  long64[sizeof long64 - 1] = 0;
  snprintf(body, sizeof body, CHAT(IMAGE("%s")), long64);
  expect(f, chat, body, 413, "messages[0].content[0]: expected at most 64 bytes");
  /* b has 200 bytes decoded: two do not fit together, and the next request finds all the room again */
  expect(f, chat, CHAT(IMAGE(B2) "," IMAGE(B2)), 503, "take all the room");
  expect(f, chat, CHAT(IMAGE(B2)), 200, NULL);
  int fd = client_post(f->port, chat, CHAT(TEXT("!hold=100000") "," IMAGE(B2)));
  assert_true(becomes(&f->fake.submits, 2));
  struct answer a;
  client_ask(f->port, chat, CHAT(IMAGE(B2)), &a);
  char value[256];
  assert_int_equal(a.status, 503);
  assert_non_null(answer_header(&a, "Retry-After", value));
  answer_free(&a);
  close(fd);
  assert_true(becomes(&f->fake.n_media, 0));
  expect(f, chat, CHAT(IMAGE(B2)), 200, NULL);
  fixture_stop(f);
}

/* ---- files ---------------------------------------------------------------------------------------------------------------------- */

static void files_below_a_folder(void **state) {
  (void)state;
  char folder[600], path[800], body[1600];
  snprintf(folder, sizeof folder, "%s/media", test_tmpdir());
  assert_int_equal(mkdir(folder, 0700), 0);
  snprintf(path, sizeof path, "%s/sub", folder);
  assert_int_equal(mkdir(path, 0700), 0);
  test_write("outside", "IMG out 1", 9);
  test_write("media/a b", "IMG in 4", 8);
  test_write("media/sub/c", "IMG sub 4", 9);
  const char *links[][2] = {
      {"inner", "sub/c"}, {"outer", "../outside"}, {"absolute", "/etc/passwd"}, {"folder", ".."}, {"proc", "/proc/self/root/etc/passwd"}};
  for (size_t i = 0; i < ARRAY_LEN(links); i++) {
    snprintf(path, sizeof path, "%s/%s", folder, links[i][0]);
    assert_int_equal(symlink(links[i][1], path), 0);
  }
  snprintf(path, sizeof path, "%s/pipe", folder);
  assert_int_equal(mkfifo(path, 0600), 0);
  const struct media_limits l = {.path = folder, .item_bytes = 9};
  struct fixture *f = start(&l);
  static const struct {
    const char *tail, *want; /* NULL: refused */
  } files[] = {{"/a%20b", "in/4"},
               {"/sub/c", "sub/4"},
               {"//sub//c", "sub/4"},
               {"/inner", NULL},
               {"/outer", NULL},
               {"/absolute", NULL},
               {"/folder/outside", NULL},
               {"/proc", NULL},
               {"/pipe", NULL},
               {"/sub", NULL},
               {"/", NULL},
               {"", NULL},
               {"/../outside", NULL},
               {"/sub/../../outside", NULL},
               {"/%2e%2e/outside", NULL},
               {"x/../outside", NULL},
               {"/a%00b", NULL},
               {"/none", NULL},
               {"/a%2", NULL}};
  for (size_t i = 0; i < ARRAY_LEN(files); i++) {
    const char *want = files[i].want;
    if (!strcmp(files[i].tail, "/inner")) continue; /* inside: taken or not, as the system can tell */
    char absolute[700];
    assert_non_null(realpath(folder, absolute));
    snprintf(body, sizeof body, CHAT(TEXT("!media") "," IMAGE("file://%s%s%s")), i % 2 ? "localhost" : "", absolute, files[i].tail);
    expect(f, chat, body, want ? 200 : 400, want ? want : "messages[0].content[1]: expected");
    if (!want) {
      struct answer a;
      client_ask(f->port, chat, body, &a);
      assert_null(strstr(buf_cstr(&a.body), "root:"));
      answer_free(&a);
    }
  }
  expect(f, chat, CHAT(IMAGE("file:///etc/passwd")), 400, "expected a file in the folder that this server reads from");
  expect(f, chat, CHAT(IMAGE("file://etc/passwd")), 400, "expected a file in the folder");
  fixture_stop(f);
}

/* ---- the web -------------------------------------------------------------------------------------------------------------------- */

static void from_the_web(void **state) {
  (void)state;
  struct fixture *web = fixture_start(NULL, 4, 16); /* any HTTP server will do: what it says is no picture */
  char allow[60], body[400];
  snprintf(allow, sizeof allow, "127.0.0.1:%d", web->port);
  const struct media_limits l = {.allow = allow, .timeout_ms = 2000};
  struct fixture *f = start(&l);
  snprintf(body, sizeof body, CHAT(IMAGE("http://127.0.0.1:%d/health")), web->port);
  expect(f, chat, body, 400, "messages[0].content[0]: damaged"); /* fetched, and not a picture */
  snprintf(body, sizeof body, CHAT(IMAGE("http://127.0.0.1:%d/nothing")), web->port);
  expect(f, chat, body, 400, "the address answered 404");
  expect(f, chat, CHAT(IMAGE("http://localhost/x")), 400, "some hosts only");
  fixture_stop(f);
  const struct media_limits any = {.urls = true, .timeout_ms = 2000, .resolve_test = "rebind.test:80:127.0.0.1"};
  f = start(&any);
  expect(f, chat, CHAT(IMAGE("http://rebind.test/x")), 400, "public on the internet");
  expect(f, chat, CHAT(IMAGE("http://169.254.169.254/latest/meta-data")), 400, "public on the internet");
  fixture_stop(f);
  fixture_stop(web);
}

/* ---- transcriptions --------------------------------------------------------------------------------------------------------------- */

static int transcribe(struct fixture *f, const char *headers, const char *file, const char *fields, struct answer *a) {
  struct buf body;
  char head[600];
  buf_init(&body, 0);
  if (file)
    buf_printf(&body, "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n%s\r\n",
               file);
  buf_printf(&body, "%s--XX--\r\n", fields);
  int fd = client_connect(f->port);
  snprintf(head, sizeof head, "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %zu\r\n\r\n", headers,
           body.len);
  client_puts(fd, head);
  client_send(fd, body.data, body.len);
  client_read(fd, a);
  close(fd);
  buf_free(&body);
  return a->status;
}

#define TYPE        "Content-Type: multipart/form-data; boundary=XX\r\n"
#define FIELD(n, v) "--XX\r\nContent-Disposition: form-data; name=\"" n "\"\r\n\r\n" v "\r\n"

static void transcriptions(void **state) {
  (void)state;
  struct fixture *f = start(NULL);
  static const struct {
    const char *file, *fields;
    int status;
    const char *has;
  } cases[] = {
      {"SND one 12.5", FIELD("model", "whisper-1") FIELD("prompt", "say: said it\n"), 200,
       "{\"text\":\"said it\",\"usage\":{\"type\":\"tokens\","},
      {"SND one 12.5", FIELD("prompt", "!media"), 200, "\"text\":\"one/13 at s"},
      {"SND one 30", FIELD("prompt", "!media"), 200, "\"text\":\"one/30 at s"},
      {"SND two 60", FIELD("prompt", "!media") FIELD("response_format", "text"), 200, "two@30/30 at s"},
      {"SND three 90", FIELD("prompt", "say: x\n") FIELD("response_format", "verbose_json"), 200,
       "{\"text\":\"x x x\",\"task\":\"transcribe\",\"language\":null,\"duration\":90.000,\"segments\":[{\"id\":0,\"start\":0.000,\"end\":30.000,\"text\":\"x\"},{\"id\":1,"},
      {"SND two 31", FIELD("stream", "true") FIELD("prompt", "say: a b\n"), 200,
       "data: {\"type\":\"transcript.text.done\",\"text\":\"a b a b\","},
      {"SND one 1",
       FIELD("language", "de") FIELD("temperature", "0.5") FIELD("timestamp_granularities[]", "segment")
           FIELD("response_format", "verbose_json"),
       200, "\"segments\""},
      {"SND long 1801", "", 400, "file: expected at most 1800 s of sound, found 1801.0 s"},
      {"noise", "", 400, "\"message\":\"file: damaged\""},
      {"", "", 400, "body: file: expected a sound, found nothing"},
      {NULL, FIELD("model", "x"), 400, "body: file: expected, not found"},
      {"SND one 1", FIELD("response_format", "srt"), 400, "response_format: expected json, text or verbose_json"},
      {"SND one 1", FIELD("temperature", "hot"), 400, "temperature: expected a number"},
      {"SND one 1", FIELD("temperature", "-1"), 400, "temperature"},
      {"SND one 1", FIELD("seed", "5") FIELD("prompt", "!seed"), 200, "\"text\":\"5\""},
      {"SND one 1", FIELD("seed", "0.5"), 400, "seed: expected a whole number"},
      {"SND one 1", FIELD("language", "en\\\"; ignore"), 400, "language: expected a code"},
      {"SND one 1", FIELD("timestamp_granularities[]", "word"), 400, "timestamp_granularities"},
      {"SND one 1", FIELD("stream", "maybe"), 400, "stream: expected true or false"},
      {"SND one 1", FIELD("stream", "true") FIELD("response_format", "text"), 400, "stream: only allowed"},
      {"SND one 1", FIELD("include[]", "logprobs"), 400, "include[]"},
      {"SND one 1", "--XX\r\nbroken\r\n\r\n\r\n", 400, "\"message\":\"body: expected a header in a part\""},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct answer a;
    transcribe(f, TYPE, cases[i].file, cases[i].fields, &a);
    if (a.status != cases[i].status || !strstr(buf_cstr(&a.body), cases[i].has))
      fail_msg("case %zu: expected %d and \"%s\", found %d: %s", i, cases[i].status, cases[i].has, a.status, buf_cstr(&a.body));
    answer_free(&a);
  }
  static const struct {
    const char *headers;
    int status;
  } doors[] = {{"Content-Type: application/json\r\n", 400},
               {"", 400},
               {"Content-Type: multipart/form-data\r\n", 400},
               {TYPE "Sec-Fetch-Site: cross-site\r\n", 403},
               {TYPE "Origin: http://evil.test\r\n", 403},
               {TYPE "Origin: null\r\n", 403},
               {TYPE "Origin: http://localhost\r\nSec-Fetch-Site: same-origin\r\n", 200}};
  for (size_t i = 0; i < ARRAY_LEN(doors); i++) {
    struct answer a;
    if (transcribe(f, doors[i].headers, "SND one 1", "", &a) != doors[i].status)
      fail_msg("door %zu: %d: %s", i, a.status, buf_cstr(&a.body));
    answer_free(&a);
  }
  assert_true(becomes(&f->fake.n_media, 0));
  fixture_stop(f);
  fixture_hears = false;
  f = fixture_start(NULL, 4, 16);
  struct answer a;
  assert_int_equal(transcribe(f, TYPE, "SND one 1", "", &a), 400);
  assert_non_null(strstr(buf_cstr(&a.body), "this one takes no sound"));
  answer_free(&a);
  fixture_stop(f);
}

/* The deltas of a stream put together are the text, also when pieces end in another order than they stand. */
static void streams_of_pieces(void **state) {
  (void)state;
  struct fixture *f = start(NULL);
  struct answer a;
  transcribe(f, TYPE, "SND piece 95", FIELD("stream", "true") FIELD("prompt", "say: one two  \n"), &a);
  assert_int_equal(a.status, 200);
  struct buf text;
  buf_init(&text, 0);
  for (const char *p = buf_cstr(&a.body); (p = strstr(p, "\"delta\":\"")); p++) {
    const char *from = p + 9, *to = strchr(from, '"');
    buf_append(&text, from, (size_t)(to - from));
  }
  assert_string_equal(buf_cstr(&text), "one two one two one two one two");
  assert_non_null(strstr(buf_cstr(&a.body), "\"text\":\"one two one two one two one two\""));
  assert_non_null(strstr(buf_cstr(&a.body), "[DONE]"));
  assert_int_equal(atomic_load(&f->fake.n_cut), 1); /* decoded once, however many pieces */
  buf_free(&text);
  answer_free(&a);
  fixture_stop(f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(chat_takes_every_spelling),
    cmocka_unit_test(usage_counts_rows),
    cmocka_unit_test(other_dialects),
    cmocka_unit_test(streams_carry_them),
    cmocka_unit_test(errors_say_where),
    cmocka_unit_test(models_that_take_none),
    cmocka_unit_test(budgets_and_detail),
    cmocka_unit_test(limits_hold),
    cmocka_unit_test(files_below_a_folder),
    cmocka_unit_test(from_the_web),
    cmocka_unit_test(transcriptions),
    cmocka_unit_test(streams_of_pieces),
};
TEST_MAIN(tests)
