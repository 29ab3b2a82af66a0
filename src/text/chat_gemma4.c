/* chat_gemma4.c — the released conversation format of Gemma 4 (the template published in July 2026).
 *
 *   <bos>
 *   <|turn> system \n  [<|think|> \n]  TEXT  [<|tool> declaration <tool|>]...  <turn|> \n        if there is any of the three
 *   <|turn> ROLE \n  CONTENT  <turn|> \n                                                       ROLE: user, model, and others by their own name
 *   <|turn> model \n  and, on the large models without thinking, an empty thought              where the answer goes
 *
 * A turn of the model, in this order:
 *   <|channel> thought \n REASONING \n <channel|>     only after the last user message, or with preserve_thinking where it called something
 *   <|tool_call> call:NAME{key:value} <tool_call|>    one after the other
 *   <|tool_response> response:NAME{value:RESULT} <tool_response|>     the tool messages that follow, then their pictures
 *   TEXT, without thoughts that stand in it
 * Assistant messages that follow one another, or their tool results, share one turn. A call that nothing answers yet leaves the turn open
 * after <|tool_response>, which is how the model itself ends; answered calls with nothing said after them leave it open, too: the
 * answer goes on there, with thinking inside a thought.
 */
#include "text/chat_impl.h"

#include <string.h>

struct talk {
  struct chat_writer *w;
  const json_t *messages;
  const struct chat_options *o;
  size_t n, first;       /* messages; the first that is not the system's */
  size_t after_user;     /* index after the last user message */
  bool called, answered; /* how the last message that was written ended */
  bool by_assistant;     /* the last message other than a tool's was the assistant's */
};

static bool left_open(const struct talk *t, size_t i) { return t->o->continue_final_message && i == t->n - 1; }

static bool is_role(const json_t *message, const char *role) {
  const json_t *r = json_object_get(message, "role");
  return json_is_string(r) && str_is(str_of(json_string_value(r), json_string_length(r)), role);
}
static bool is_tool(const json_t *message) { return is_role(message, "tool") || is_role(message, "function"); }

static int write_media(struct talk *t, const struct chat_part *part, size_t i, int k, struct err *e) {
  const char *spelling = part->kind == CHAT_IMAGE ? "<|image|>" : part->kind == CHAT_AUDIO ? "<|audio|>" : "<|video|>";
  return chat_write_media(t->w, t->o, part->kind, spelling, i, k, e);
}

/* --- the system's turn --------------------------------------------------------------------------------------------------------------- */

static struct str trim_left(struct str s) {
  size_t kept = s.n - chat_trim_right(s).n; /* what chat_trim takes from the end is put back */
  s = chat_trim(s);
  return str_of(s.p, s.n ? s.n + kept : 0);
}

/* Parts are trimmed and followed by a blank each. */
static int write_system_text(struct talk *t, const struct chat_message *m, struct err *e) {
  bool open = left_open(t, 0);
  int last = m->n_parts - 1;
  if (open && chat_last_text(m, 0, &last, e) != 0) return -1;
  for (int k = 0; k <= last; k++) {
    struct chat_part part;
    if (chat_part_read(m, 0, k, &part, e) != 0) return -1;
    if (part.kind != CHAT_TEXT)
      return err_set(e, ERR_BAD_INPUT, "messages[0].content[%d]: expected text only in a %s message", k, chat_role_name(m->role));
    bool in_parts = json_is_array(m->content), cut = open && k == last;
    chat_write(t->w, cut && in_parts ? trim_left(part.text) : chat_trim(part.text));
    if (cut) chat_stop(t->w, !in_parts);
    if (in_parts) chat_write_c(t->w, " ");
  }
  return 0;
}

static int write_system(struct talk *t, const json_t *tools, struct err *e) {
  struct chat_message m;
  if (chat_message_read(t->messages, 0, &m, e) != 0) return -1;
  bool system = m.role == CHAT_SYSTEM || m.role == CHAT_DEVELOPER;
  t->first = system;
  if (!system && !tools && !t->o->enable_thinking) return 0;
  chat_write_control(t->w, "<|turn>");
  chat_write_c(t->w, "system\n");
  if (t->o->enable_thinking) {
    chat_write_control(t->w, "<|think|>");
    chat_write_c(t->w, "\n");
  }
  if (system && write_system_text(t, &m, e) != 0) return -1;
  for (size_t i = 0; i < json_array_size(tools); i++)
    if (chat_gemma4_declare(t->w, json_array_get(tools, i), i, e) != 0) return -1;
  chat_write_control(t->w, "<turn|>");
  chat_write_c(t->w, "\n");
  return 0;
}

/* --- thoughts, calls, results -------------------------------------------------------------------------------------------------------- */

static int write_reasoning(struct talk *t, const json_t *message, size_t i, bool calls, struct err *e) {
  const json_t *text = chat_get(message, "reasoning");
  if (!chat_truthy(text)) text = chat_get(message, "reasoning_content");
  if (!chat_truthy(text) || !(i >= t->after_user || (t->o->preserve_thinking && calls))) return 0;
  if (!json_is_string(text)) return err_set(e, ERR_BAD_INPUT, "messages[%zu].reasoning_content: expected a string", i);
  chat_write_control(t->w, "<|channel>");
  chat_write_c(t->w, "thought\n");
  chat_write(t->w, str_of(json_string_value(text), json_string_length(text)));
  chat_write_c(t->w, "\n");
  chat_write_control(t->w, "<channel|>");
  return 0;
}

static void write_name(struct chat_writer *w, const json_t *name) {
  chat_write(w, name ? str_of(json_string_value(name), json_string_length(name)) : str_c("unknown"));
}

static void write_calls(struct chat_writer *w, const json_t *calls) {
  for (size_t k = 0; k < json_array_size(calls); k++) {
    const json_t *call = json_array_get(calls, k), *name = json_object_get(json_object_get(call, "function"), "name");
    json_t *arguments = chat_arguments(call);
    chat_write_control(w, "<|tool_call>");
    chat_write_c(w, "call:");
    chat_write(w, str_of(json_string_value(name), json_string_length(name)));
    chat_write_c(w, "{");
    chat_gemma4_members(w, arguments);
    chat_write_c(w, "}");
    chat_write_control(w, "<tool_call|>");
    json_decref(arguments);
  }
}

/* The message's own results, {"name", "response"}. */
static int write_responses(struct chat_writer *w, const json_t *responses, size_t i, struct err *e) {
  if (!json_is_array(responses)) return err_set(e, ERR_BAD_INPUT, "messages[%zu].tool_responses: expected an array", i);
  for (size_t k = 0; k < json_array_size(responses); k++) {
    const json_t *one = json_array_get(responses, k), *name = json_object_get(one, "name"), *response = json_object_get(one, "response");
    if (!json_is_object(one) || (chat_truthy(name) && !json_is_string(name)))
      return err_set(e, ERR_BAD_INPUT, "messages[%zu].tool_responses[%zu]: expected an object with a name and a response", i, k);
    chat_write_control(w, "<|tool_response>");
    chat_write_c(w, "response:");
    write_name(w, chat_truthy(name) ? name : NULL);
    chat_write_c(w, json_is_object(response) ? "{" : "{value:");
    if (json_is_object(response)) chat_gemma4_members(w, response);
    else if (response) chat_gemma4_value(w, response, false);
    else chat_write_c(w, "[]"); /* what the template makes of nothing */
    chat_write_c(w, "}");
    chat_write_control(w, "<tool_response|>");
  }
  return 0;
}

/* Message i, a tool's, answers one of the calls. */
static int write_result(struct talk *t, const json_t *callees, size_t i, struct err *e) {
  struct chat_message m;
  struct chat_part part;
  const json_t *name;
  int last;
  if (chat_message_read(t->messages, i, &m, e) != 0 || chat_callee(callees, json_array_get(t->messages, i), i, &name, e) != 0) return -1;
  if (left_open(t, i) && chat_last_text(&m, i, &last, e) != 0) return -1;
  chat_write_control(t->w, "<|tool_response>");
  chat_write_c(t->w, "response:");
  write_name(t->w, name);
  chat_write_c(t->w, "{value:");
  if (m.content) chat_write_control(t->w, "<|\"|>");
  else chat_write_c(t->w, "null");
  for (int k = 0; k < m.n_parts; k++) {
    if (chat_part_read(&m, i, k, &part, e) != 0) return -1;
    if (part.kind == CHAT_TEXT) chat_write(t->w, part.text);
  }
  if (left_open(t, i)) chat_stop(t->w, false);
  if (m.content) chat_write_control(t->w, "<|\"|>");
  chat_write_c(t->w, "}");
  chat_write_control(t->w, "<tool_response|>");
  for (int k = 0; k < m.n_parts; k++) {
    if (chat_part_read(&m, i, k, &part, e) != 0) return -1;
    if (part.kind != CHAT_TEXT && write_media(t, &part, i, k, e) != 0) return -1;
  }
  return 0;
}

/* Calls of message i and what came back; sets called and answered. */
static int write_tools(struct talk *t, const json_t *message, const json_t *calls, size_t i, struct err *e) {
  const json_t *own = chat_get(message, "tool_responses");
  write_calls(t->w, calls);
  t->called = calls != NULL;
  t->answered = chat_truthy(own);
  if (t->answered) return write_responses(t->w, own, i, e);
  if (!calls) return 0;
  json_t *callees = chat_callees(calls);
  int rc = 0;
  for (size_t k = i + 1; rc == 0 && k < t->n && is_tool(json_array_get(t->messages, k)); k++) {
    rc = write_result(t, callees, k, e);
    t->answered = true;
  }
  json_decref(callees);
  return rc;
}

/* --- text ---------------------------------------------------------------------------------------------------------------------------- */

static struct str find(struct str s, const char *what) {
  size_t n = strlen(what);
  const char *p = s.n >= n ? memmem(s.p, s.n, what, n) : NULL;
  return p ? str_of(p, s.n - (size_t)(p - s.p)) : str_of(s.p + s.n, 0);
}

/* Thoughts taken out: from each stretch up to a <channel|> everything from its first <|channel> on. True if anything but blanks is left. */
static bool write_without_thoughts(struct chat_writer *w, struct str s) {
  struct buf kept;
  buf_init(&kept, TOK_TEXT_BYTES_MAX);
  for (;;) {
    struct str end = find(s, "<channel|>"), piece = str_of(s.p, s.n - end.n), thought = find(piece, "<|channel>");
    buf_append(&kept, piece.p, piece.n - thought.n);
    if (!end.n) break;
    s = str_of(end.p + strlen("<channel|>"), end.n - strlen("<channel|>"));
  }
  struct str text = chat_trim(str_of(buf_cstr(&kept), kept.len));
  w->too_long |= kept.overflow;
  chat_write(w, text);
  buf_free(&kept);
  return text.n > 0;
}

static int write_content(struct talk *t, const struct chat_message *m, size_t i, bool *said, struct err *e) {
  int last = m->n_parts - 1;
  *said = false;
  if (left_open(t, i) && chat_last_text(m, i, &last, e) != 0) return -1;
  for (int k = 0; k <= last; k++) {
    struct chat_part part;
    if (chat_part_read(m, i, k, &part, e) != 0) return -1;
    if (part.kind != CHAT_TEXT) {
      if (write_media(t, &part, i, k, e) != 0) return -1;
      *said = true;
    } else if (m->role == CHAT_ASSISTANT || m->role == CHAT_MODEL) {
      *said |= write_without_thoughts(t->w, part.text);
    } else {
      chat_write(t->w, chat_trim(part.text));
      *said |= chat_trim(part.text).n > 0;
    }
  }
  if (left_open(t, i)) chat_stop(t->w, true);
  return 0;
}

/* --- turns --------------------------------------------------------------------------------------------------------------------------- */

/* Message i, which is not a tool's. */
static int write_message(struct talk *t, size_t i, struct err *e) {
  const json_t *message = json_array_get(t->messages, i), *calls = chat_get(message, "tool_calls");
  struct chat_message m;
  bool said;
  if (chat_message_read(t->messages, i, &m, e) != 0) return -1;
  if (!chat_truthy(calls)) calls = NULL;
  bool by_model = m.role == CHAT_ASSISTANT || m.role == CHAT_MODEL;
  if (!(by_model && t->by_assistant)) {
    chat_write_control(t->w, "<|turn>");
    chat_write_c(t->w, by_model ? "model" : chat_role_name(m.role));
    chat_write_c(t->w, "\n");
  }
  if (write_reasoning(t, message, i, calls != NULL, e) != 0 || write_tools(t, message, calls, i, e) != 0 ||
      write_content(t, &m, i, &said, e) != 0)
    return -1;
  size_t next = i + 1;
  while (next < t->n && is_tool(json_array_get(t->messages, next))) next++;
  bool goes_on = by_model && next < t->n && is_role(json_array_get(t->messages, next), "assistant") && (!calls || t->answered);
  if (t->called && !t->answered) {
    chat_write_control(t->w, "<|tool_response>");
  } else if (!goes_on && !(t->answered && !said && next == t->n)) {
    chat_write_control(t->w, "<turn|>");
    chat_write_c(t->w, "\n");
  }
  t->by_assistant = m.role == CHAT_ASSISTANT;
  return 0;
}

static void write_opening(struct talk *t, bool small) {
  if (!t->called && !t->answered) {
    chat_write_control(t->w, "<|turn>");
    chat_write_c(t->w, "model\n");
    if (t->o->enable_thinking || small) return;
    chat_write_control(t->w, "<|channel>");
    chat_write_c(t->w, "thought\n");
    chat_write_control(t->w, "<channel|>");
  } else if (t->answered && t->o->enable_thinking) {
    chat_write_control(t->w, "<|channel>");
    chat_write_c(t->w, "thought\n");
    t->w->out->in_thought = true;
  }
}

int chat_gemma4(struct chat_writer *w, const json_t *messages, const json_t *tools, const struct chat_options *o, bool small,
                struct err *e) {
  struct talk t = {.w = w, .messages = messages, .o = o, .n = json_array_size(messages)};
  chat_write_control(w, "<bos>");
  if (write_system(&t, tools, e) != 0) return -1;
  for (size_t i = t.first; i < t.n; i++)
    if (is_role(json_array_get(messages, i), "user")) t.after_user = i + 1;
  for (size_t i = t.first; i < t.n; i++) {
    struct chat_message m;
    if (chat_message_read(messages, i, &m, e) != 0) return -1;
    if (m.role != CHAT_TOOL && write_message(&t, i, e) != 0) return -1;
  }
  if (!o->no_generation_prompt && !o->continue_final_message) write_opening(&t, small);
  return 0;
}
