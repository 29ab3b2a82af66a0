/* suites.c — the table of suites; rows of their data sets → questions. */
#include "eval/suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "base/mem.h"
#include "eval/rows.h"

static const struct suite suites[] = {
    {.name = "gsm8k", .asks = true, .limit = 200, .parallel = 128, .max_tokens = 512, .samples = 1, .shots = 5},
    {.name = "aime", .asks = true, .chats = true, .parallel = 32, .max_tokens = 2048, .samples = 4, .sampled = true},
    {.name = "mmmu", .asks = true, .chats = true, .pictures = true, .limit = 50, .parallel = 2, .max_tokens = 16, .samples = 1},
    {.name = "mmmu-pro", .asks = true, .chats = true, .pictures = true, .limit = 50, .parallel = 2, .max_tokens = 256, .samples = 1},
    {.name = "perplexity"},
    {.name = "kl"},
};

const struct suite *suite_find(const char *name) {
  for (size_t i = 0; i < ARRAY_LEN(suites); i++)
    if (!strcmp(suites[i].name, name)) return &suites[i];
  return NULL;
}

const char *suite_names(void) { return "gsm8k, aime, mmmu, mmmu-pro, perplexity, kl"; }

void suite_free_strings(char **v, int n) {
  for (int i = 0; i < n; i++) free(v[i]);
  free(v);
}

void suite_free(struct eval_questions *q) {
  for (int i = 0; i < q->n; i++) {
    struct eval_question *one = &q->v[i];
    free(one->id);
    free(one->group);
    free(one->prompt);
    free(one->digest);
    json_decref(one->messages);
    suite_free_strings(one->key.expected, one->key.n_expected);
    suite_free_strings(one->key.options, one->key.n_options);
  }
  free(q->v);
  *q = (struct eval_questions){0};
}

/* ---- what all suites share ------------------------------------------------------------------------------------------------------ */

static struct eval_question *add(struct eval_questions *q) {
  if (q->n == q->cap) q->v = xrealloc(q->v, (size_t)(q->cap = q->cap ? 2 * q->cap : 64) * sizeof *q->v);
  q->v[q->n] = (struct eval_question){0};
  return &q->v[q->n++];
}

static void expect(struct eval_question *q, char *owned) {
  q->key.expected = xrealloc(q->key.expected, (size_t)(q->key.n_expected + 1) * sizeof *q->key.expected);
  q->key.expected[q->key.n_expected++] = owned;
}

static json_t *text_part(const char *text, size_t n) { return json_pack("{s:s, s:s%}", "type", "text", "text", text, n); }

static void say(struct eval_question *q, json_t *content) { q->messages = json_pack("[{s:s, s:o}]", "role", "user", "content", content); }

static void set_digest(struct eval_question *q) {
  unsigned char sum[DIGEST_BYTES];
  char *json = q->messages ? json_dumps(q->messages, JSON_COMPACT) : NULL, hex[17];
  const char *text = json ? json : q->prompt;
  digest_sha256(text, strlen(text), sum);
  for (int i = 0; i < 8; i++) snprintf(hex + 2 * i, 3, "%02x", sum[i]);
  q->digest = xstrdup(hex);
  free(json);
}

/* The row's own id, else its number. */
static char *row_id(const struct rows *r, const char *prefix) {
  const json_t *id = json_object_get(r->row, "id");
  char text[96];
  if (json_is_string(id)) return xstrdup(json_string_value(id));
  if (json_is_integer(id)) snprintf(text, sizeof text, "%s%lld", prefix, (long long)json_integer_value(id));
  else snprintf(text, sizeof text, "%s%d", prefix, r->count - 1);
  return xstrdup(text);
}

/* ---- GSM8K ------------------------------------------------------------------------------------------------------------------------ */

static void put_example(struct buf *b, const char *question, const char *answer) {
  buf_printf(b, "Question: %s\nAnswer:", question);
  if (answer) buf_printf(b, " %s\n\n", answer);
}

/* As a text to be continued the examples are among the questions; as a conversation they are not. */
static int load_gsm8k(const struct suite_options *o, struct rows *r, struct eval_questions *q, struct err *e) {
  static const char *const stops[] = {"Question", "Assistant:", "<|separator|>"};
  struct buf shots;
  int n_shots = 0, status = 0, got;
  buf_init(&shots, 0);
  if (!o->chats) q->stop = stops, q->n_stop = ARRAY_LEN(stops);
  while ((o->limit == 0 || q->n < o->limit || n_shots < o->shots) && (got = rows_next(r, e)) != 0) {
    const char *question, *answer;
    if ((status = got < 0 || rows_text(r, "question", &question, e) || rows_text(r, "answer", &answer, e) ? -1 : 0)) break;
    char *expected = answer_last_integer(str_c(answer));
    if (!expected) {
      status = rows_wrong(r, "answer", "a solution that ends in its number", e);
      break;
    }
    bool shot = n_shots < o->shots;
    if (shot) put_example(&shots, question, answer), n_shots++;
    if ((shot && o->chats) || (o->limit && q->n == o->limit)) {
      free(expected);
      continue;
    }
    struct eval_question *one = add(q);
    one->id = row_id(r, "gsm8k-");
    one->key.rule = o->chats ? ANSWER_LAST_NUMBER : ANSWER_LAST_INTEGER;
    expect(one, expected);
    one->prompt = xstrdup(question);
  }
  if (!status && n_shots < o->shots)
    status = err_set(e, ERR_BAD_INPUT, "%s: expected %d questions for examples, found %d: give fewer --shots", o->data, o->shots, n_shots);
  for (int i = 0; i < q->n; i++) {
    struct buf b;
    buf_init(&b, 0);
    buf_append(&b, buf_cstr(&shots), shots.len);
    put_example(&b, q->v[i].prompt, NULL);
    free(q->v[i].prompt);
    q->v[i].prompt = NULL;
    if (o->chats) say(&q->v[i], json_stringn(b.data, b.len));
    else q->v[i].prompt = buf_take(&b, NULL);
    buf_free(&b);
  }
  buf_free(&shots);
  return status;
}

/* ---- AIME -------------------------------------------------------------------------------------------------------------------------- */

static int load_aime(const struct suite_options *o, struct rows *r, struct eval_questions *q, struct err *e) {
  int got = 0;
  while ((o->limit == 0 || q->n < o->limit) && (got = rows_next(r, e)) > 0) {
    const char *question;
    const char *field = json_object_get(r->row, "question") || !json_object_get(r->row, "problem") ? "question" : "problem";
    const json_t *answer = json_object_get(r->row, "answer");
    if (!answer) answer = json_object_get(r->row, "expected_answer");
    if (rows_text(r, field, &question, e)) return -1;
    if (!json_is_string(answer) && !json_is_integer(answer)) return rows_wrong(r, "answer", "an integer", e);
    char text[64], *said = NULL;
    if (json_is_integer(answer)) snprintf(text, sizeof text, "Answer: %lld", (long long)json_integer_value(answer));
    else snprintf(text, sizeof text, "Answer: %.40s", json_string_value(answer));
    struct answer_key key = {.rule = ANSWER_LINE};
    answer_grade(&key, str_c(text), &said);
    if (!said) return rows_wrong(r, "answer", "an integer", e);
    struct eval_question *one = add(q);
    one->id = row_id(r, "aime-");
    one->key.rule = ANSWER_LINE;
    expect(one, said);
    struct buf b;
    buf_init(&b, 0);
    buf_printf(
        &b,
        "Solve the following AIME (American Invitational Mathematics Examination) problem step by step. The last line of your response "
        "should be of the form Answer: $ANSWER (without quotes) where $ANSWER is the answer to the problem.\n\n"
        "Note: AIME answers are always integers from 000 to 999 (inclusive). If you get a non-integer answer, you likely made a "
        "computational error.\n\n%s\n\n"
        "Remember to put your answer on its own line after \"Answer:\", and express your answer as an integer from 000 to 999.",
        question);
    say(one, json_stringn(b.data, b.len));
    buf_free(&b);
  }
  return got < 0 ? -1 : 0;
}

/* ---- MMMU, MMMU-Pro ------------------------------------------------------------------------------------------------------------------ */

/* The picture that a field names, from the folder of the file that names it; 1, 0: there is none, -1 and *e. */
static int picture_part(const struct rows *r, const char *field, json_t **part, struct err *e) {
  const json_t *v = json_object_get(r->row, field);
  if (json_is_object(v)) v = json_object_get(v, "path");
  if (!v || json_is_null(v)) return 0;
  if (!json_is_string(v) || !json_string_length(v)) return rows_wrong(r, field, "the path of a picture", e);
  char *path = rows_beside(r, json_string_value(v));
  *part = json_pack("{s:s, s:s}", "type", "image_url", "path", path);
  free(path);
  return *part ? 1 : rows_wrong(r, field, "the path of a picture", e);
}

/* Text with "<image 1>" ... "<image 7>" → parts, each picture where it is named; *n: how many there were. */
static int add_parts(const struct rows *r, const char *text, json_t *parts, int *n, struct err *e) {
  *n = 0;
  const char *from = text;
  for (const char *p = text; (p = strstr(p, "<image ")) != NULL;) {
    if (p[7] < '1' || p[7] > '7' || p[8] != '>') {
      p++;
      continue;
    }
    char field[] = "image_1";
    json_t *part = NULL;
    field[6] = p[7];
    int got = picture_part(r, field, &part, e);
    if (got < 0) return -1;
    if (got == 0) return rows_wrong(r, field, "a picture, because the text names it", e);
    if (p > from) json_array_append_new(parts, text_part(from, (size_t)(p - from)));
    json_array_append_new(parts, part);
    (*n)++;
    from = p += 9;
  }
  if (*from) json_array_append_new(parts, text_part(from, strlen(from)));
  return 0;
}

/* A list of strings: JSON's own, or Python's in a string. Their number, -1: neither. */
static int read_list(const json_t *v, char ***out) {
  *out = NULL;
  if (json_is_string(v)) return suite_python_list(str_of(json_string_value(v), json_string_length(v)), out);
  if (!json_is_array(v)) return -1;
  int n = (int)json_array_size(v);
  *out = xcalloc((size_t)n + 1, sizeof **out);
  for (int i = 0; i < n; i++) {
    const json_t *one = json_array_get(v, (size_t)i);
    char *text = json_is_string(one) ? xstrdup(json_string_value(one)) : json_dumps(one, JSON_ENCODE_ANY | JSON_COMPACT);
    (*out)[i] = text ? text : xstrdup("");
  }
  return n;
}

/* "validation_Art_Theory_3" → "Art_Theory"; the field "subject" goes first. */
static char *subject_of(const struct rows *r, const char *id) {
  const json_t *v = json_object_get(r->row, "subject");
  if (json_is_string(v)) return xstrdup(json_string_value(v));
  const char *first = strchr(id, '_'), *last = strrchr(id, '_');
  return first && last > first + 1 ? xstrndup(first + 1, (size_t)(last - first - 1)) : NULL;
}

static int read_key(const struct rows *r, bool pro, struct eval_question *q, struct err *e) {
  const json_t *type = json_object_get(r->row, "question_type"), *answer = json_object_get(r->row, "answer");
  bool open = json_is_string(type) ? !strcmp(json_string_value(type), "open") : !json_object_get(r->row, "options");
  char **list = NULL;
  if (pro && open && json_is_string(type)) return rows_wrong(r, "question_type", "multiple-choice", e);
  q->key.rule = open && !pro ? ANSWER_OPEN : pro ? ANSWER_LETTER_LINE : ANSWER_LETTER;
  if (q->key.rule != ANSWER_OPEN) {
    int n = read_list(json_object_get(r->row, "options"), &q->key.options);
    q->key.n_options = MAX(n, 0);
    if (n < 1 || n > 26) return rows_wrong(r, "options", "a list of 1 to 26 texts", e);
    if (!json_is_string(answer) || json_string_length(answer) != 1 || json_string_value(answer)[0] < 'A' ||
        json_string_value(answer)[0] >= 'A' + n)
      return rows_wrong(r, "answer", "the letter of an option (test splits keep theirs secret)", e);
    expect(q, xstrdup(json_string_value(answer)));
    return 0;
  }
  bool listed = json_is_array(answer) || (json_is_string(answer) && json_string_value(answer)[0] == '[');
  int n = listed ? read_list(answer, &list) : -1;
  for (int i = 0; i < n; i++) expect(q, list[i]);
  free(list);
  if (n < 0 && json_is_string(answer) && json_string_length(answer)) expect(q, xstrdup(json_string_value(answer)));
  return q->key.n_expected ? 0 : rows_wrong(r, "answer", "a text or a list of texts", e);
}

static int load_mmmu(const struct suite_options *o, struct rows *r, struct eval_questions *q, struct err *e) {
  bool pro = !strcmp(o->suite->name, "mmmu-pro");
  int got = 0;
  while ((o->limit == 0 || q->n < o->limit) && (got = rows_next(r, e)) > 0) {
    struct eval_question *one = add(q);
    one->id = row_id(r, pro ? "mmmu-pro-" : "mmmu-");
    one->group = subject_of(r, one->id);
    if (read_key(r, pro, one, e)) return -1;
    bool seen = pro && !json_object_get(r->row, "question"); /* the question and its options are in the picture */
    const char *question = "";
    if (!seen && rows_text(r, "question", &question, e)) return -1;
    struct buf b;
    int n = 0, bad;
    buf_init(&b, 0);
    if (!seen) buf_printf(&b, "%s\n", question);
    for (int i = 0; i < one->key.n_options && !seen; i++) buf_printf(&b, "%s%c. %s", i ? "\n" : "", 'A' + i, one->key.options[i]);
    if (!seen) buf_puts(&b, one->key.n_options ? "\n\n" : "\n");
    buf_puts(&b, pro                  ? "Answer with the option letter from the given choices directly."
                 : one->key.n_options ? "Answer with the option's letter from the given choices directly."
                                      : "Answer the question using a single word or phrase.");
    json_t *parts = json_array(), *front = NULL;
    bad = add_parts(r, buf_cstr(&b), parts, &n, e);
    buf_free(&b);
    if (!bad && n == 0) {
      int has = picture_part(r, seen ? "image" : "image_1", &front, e);
      bad = has < 0 ? -1 : seen && !has ? rows_wrong(r, "image", "a picture, because there is no question", e) : 0;
      if (front) json_array_insert_new(parts, 0, front);
    }
    say(one, parts);
    if (bad) return -1;
  }
  return got < 0 ? -1 : 0;
}

/* ---- all ----------------------------------------------------------------------------------------------------------------------------- */

int suite_load(const struct suite_options *o, struct eval_questions *q, struct err *e) {
  struct rows r;
  *q = (struct eval_questions){0};
  if (rows_open(&r, o->data, o->suite->name, e)) return -1;
  int bad = !strcmp(o->suite->name, "gsm8k")  ? load_gsm8k(o, &r, q, e)
            : !strcmp(o->suite->name, "aime") ? load_aime(o, &r, q, e)
                                              : load_mmmu(o, &r, q, e);
  rows_close(&r);
  if (!bad && q->n == 0) bad = err_set(e, ERR_BAD_FILE, "%s: expected questions, found none", o->data);
  if (bad) {
    suite_free(q);
    return -1;
  }
  for (int i = 0; i < q->n; i++) set_digest(&q->v[i]);
  return 0;
}
