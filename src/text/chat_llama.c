/* chat_llama.c — the released conversation format of Llama 3.2 Vision.
 *
 *   <|begin_of_text|>  then a block for the system and for each message
 *   <|start_header_id|> ROLE <|end_header_id|> \n\n TEXT <|eot_id|>
 *   <|start_header_id|> assistant <|end_header_id|> \n\n                  where the answer goes
 *
 * The system's block is always there, with two dates in front of the text, unless there is a picture anywhere. For the template pictures
 * and a system text exclude one another; for a model that is given the pictures the text alone makes the block. Tools are told in front of
 * the first message (or in the system's block): an instruction, and each as JSON with four blanks per level. A past call is JSON in an
 * assistant's block and takes the place of any text; one at a time. A tool's result is a JSON string in a block of the role ipython.
 * Nothing is trimmed but the system's text and the message that tools are put in front of.
 */
#include "text/chat_impl.h"

#include <stdio.h>
#include <time.h>

static void begin_block(struct chat_writer *w, const char *role) {
  chat_write_control(w, "<|start_header_id|>");
  chat_write_c(w, role);
  chat_write_control(w, "<|end_header_id|>");
  chat_write_c(w, "\n\n");
}

struct talk {
  struct chat_writer *w;
  const json_t *messages, *tools;
  const struct chat_options *o;
  size_t n, next; /* messages; those before next are written */
};

static bool left_open(const struct talk *t, size_t i) { return t->o->continue_final_message && i == t->n - 1; }

/* All text of a message, trimmed; the end of what is written where the message is left open. */
static int write_trimmed(struct talk *t, const struct chat_message *m, size_t i, struct err *e) {
  struct buf text;
  int last;
  if (left_open(t, i) && chat_last_text(m, i, &last, e) != 0) return -1;
  buf_init(&text, TOK_TEXT_BYTES_MAX);
  int rc = chat_text_only(m, i, &text, e);
  if (rc == 0) chat_write(t->w, chat_trim(str_of(buf_cstr(&text), text.len)));
  if (rc == 0 && left_open(t, i)) chat_stop(t->w, true);
  buf_free(&text);
  return rc;
}

/* "26 Jul 2024" */
static int write_date(struct chat_writer *w, const char *date, struct err *e) {
  static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  static const unsigned char days[] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  int64_t year = 0, month = 0, day = 0;
  if (date) {
    struct str s = str_c(date);
    bool read = s.n == 10 && s.p[4] == '-' && s.p[7] == '-' && str_to_i64(str_of(s.p, 4), 1, 9999, &year) &&
                str_to_i64(str_of(s.p + 5, 2), 1, 12, &month) && str_to_i64(str_of(s.p + 8, 2), 1, days[month - 1], &day);
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    if (!read || (month == 2 && day == 29 && !leap)) {
      char shown[60];
      return err_set(e, ERR_BAD_INPUT, "options.date: expected a day as YYYY-MM-DD, found \"%s\"", str_escape(s, shown, sizeof shown));
    }
  } else {
    time_t now = time(NULL);
    struct tm today = {0};
    localtime_r(&now, &today);
    year = today.tm_year + 1900;
    month = today.tm_mon + 1;
    day = today.tm_mday;
  }
  char text[40];
  snprintf(text, sizeof text, "%02d %s %04d", (int)day, months[month - 1], (int)year);
  chat_write_c(w, text);
  return 0;
}

static void write_json(struct chat_writer *w, const json_t *v, int indent) {
  struct buf b;
  buf_init(&b, TOK_TEXT_BYTES_MAX);
  chat_put_json(&b, v, indent);
  w->too_long |= b.overflow;
  chat_write(w, str_of(buf_cstr(&b), b.len));
  buf_free(&b);
}

static void write_functions(struct chat_writer *w, const json_t *tools) {
  chat_write_c(w, "Respond in the format {\"name\": function name, \"parameters\": dictionary of argument name and its value}."
                  "Do not use variables.\n\n");
  for (size_t i = 0; i < json_array_size(tools); i++) {
    write_json(w, json_array_get(tools, i), 4);
    chat_write_c(w, "\n\n");
  }
}

/* --- the parts of a conversation ----------------------------------------------------------------------------------------------------- */

static int has_pictures(const struct talk *t, bool *found, struct err *e) {
  *found = false;
  for (size_t i = t->next; i < t->n; i++) {
    struct chat_message m;
    if (chat_message_read(t->messages, i, &m, e) != 0) return -1;
    for (int k = 0; k < m.n_parts; k++) {
      struct chat_part part;
      if (chat_part_read(&m, i, k, &part, e) != 0) return -1;
      *found |= part.kind == CHAT_IMAGE;
    }
  }
  return 0;
}

static int write_system(struct talk *t, struct err *e) {
  struct chat_message m;
  struct buf text;
  bool pictures;
  if (chat_message_read(t->messages, 0, &m, e) != 0) return -1;
  bool told = m.role == CHAT_SYSTEM || m.role == CHAT_DEVELOPER;
  t->next = told;
  if (has_pictures(t, &pictures, e) != 0) return -1;
  if (pictures) {
    if (!told) return 0;
    buf_init(&text, TOK_TEXT_BYTES_MAX);
    int rc = chat_text_only(&m, 0, &text, e);
    bool empty = !chat_trim(str_of(buf_cstr(&text), text.len)).n;
    buf_free(&text);
    if (rc != 0 || empty) return rc;
    if (t->o->image) { /* the template refuses; the model's own code writes the text, and the dates never with a picture */
      begin_block(t->w, "system");
      if (write_trimmed(t, &m, 0, e) != 0) return -1;
      chat_write_control(t->w, "<|eot_id|>");
      return 0;
    }
    return err_set(e, ERR_BAD_INPUT, "messages[0].role: expected no %s message in a conversation with pictures", chat_role_name(m.role));
  }
  begin_block(t->w, "system");
  if (t->tools) chat_write_c(t->w, "Environment: ipython\n");
  chat_write_c(t->w, "Cutting Knowledge Date: December 2023\nToday Date: ");
  if (write_date(t->w, t->o->date, e) != 0) return -1;
  chat_write_c(t->w, "\n\n");
  if (t->tools && t->o->tools_in_system) {
    chat_write_c(t->w, "You have access to the following functions. To call a function, please respond with JSON for a function call.");
    write_functions(t->w, t->tools);
  }
  if (told && write_trimmed(t, &m, 0, e) != 0) return -1;
  chat_write_control(t->w, "<|eot_id|>");
  return 0;
}

/* Between functions and a picture there is no order that the model knows. */
static int refuse_first_picture(const struct talk *t, struct err *e) {
  for (size_t i = t->next; i < t->n; i++) {
    struct chat_message m;
    struct chat_part part;
    if (chat_message_read(t->messages, i, &m, e) != 0) return -1;
    if (m.role == CHAT_SYSTEM || m.role == CHAT_DEVELOPER) continue;
    for (int k = 0; k < m.n_parts; k++) {
      if (chat_part_read(&m, i, k, &part, e) != 0) return -1;
      if (part.kind != CHAT_TEXT)
        return err_set(e, ERR_BAD_INPUT, "messages[%zu].content[%d]: expected text only in the first message of a conversation with tools",
                       i, k);
    }
    break;
  }
  return 0;
}

/* The first message, whoever's it is, becomes a user's with the functions in front. */
static int write_tools_and_first(struct talk *t, struct err *e) {
  struct chat_message m;
  if (t->next == t->n)
    return err_set(e, ERR_BAD_INPUT, "messages[0].role: expected a user message to put the tools in front of, found only a system message");
  if (chat_message_read(t->messages, t->next, &m, e) != 0) return -1;
  begin_block(t->w, "user");
  chat_write_c(t->w, "Given the following functions, please respond with a JSON for a function call "
                     "with its proper arguments that best answers the given prompt.\n\n");
  write_functions(t->w, t->tools);
  if (write_trimmed(t, &m, t->next, e) != 0) return -1;
  chat_write_control(t->w, "<|eot_id|>");
  t->next++;
  return 0;
}

static int write_call(struct talk *t, const struct chat_message *m, const json_t *calls, size_t i, struct err *e) {
  const json_t *call = json_array_get(calls, 0), *name = json_object_get(json_object_get(call, "function"), "name");
  struct chat_part part;
  if (json_array_size(calls) != 1)
    return err_set(e, ERR_BAD_INPUT, "messages[%zu].tool_calls: expected a single call, this model takes one at a time, found %zu", i,
                   json_array_size(calls));
  for (int k = 0; k < m->n_parts; k++) { /* the text is left out; a picture must not be */
    if (chat_part_read(m, i, k, &part, e) != 0) return -1;
    if (part.kind != CHAT_TEXT) return err_set(e, ERR_BAD_INPUT, "messages[%zu].content[%d]: expected text only beside a call", i, k);
  }
  json_t *arguments = chat_arguments(call);
  begin_block(t->w, "assistant");
  chat_write_c(t->w, "{\"name\": \"");
  chat_write(t->w, str_of(json_string_value(name), json_string_length(name)));
  chat_write_c(t->w, "\", \"parameters\": ");
  write_json(t->w, arguments, 0);
  chat_write_c(t->w, "}");
  chat_write_control(t->w, "<|eot_id|>");
  json_decref(arguments);
  return 0;
}

static int write_result(struct talk *t, const struct chat_message *m, size_t i, struct err *e) {
  struct buf text, escaped;
  int last, rc;
  if (!m->content) return err_set(e, ERR_BAD_INPUT, "messages[%zu].content: expected the text of a result", i);
  if (left_open(t, i) && chat_last_text(m, i, &last, e) != 0) return -1;
  buf_init(&text, TOK_TEXT_BYTES_MAX);
  buf_init(&escaped, TOK_TEXT_BYTES_MAX);
  if ((rc = chat_text_only(m, i, &text, e)) != 0) goto done;
  begin_block(t->w, "ipython");
  chat_put_json_inside(&escaped, buf_cstr(&text), text.len);
  t->w->too_long |= escaped.overflow;
  chat_write_c(t->w, "\"");
  chat_write(t->w, str_of(buf_cstr(&escaped), escaped.len));
  if (left_open(t, i)) chat_stop(t->w, false);
  chat_write_c(t->w, "\"");
  chat_write_control(t->w, "<|eot_id|>");
done:
  buf_free(&text);
  buf_free(&escaped);
  return rc;
}

static int write_text(struct talk *t, const struct chat_message *m, size_t i, struct err *e) {
  struct buf text;
  int last = m->n_parts - 1;
  if (left_open(t, i) && chat_last_text(m, i, &last, e) != 0) return -1;
  bool system = m->role == CHAT_SYSTEM || m->role == CHAT_DEVELOPER;
  begin_block(t->w, system ? "system" : chat_role_name(m->role));
  if (system) { /* text only */
    buf_init(&text, TOK_TEXT_BYTES_MAX);
    int rc = chat_text_only(m, i, &text, e);
    buf_free(&text);
    if (rc != 0) return -1;
  }
  for (int k = 0; k <= last; k++) {
    struct chat_part part;
    if (chat_part_read(m, i, k, &part, e) != 0) return -1;
    if (part.kind == CHAT_TEXT) chat_write(t->w, part.text);
    else if (chat_write_media(t->w, t->o, part.kind, part.kind == CHAT_IMAGE ? "<|image|>" : NULL, i, k, e) != 0) return -1;
  }
  if (left_open(t, i)) chat_stop(t->w, false);
  chat_write_control(t->w, "<|eot_id|>");
  return 0;
}

int chat_llama(struct chat_writer *w, const json_t *messages, const json_t *tools, const struct chat_options *o, struct err *e) {
  struct talk t = {.w = w, .messages = messages, .tools = tools, .o = o, .n = json_array_size(messages)};
  chat_write_control(w, "<|begin_of_text|>");
  if (write_system(&t, e) != 0) return -1;
  if (tools && refuse_first_picture(&t, e) != 0) return -1;
  if (tools && !o->tools_in_system && write_tools_and_first(&t, e) != 0) return -1;
  for (size_t i = t.next; i < t.n; i++) {
    struct chat_message m;
    if (chat_message_read(messages, i, &m, e) != 0) return -1;
    const json_t *calls = chat_get(json_array_get(messages, i), "tool_calls");
    int rc = chat_truthy(calls)                              ? write_call(&t, &m, calls, i, e)
             : m.role == CHAT_TOOL || m.role == CHAT_IPYTHON ? write_result(&t, &m, i, e)
                                                             : write_text(&t, &m, i, e);
    if (rc != 0) return -1;
  }
  if (!o->no_generation_prompt && !o->continue_final_message) begin_block(w, "assistant");
  return 0;
}
