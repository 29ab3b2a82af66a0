/* chat_gemma.c — the released conversation format of Gemma 3.
 *
 *   <bos> then for each message  <start_of_turn> ROLE \n CONTENT <end_of_turn> \n         ROLE: user, or model for the assistant
 *   and at last                  <start_of_turn> model \n
 * There is no system turn: a leading system message is put, untrimmed and with an empty line after it, in front of the first turn's
 * content. Users take every other turn. The template asks no more than that: another role at an odd place is written by its own
 * name, and a conversation that is nothing but a system message loses it. Each text part is trimmed on its own.
 *
 * There is no place for tools either: the template drops calls, and refuses a result after one unless the order of turns happens to fit. With
 * describe_tools they are told in words, in the form that Google documents for function calling with this model (docs/chat.md):
 *   what may be called stands in front of the first turn's content and of the system's text, as an instruction and JSON;
 *   a past call is the JSON that the instruction asks for, on a line of its own after the turn's text;
 *   results, and the user's words after them, make one turn of the user's.
 */
#include "text/chat_impl.h"

static int expect_turn(const struct chat_message *m, size_t i, size_t turn, struct err *e) {
  bool users = turn % 2 == 0;
  if ((m->role == CHAT_USER) == users) return 0;
  return err_set(e, ERR_BAD_INPUT, "messages[%zu].role: expected \"%s\"%s, found \"%s\"", i, users ? "user" : "assistant",
                 turn == 0 ? " for the first turn"
                 : users   ? " after an assistant turn"
                           : " after a user turn",
                 chat_role_name(m->role));
}

static int write_media(struct chat_writer *w, const struct chat_options *o, enum chat_part_kind kind, size_t i, int k, struct err *e) {
  return chat_write_media(w, o, kind, kind == CHAT_IMAGE ? "<start_of_image>" : NULL, i, k, e);
}

/* A result's text, and the pictures that came with it. */
static int write_result(struct chat_writer *w, const struct chat_message *m, size_t i, const struct chat_options *o, struct err *e) {
  struct chat_part part;
  struct buf joined;
  int rc = 0;
  buf_init(&joined, TOK_TEXT_BYTES_MAX);
  for (int k = 0; k < m->n_parts && rc == 0; k++) {
    rc = chat_part_read(m, i, k, &part, e);
    if (rc == 0 && part.kind == CHAT_TEXT) buf_append(&joined, part.text.p, part.text.n);
  }
  w->too_long |= joined.overflow;
  chat_write(w, chat_trim(str_of(buf_cstr(&joined), joined.len)));
  buf_free(&joined);
  for (int k = 0; k < m->n_parts && rc == 0; k++) {
    rc = chat_part_read(m, i, k, &part, e);
    if (rc == 0 && part.kind != CHAT_TEXT) rc = write_media(w, o, part.kind, i, k, e);
  }
  return rc;
}

/* Parts 0..n-1. */
static int write_content(struct chat_writer *w, const struct chat_message *m, size_t i, int n, const struct chat_options *o,
                         struct err *e) {
  if (m->role == CHAT_TOOL && o->describe_tools && o->image) return write_result(w, m, i, o, e);
  if (m->role == CHAT_SYSTEM || m->role == CHAT_DEVELOPER || m->role == CHAT_TOOL) {
    struct buf joined;
    buf_init(&joined, TOK_TEXT_BYTES_MAX);
    int rc = chat_text_only(m, i, &joined, e);
    chat_write(w, chat_trim(str_of(buf_cstr(&joined), joined.len)));
    buf_free(&joined);
    return rc;
  }
  for (int k = 0; k < n; k++) {
    struct chat_part part;
    if (chat_part_read(m, i, k, &part, e) != 0) return -1;
    if (part.kind == CHAT_TEXT) chat_write(w, chat_trim(part.text));
    else if (write_media(w, o, part.kind, i, k, e) != 0) return -1;
  }
  return 0;
}

/* The leading system message, kept for the first turn. 1 if there is one. */
static int read_system(const json_t *messages, struct buf *prefix, struct err *e) {
  struct chat_message m;
  if (chat_message_read(messages, 0, &m, e) != 0) return -1;
  if (m.role != CHAT_SYSTEM && m.role != CHAT_DEVELOPER) return 0;
  if (!m.content) return err_set(e, ERR_BAD_INPUT, "messages[0].content: expected text in a %s message", chat_role_name(m.role));
  if (chat_text_only(&m, 0, prefix, e) != 0) return -1;
  if (buf_puts(prefix, "\n\n")) return 1;
  return err_set(e, ERR_TOO_LARGE, "messages[0].content: expected less than %d bytes", TOK_TEXT_BYTES_MAX);
}

/* --- the template's turns ------------------------------------------------------------------------------------------------------------ */

static int write_turns(struct chat_writer *w, const json_t *messages, size_t first, struct str prefix, const struct chat_options *o,
                       struct err *e) {
  size_t n = json_array_size(messages);
  for (size_t i = first; i < n; i++) {
    struct chat_message m;
    if (chat_message_read(messages, i, &m, e) != 0 || expect_turn(&m, i, i - first, e) != 0) return -1;
    bool open = o->continue_final_message && i == n - 1;
    int last = m.n_parts - 1;
    if (open && chat_last_text(&m, i, &last, e) != 0) return -1;
    chat_write_control(w, "<start_of_turn>");
    chat_write_c(w, m.role == CHAT_ASSISTANT ? "model" : m.role == CHAT_DEVELOPER ? "system" : chat_role_name(m.role));
    chat_write_c(w, "\n");
    if (i == first) chat_write(w, prefix);
    if (write_content(w, &m, i, last + 1, o, e) != 0) return -1;
    if (open) chat_stop(w, true);
    chat_write_control(w, "<end_of_turn>");
    chat_write_c(w, "\n");
  }
  return 0;
}

/* --- tools in words ------------------------------------------------------------------------------------------------------------------ */

static void put_functions(struct buf *b, const json_t *tools) {
  json_t *functions = json_array();
  for (size_t i = 0; i < json_array_size(tools); i++) json_array_append(functions, json_object_get(json_array_get(tools, i), "function"));
  buf_puts(b, "You have access to functions. If you decide to invoke any of the function(s), you MUST put it in the format of\n"
              "{\"name\": function name, \"parameters\": dictionary of argument name and its value}\n\n"
              "You SHOULD NOT include any other text in the response if you call a function\n");
  chat_put_json(b, functions, 2);
  buf_puts(b, "\n\n");
  json_decref(functions);
}

static void write_calls(struct chat_writer *w, const json_t *calls, bool after_text) {
  for (size_t k = 0; k < json_array_size(calls); k++) {
    const json_t *call = json_array_get(calls, k);
    json_t *arguments = chat_arguments(call);
    struct buf line;
    buf_init(&line, TOK_TEXT_BYTES_MAX);
    buf_puts(&line, k || after_text ? "\n{\"name\": " : "{\"name\": ");
    chat_put_json(&line, json_object_get(json_object_get(call, "function"), "name"), 0);
    buf_puts(&line, ", \"parameters\": ");
    chat_put_json(&line, arguments, 0);
    buf_puts(&line, "}");
    w->too_long |= line.overflow;
    chat_write(w, str_of(buf_cstr(&line), line.len));
    buf_free(&line);
    json_decref(arguments);
  }
}

struct telling {
  struct chat_writer *w;
  const json_t *messages;
  json_t *callees; /* of the latest assistant message, owned; NULL before the first */
  const struct chat_options *o;
  size_t n;
};

/* The content of message i; cut there when it is left open. */
static int tell_content(struct telling *t, const struct chat_message *m, size_t i, struct err *e) {
  bool open = t->o->continue_final_message && i == t->n - 1;
  int last = m->n_parts - 1;
  if (open && chat_last_text(m, i, &last, e) != 0) return -1;
  if (write_content(t->w, m, i, last + 1, t->o, e) != 0) return -1;
  if (open) chat_stop(t->w, true);
  return 0;
}

static int tell_whose_result(struct telling *t, size_t i, struct err *e) {
  const json_t *name;
  if (chat_callee(t->callees, json_array_get(t->messages, i), i, &name, e) != 0) return -1;
  chat_write_c(t->w, "Result of ");
  chat_write(t->w, name ? str_of(json_string_value(name), json_string_length(name)) : str_c("the call"));
  chat_write_c(t->w, ":\n");
  return 0;
}

/* Results, then at most one message of the user's. Returns the number of messages, -1: error. */
static int tell_users_turn(struct telling *t, size_t i, size_t turn, struct err *e) {
  struct chat_message m;
  int count = 0;
  for (bool result = true; result && i < t->n; i++, count++) {
    if (chat_message_read(t->messages, i, &m, e) != 0) return -1;
    result = m.role == CHAT_TOOL;
    if (!result && m.role != CHAT_USER && count > 0) break;
    if (!result && expect_turn(&m, i, turn, e) != 0) return -1;
    if (count > 0) chat_write_c(t->w, "\n\n");
    if (result && tell_whose_result(t, i, e) != 0) return -1;
    if (tell_content(t, &m, i, e) != 0) return -1;
  }
  return count;
}

static int tell_models_turn(struct telling *t, size_t i, struct err *e) {
  struct chat_message m;
  if (chat_message_read(t->messages, i, &m, e) != 0) return -1;
  if (m.role != CHAT_ASSISTANT)
    return err_set(e, ERR_BAD_INPUT, "messages[%zu].role: expected \"assistant\" after a user turn, found \"%s\"", i,
                   chat_role_name(m.role));
  size_t before = t->w->text.len;
  const json_t *calls = chat_get(json_array_get(t->messages, i), "tool_calls");
  json_decref(t->callees);
  t->callees = chat_callees(calls);
  if (tell_content(t, &m, i, e) != 0) return -1;
  write_calls(t->w, calls, t->w->text.len > before);
  return 1;
}

static int tell_turns(struct chat_writer *w, const json_t *messages, size_t first, struct str prefix, const struct chat_options *o,
                      struct err *e) {
  struct telling t = {.w = w, .messages = messages, .o = o, .n = json_array_size(messages)};
  size_t turn = 0;
  int count = 0;
  for (size_t i = first; i < t.n && count >= 0; turn++) {
    chat_write_control(w, "<start_of_turn>");
    chat_write_c(w, turn % 2 ? "model\n" : "user\n");
    if (i == first) chat_write(w, prefix);
    count = turn % 2 ? tell_models_turn(&t, i, e) : tell_users_turn(&t, i, turn, e);
    i += (size_t)MAX(count, 0);
    chat_write_control(w, "<end_of_turn>");
    chat_write_c(w, "\n");
  }
  json_decref(t.callees);
  return count < 0 ? -1 : 0;
}

/* --- entry --------------------------------------------------------------------------------------------------------------------------- */

int chat_gemma3(struct chat_writer *w, const json_t *messages, const json_t *tools, const struct chat_options *o, struct err *e) {
  struct buf prefix, system_text;
  buf_init(&prefix, TOK_TEXT_BYTES_MAX);
  buf_init(&system_text, TOK_TEXT_BYTES_MAX);
  int system = read_system(messages, &system_text, e), rc = -1;
  if (system < 0) goto done;
  if (o->continue_final_message && json_array_size(messages) == (size_t)system) {
    err_set(e, ERR_BAD_INPUT, "messages[0].role: expected a turn that can be continued, found only a system message");
    goto done;
  }
  if (o->describe_tools && tools) put_functions(&prefix, tools);
  buf_append(&prefix, buf_cstr(&system_text), system_text.len);
  w->too_long |= prefix.overflow;
  chat_write_control(w, "<bos>");
  rc = (o->describe_tools ? tell_turns : write_turns)(w, messages, (size_t)system, str_of(buf_cstr(&prefix), prefix.len), o, e);
  if (rc == 0 && !o->no_generation_prompt && !o->continue_final_message) {
    chat_write_control(w, "<start_of_turn>");
    chat_write_c(w, "model\n");
  }
done:
  buf_free(&prefix);
  buf_free(&system_text);
  return rc;
}
