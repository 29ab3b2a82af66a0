/* t_opts.c — the four sources and their order, every kind of value, what is refused and in which words, help, JSON. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/opts.h"
#include "base/opts_impl.h"
#include "base/str.h"

enum { SERVE = 1, BENCH = 2, BOTH = 3 };

struct settings {
  const char *config;
  const char *model;
  int64_t threads;
  int64_t port;
  double temp;
  size_t mem;
  int kv;
  bool no_graph;
  bool help;
  struct opt_strings stops;
  const char *key;
};

#define AT(f) offsetof(struct settings, f)
static const struct opt rows[] = {
    {.group = "Model", .help = "What to run."},
    {.name = "model",
     .letter = 'm',
     .kind = OPT_STRING,
     .offset = AT(model),
     .commands = BOTH,
     .value = "FILE",
     .help = "GGUF file, or folder with config.json."},
    {.name = "config", .kind = OPT_STRING, .offset = AT(config), .commands = BOTH, .value = "FILE", .help = "JSON object of long names."},
    {.group = "Speed"},
    {.name = "threads",
     .letter = 't',
     .kind = OPT_INT,
     .offset = AT(threads),
     .commands = BOTH,
     .value = "N",
     .dflt = "4",
     .lo = 1,
     .hi = 64,
     .help = "Threads."},
    {.name = "kv-type",
     .alias = "kv-cache-dtype kv",
     .kind = OPT_CHOICE,
     .offset = AT(kv),
     .commands = BOTH,
     .value = "TYPE",
     .choices = "bf16|f16|q8_0",
     .dflt = "f16",
     .help =
         "Number format of keys and values. A long text that has to be broken at the hundredth column, which is somewhere about here or a little later.\nSecond line."},
    {.name = "mem",
     .kind = OPT_BYTES,
     .offset = AT(mem),
     .commands = BOTH,
     .value = "SIZE",
     .dflt = "1GiB",
     .lo = 1048576,
     .hi = INFINITY,
     .help = "Memory."},
    {.name = "no-graph", .alias = "disable-cuda-graph", .kind = OPT_BOOL, .offset = AT(no_graph), .commands = BOTH, .help = "Plain steps."},
    {.name = "port",
     .kind = OPT_INT,
     .offset = AT(port),
     .commands = SERVE,
     .value = "N",
     .dflt = "8080",
     .lo = 0,
     .hi = 65535,
     .help = "Port.",
     .group = "Server"},
    {.name = "api-key", .kind = OPT_STRING, .offset = AT(key), .commands = SERVE, .value = "KEY", .secret = true, .group = "Server"},
    {.name = "temp",
     .kind = OPT_FLOAT,
     .offset = AT(temp),
     .commands = BOTH,
     .value = "T",
     .dflt = "0.7",
     .lo = 0,
     .hi = 2,
     .help = "Temperature.",
     .group = "Sampling"},
    {.name = "stop",
     .kind = OPT_STRINGS,
     .offset = AT(stops),
     .commands = BOTH,
     .value = "TEXT",
     .help = "Stop here.",
     .group = "Sampling"},
    {.name = "help", .letter = 'h', .kind = OPT_BOOL, .offset = AT(help), .commands = BOTH, .help = "This page.", .group = "Sampling"},
};
static const struct opts_table table = {rows, ARRAY_LEN(rows), "CYGTEST_"};

/* One parse of a NULL-terminated list of words. */
struct result {
  struct settings s;
  const char *words[2];
  int n_words, code;
  struct err e;
};

static void parse(struct result *r, unsigned command, ...) {
  char *argv[16];
  int argc = 0;
  va_list args;
  va_start(args, command);
  while ((argv[argc] = va_arg(args, char *))) argc++;
  va_end(args);
  memset(r, 0, sizeof *r);
  r->code = opts_parse(&table, command, argc, argv, &r->s, r->words, 2, &r->n_words, &r->e);
}

static void drop(struct result *r) {
  opts_free(&table, &r->s);
  assert_null(r->s.model);
  assert_int_equal(r->s.stops.n, 0);
}

#define PARSE(...) parse(&r, __VA_ARGS__, (char *)NULL)

/* The parse fails with exactly this sentence. */
#define REFUSED(message, ...)                                                                                                              \
  do {                                                                                                                                     \
    PARSE(__VA_ARGS__);                                                                                                                    \
    assert_int_equal(r.code, -1);                                                                                                          \
    assert_string_equal(r.e.msg, message);                                                                                                 \
    drop(&r);                                                                                                                              \
  } while (0)

static void defaults(void **state) {
  (void)state;
  struct result r;
  PARSE(SERVE);
  assert_int_equal(r.code, 0);
  assert_true(r.s.threads == 4 && r.s.port == 8080 && r.s.temp == 0.7 && r.s.mem == (size_t)1 << 30 && r.s.kv == 1);
  assert_true(!r.s.no_graph && !r.s.model && r.s.stops.n == 0 && r.n_words == 0);
  drop(&r);
}

static void spellings(void **state) {
  (void)state;
  struct result r;
  PARSE(SERVE, "-m", "a.gguf", "--threads=8", "word", "--kv-cache-dtype", "Q8_0", "--no-graph", "--temp", "1e-1", "--mem", "2G", "-",
        "--stop", "x", "--stop=");
  assert_int_equal(r.code, 0);
  assert_string_equal(r.s.model, "a.gguf");
  assert_true(r.s.threads == 8 && r.s.kv == 2 && r.s.no_graph && r.s.temp == 0.1 && r.s.mem == (size_t)2 << 30);
  assert_int_equal(r.n_words, 2);
  assert_string_equal(r.words[0], "word");
  assert_string_equal(r.words[1], "-");
  assert_int_equal(r.s.stops.n, 2);
  assert_string_equal(r.s.stops.v[0], "x");
  assert_string_equal(r.s.stops.v[1], "");
  drop(&r);
  PARSE(SERVE, "--kv=bf16", "--disable-cuda-graph", "--no-graph=false", "-t", "5", "-t", "6", "-m", "a", "-m", "b", "--", "--threads",
        "-x");
  assert_int_equal(r.code, 0);
  assert_true(r.s.kv == 0 && !r.s.no_graph && r.s.threads == 6);
  assert_string_equal(r.s.model, "b");
  assert_string_equal(r.words[0], "--threads");
  assert_string_equal(r.words[1], "-x");
  drop(&r);
  PARSE(SERVE, "-m", "-weird"); /* a value may begin with a dash */
  assert_int_equal(r.code, 0);
  assert_string_equal(r.s.model, "-weird");
  drop(&r);
}

static void refusals(void **state) {
  (void)state;
  struct result r;
  REFUSED("unknown option --thread: did you mean --threads?", SERVE, "--thread", "3");
  REFUSED("unknown option --htreads: did you mean --threads?", SERVE, "--htreads=3");
  REFUSED("unknown option --kv-cache-type: did you mean --kv-cache-dtype?", SERVE, "--kv-cache-type", "f16");
  REFUSED("unknown option --frobnicate: type --help for those there are", SERVE, "--frobnicate");
  REFUSED("unknown option --prot: did you mean --port?", SERVE, "--prot", "1");
  REFUSED("unknown option --prot: type --help for those there are", BENCH, "--prot", "1"); /* the near one is another command's */
  REFUSED("unknown option -x: type --help for those there are", SERVE, "-x");
  REFUSED("unknown option -threads: did you mean --threads?", SERVE, "-threads");
  REFUSED("unknown option --a\\x0ab: type --help for those there are", SERVE, "--a\nb");
  REFUSED("option --port does not apply to this command: type --help for those that do", BENCH, "--port", "1");
  REFUSED("option --threads needs a value: type --threads N", SERVE, "--threads");
  REFUSED("option -t needs a value: type -t N", SERVE, "-t");
  REFUSED("option --model needs a value: type --model FILE", SERVE, "--model", "--threads", "3");
  REFUSED("--threads: expected a whole number from 1 to 64, found \"0\": type --threads N", SERVE, "--threads", "0");
  REFUSED("--threads: expected a whole number from 1 to 64, found \"65\": type --threads N", SERVE, "--threads=65");
  REFUSED("-t: expected a whole number from 1 to 64, found \"3.5\": type --threads N", SERVE, "-t", "3.5");
  REFUSED("--threads: expected a whole number from 1 to 64, found \"\": type --threads N", SERVE, "--threads=");
  REFUSED("--temp: expected a number from 0 to 2, found \"nan\": type --temp T", SERVE, "--temp", "nan");
  REFUSED("--mem: expected a size like 8GiB, at least 1048576, found \"8GB\": type --mem SIZE", SERVE, "--mem", "8GB");
  REFUSED("--kv: expected one of bf16|f16|q8_0, found \"f32\": type --kv-type TYPE", SERVE, "--kv", "f32");
  REFUSED("--no-graph: expected true or false, found \"maybe\": type --no-graph", SERVE, "--no-graph=maybe");
  REFUSED("unexpected word \"c\": type --help for what this command takes", SERVE, "a", "b", "c");
  PARSE(SERVE, "--thread");
  assert_int_equal(r.e.code, ERR_BAD_INPUT);
  drop(&r);
}

static void environment(void **state) {
  (void)state;
  struct result r;
  setenv("CYGTEST_THREADS", "7", 1);
  setenv("CYGTEST_KV_TYPE", "bf16", 1);
  setenv("CYGTEST_STOP", "env", 1);
  setenv("CYGTEST_MODEL", "", 1); /* empty is as good as unset */
  PARSE(SERVE, "--kv-type", "q8_0");
  assert_int_equal(r.code, 0);
  assert_true(r.s.threads == 7 && r.s.kv == 2 && !r.s.model && r.s.stops.n == 1);
  drop(&r);
  PARSE(SERVE, "--stop", "a", "--stop", "b"); /* the stronger source replaces the list */
  assert_int_equal(r.s.stops.n, 2);
  assert_string_equal(r.s.stops.v[0], "a");
  drop(&r);
  setenv("CYGTEST_THREADS", "many", 1);
  REFUSED("CYGTEST_THREADS: expected a whole number from 1 to 64, found \"many\": type --threads N", SERVE);
  unsetenv("CYGTEST_THREADS");
  setenv("CYGTEST_PORT", "junk", 1); /* another command's */
  PARSE(BENCH);
  assert_int_equal(r.code, 0);
  drop(&r);
  unsetenv("CYGTEST_PORT");
  unsetenv("CYGTEST_KV_TYPE");
  unsetenv("CYGTEST_STOP");
  unsetenv("CYGTEST_MODEL");
}

static const char *config_file(const char *text) { return test_write("c.json", text, strlen(text)); }

static void config(void **state) {
  (void)state;
  struct result r;
  const char *path = config_file(
      " {\"threads\": 9, \"temp\" : 1.5e0,\n\"kv-cache-dtype\": \"bf16\", \"no-graph\": true, \"mem\": \"3MiB\", \"model\": null,"
      "\"stop\": [\"a\\n\\u00e9\\ud83e\\udda2\\\"\", \"b\"] }\n");
  setenv("CYGTEST_THREADS", "7", 1);
  setenv("CYGTEST_STOP", "env", 1);
  PARSE(SERVE, "--config", path, "--temp", "0");
  assert_int_equal(r.code, 0);
  assert_true(r.s.threads == 9 && r.s.temp == 0 && r.s.kv == 0 && r.s.no_graph && r.s.mem == 3 << 20 && !r.s.model);
  assert_int_equal(r.s.stops.n, 2);
  assert_string_equal(r.s.stops.v[0], "a\n\xc3\xa9\xf0\x9f\xa6\xa2\"");
  drop(&r);
  setenv("CYGTEST_CONFIG", path, 1);
  PARSE(SERVE, "--threads", "3"); /* the file is named by the environment */
  assert_true(r.code == 0 && r.s.threads == 3 && r.s.no_graph);
  drop(&r);
  path = config_file("{\"stop\": []}");
  PARSE(SERVE, "--config", path);
  assert_true(r.code == 0 && r.s.stops.n == 0);
  drop(&r);
  path = config_file("{\"stop\": \"one\", \"threads\": \"12\"}");
  PARSE(SERVE, "--config", path);
  assert_true(r.code == 0 && r.s.stops.n == 1 && r.s.threads == 12);
  drop(&r);
  unsetenv("CYGTEST_CONFIG");
  unsetenv("CYGTEST_THREADS");
  unsetenv("CYGTEST_STOP");
  PARSE(SERVE, "--config", "/nowhere/at/all.json");
  assert_int_equal(r.e.code, ERR_NOT_FOUND);
  assert_string_equal(r.e.msg, "--config /nowhere/at/all.json: cannot read it: No such file or directory");
  drop(&r);
  PARSE(SERVE, "--config", "/");
  assert_int_equal(err_exit_status(r.e.code), 2);
  assert_string_equal(r.e.msg, "--config /: cannot read it: Is a directory");
  drop(&r);
}

static void config_refusals(void **state) {
  (void)state;
  static const struct {
    const char *text, *message;
  } bad[] = {
      {"", "line 1: expected '{', found the end of the file"},
      {"[]", "line 1: expected '{', found '[]'"},
      {"{", "line 1: expected a name in quotes, found the end of the file"},
      {"{\"threads\" 3}", "line 1: expected ':', found '3}'"},
      {"{\"threads\": 3,}", "line 1: expected a name in quotes, found '}'"},
      {"{\"threads\": 3\n\"port\": 1}", "line 2: expected ',' or '}', found '\"port\": 1}'"},
      {"{\"threads\": 3} x", "line 1: expected nothing after the closing '}', found 'x'"},
      {"{\"threads\": 03}", "line 1: expected a number without leading zeros, found '3}'"},
      {"{\"temp\": 1.}", "line 1: expected a digit, found '}'"},
      {"{\"temp\": -}", "line 1: expected a digit, found '}'"},
      {"{\"temp\": 1e}", "line 1: expected a digit, found '}'"},
      {"{\"temp\": .5}", "line 1: expected a string, number, true, false, null or a list of strings, found '.5}'"},
      {"{\"threads\": {}}", "line 1: expected a string, number, true, false, null or a list of strings, found '{}}'"},
      {"{\"threads\": 3, \"threads\": 3}", "line 1: expected each name once, found \"threads\" again"},
      {"{\"thread\": 3}", "unknown option thread: did you mean threads?"},
      {"{\"threads\": 3.0}", "threads: expected a whole number from 1 to 64, found \"3.0\": type --threads N"},
      {"{\"threads\": true}", "threads: expected a whole number from 1 to 64, found \"true\": type --threads N"},
      {"{\"threads\": [\"3\"]}", "threads: expected a whole number from 1 to 64, found \"[\": type --threads N"},
      {"{\"model\": 3}", "model: expected text, found \"3\": type --model FILE"},
      {"{\"no-graph\": 1}", "no-graph: expected true or false, found \"1\": type --no-graph"},
      {"{\"stop\": [3]}", "line 1: expected a string in the list, found '3]}'"},
      {"{\"stop\": [\"a\" \"b\"]}", "line 1: expected ',' or ']', found '\"b\"]}'"},
      {"{\"model\": \"a\\u0000\"}", "line 1: expected an escape of a character other than NUL and lone surrogates, found '\"}'"},
      {"{\"model\": \"a\\ud800x\"}", "line 1: expected the second half of a surrogate pair, found 'x\"}'"},
      {"{\"model\": \"a\\x\"}", "line 1: expected one of \" \\ / b f n r t u after \\, found 'x\"}'"},
      {"{\"model\": \"\xff\"}", "line 1: expected UTF-8, found '\\xff\"}'"},
      {"{\"model\": \"a\nb\"}", "line 1: expected a string without control characters, found '\\x0ab\"}'"},
      {"{\"model\": \"a", "line 1: expected a closing quote, found the end of the file"},
      {"{\"config\": \"x\"}", "option config has no place in a config file"},
  };
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    struct result r;
    char want[400];
    const char *path = config_file(bad[i].text);
    snprintf(want, sizeof want, "--config %s: %s", path, bad[i].message);
    REFUSED(want, SERVE, "--config", path);
  }
  struct result r;
  const char *path = config_file("{\"port\": 1}");
  PARSE(BENCH, "--config", path);
  assert_non_null(strstr(r.e.msg, "option port does not apply to this command"));
  drop(&r);
}

static int take_member(void *ctx, const char *name, enum opts_config_kind kind, const char *value, struct err *e) {
  (void)e;
  assert_true(kind <= OPTS_CONFIG_ITEM && utf8_valid(name, strlen(name)) && utf8_valid(value, strlen(value)));
  ++*(int *)ctx;
  return 0;
}

/* Any damage to a good file: members or a sentence, never a byte read past the end; nothing leaks (sanitizer builds look). */
static void config_damage(void **state) {
  (void)state;
  static const char good[] =
      "{\"threads\": 9, \"temp\": -1.5e-1, \"stop\": [\"a\\u00e9\\ud83e\\udda2\", \"b\"], \"no-graph\": false, \"model\": null}";
  uint64_t seed = 6;
  int n_good = 0, n_members = 0;
  for (int i = 0; i < 8000; i++) {
    size_t n = i % 2 ? (size_t)test_rand_int(&seed, 0, sizeof good - 1) : sizeof good - 1;
    char *text = test_guard_alloc(MAX(n, (size_t)1));
    memcpy(text, good, n);
    for (int k = test_rand_int(&seed, 0, 3); k > 0 && n > 0; k--) {
      bool from_good = test_rand_int(&seed, 0, 1);
      text[test_rand_int(&seed, 0, (int)n - 1)] = from_good ? good[test_rand_int(&seed, 0, sizeof good - 2)] : (char)test_rand(&seed);
    }
    struct err e = {0};
    int code = opts_config_parse(text, n, take_member, &n_members, &e);
    assert_true(code == 0 ? e.code == ERR_NONE : e.msg[0] && utf8_valid(e.msg, strlen(e.msg)));
    n_good += code == 0;
    test_guard_free(text, MAX(n, (size_t)1));
  }
  assert_true(n_good > 100 && n_members > n_good * 5);
}

static void set_one(void **state) {
  (void)state;
  struct settings s = {0};
  struct err e = {0};
  assert_int_equal(opts_set(&table, &s, "kv-cache-dtype", "q8_0", &e), 0);
  assert_int_equal(opts_set(&table, &s, "model", "x", &e), 0);
  assert_int_equal(opts_set(&table, &s, "model", "y", &e), 0);
  assert_int_equal(opts_set(&table, &s, "stop", "a", &e), 0);
  assert_int_equal(opts_set(&table, &s, "stop", "b", &e), 0);
  assert_true(s.kv == 2 && s.stops.n == 2);
  assert_string_equal(s.model, "y");
  assert_int_equal(opts_set(&table, &s, "threads", "x", &e), -1);
  assert_string_equal(e.msg, "threads: expected a whole number from 1 to 64, found \"x\": type --threads N");
  assert_int_equal(opts_set(&table, &s, "thread", "x", &e), -1);
  opts_free(&table, &s);
}

static void help(void **state) {
  (void)state;
  struct buf b;
  buf_init(&b, 0);
  opts_help(&table, BENCH, &b);
  assert_string_equal(buf_cstr(&b), "Model\n"
                                    "  What to run.\n"
                                    "  -m, --model FILE            GGUF file, or folder with config.json.\n"
                                    "                              (CYGTEST_MODEL)\n"
                                    "      --config FILE           JSON object of long names.\n"
                                    "                              (CYGTEST_CONFIG)\n"
                                    "\n"
                                    "Speed\n"
                                    "  -t, --threads N             Threads.\n"
                                    "                              (default 4; 1 to 64; CYGTEST_THREADS)\n"
                                    "      --kv-type, --kv-cache-dtype, --kv TYPE\n"
                                    "                              Number format of keys and values. A long text that has to be broken at\n"
                                    "                              the hundredth column, which is somewhere about here or a little later.\n"
                                    "                              Second line.\n"
                                    "                              (default f16; one of bf16, f16, q8_0; CYGTEST_KV_TYPE)\n"
                                    "      --mem SIZE              Memory.\n"
                                    "                              (default 1GiB; at least 1.0 MiB; CYGTEST_MEM)\n"
                                    "      --no-graph, --disable-cuda-graph\n"
                                    "                              Plain steps.\n"
                                    "                              (CYGTEST_NO_GRAPH)\n"
                                    "\n"
                                    "Sampling\n"
                                    "      --temp T                Temperature.\n"
                                    "                              (default 0.7; 0 to 2; CYGTEST_TEMP)\n"
                                    "      --stop TEXT             Stop here.\n"
                                    "                              (may be repeated; CYGTEST_STOP)\n"
                                    "  -h, --help                  This page.\n"
                                    "                              (CYGTEST_HELP)\n");
  for (const char *line = buf_cstr(&b); *line; line += strcspn(line, "\n") + 1) assert_true(strcspn(line, "\n") <= 100);
  buf_clear(&b);
  opts_help(&table, SERVE, &b);
  assert_non_null(strstr(buf_cstr(&b), "\nServer\n      --port N "));
  buf_free(&b);
}

/* The same table as Markdown, of all commands, and as a man page, of one. */
static void pages(void **state) {
  (void)state;
  static const char *const names[] = {"serve", "bench"}; /* by bit */
  struct buf b;
  buf_init(&b, 0);
  opts_markdown(&table, names, 2, &b);
  assert_non_null(strstr(buf_cstr(&b), "### Model\n\nWhat to run.\n\n| Option | Commands | |\n|---|---|---|\n"
                                       "| `-m`, `--model FILE` | all | GGUF file, or folder with config.json. |\n"));
  assert_non_null(strstr(buf_cstr(&b), "| `--port N` | serve | Port. (default 8080; 0 to 65535) |\n"));
  assert_non_null(strstr(buf_cstr(&b), "| `--kv-type`, `--kv-cache-dtype`, `--kv TYPE` | all | Number format of keys and values."));
  assert_non_null(
      strstr(buf_cstr(&b), " or a little later. Second line. (default f16; one of bf16, f16, q8\\_0) |\n")); /* one line, escaped */
  assert_null(strstr(buf_cstr(&b), "CYGTEST_"));
  buf_clear(&b);
  opts_man(&table, BENCH, &b);
  assert_int_equal(strncmp(buf_cstr(&b), ".SS Model\nWhat to run.\n.TP\n", 27), 0);
  assert_non_null(strstr(buf_cstr(&b),
                         ".TP\n\\fB\\-m\\fR, \\fB\\-\\-model\\fR \\fIFILE\\fR\nGGUF file, or folder with config.json. (CYGTEST_MODEL)\n"));
  assert_non_null(
      strstr(buf_cstr(&b), ".TP\n\\fB\\-\\-no\\-graph\\fR, \\fB\\-\\-disable\\-cuda\\-graph\\fR\nPlain steps. (CYGTEST_NO_GRAPH)\n"));
  assert_null(strstr(buf_cstr(&b), "port"));
  for (const char *line = buf_cstr(&b); *line; line += strcspn(line, "\n") + 1) assert_true(strcspn(line, "\n") <= 80);
  buf_clear(&b);
  opts_put_man_text(&b, ".so a file 'x' \\n -v");
  assert_string_equal(buf_cstr(&b), "\\&.so a file 'x' \\en \\-v");
  buf_clear(&b);
  opts_put_markdown(&b, "a|b <c> *d* [e] f_g");
  assert_string_equal(buf_cstr(&b), "a\\|b \\<c\\> \\*d\\* \\[e\\] f\\_g");
  buf_free(&b);
}

static void json(void **state) {
  (void)state;
  struct result r;
  struct buf b;
  buf_init(&b, 0);
  PARSE(SERVE, "-m", "a\"b", "--stop", "x", "--stop", "\n", "--api-key", "hunter2");
  opts_dump_json(&table, SERVE, &r.s, &b);
  assert_string_equal(
      buf_cstr(&b),
      "{\"model\": \"a\\\"b\", \"config\": null, \"threads\": 4, \"kv-type\": \"f16\", \"mem\": 1073741824, \"no-graph\": false, "
      "\"port\": 8080, \"api-key\": \"***\", \"temp\": 0.7, \"stop\": [\"x\", \"\\n\"], \"help\": false}");
  drop(&r);
  buf_clear(&b);
  PARSE(BENCH, "--temp", "0.1");
  opts_dump_json(&table, BENCH, &r.s, &b);
  assert_null(strstr(buf_cstr(&b), "port"));
  assert_non_null(strstr(buf_cstr(&b), "\"temp\": 0.1,"));
  drop(&r);
  buf_free(&b);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(defaults), cmocka_unit_test(spellings),       cmocka_unit_test(refusals),      cmocka_unit_test(environment),
    cmocka_unit_test(config),   cmocka_unit_test(config_refusals), cmocka_unit_test(config_damage), cmocka_unit_test(set_one),
    cmocka_unit_test(help),     cmocka_unit_test(pages),           cmocka_unit_test(json),
};
TEST_MAIN(tests)
