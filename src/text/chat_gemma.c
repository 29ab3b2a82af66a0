/* chat_gemma.c — the released conversation format of Gemma.
 *
 * Gemma 3:
 *   <bos> then for each message  <start_of_turn> ROLE \n CONTENT <end_of_turn> \n         ROLE: user, or model for the assistant
 *   and at last                  <start_of_turn> model \n
 * There is no system turn: a leading system message is put, untrimmed and with an empty line after it, in front of the first turn's
 * content. Users take every other turn. The template asks no more than that: another role at an odd place is written by its own
 * name, and a conversation that is nothing but a system message loses it. Each text part is trimmed on its own.
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

/* The turn is left open after its last text: what follows that is not written, and white space at the end goes too. */
static void leave_open(struct chat_writer *w) {
  if (!w->text.len) return;
  w->text.len = chat_trim_right(str_of(w->text.data, w->text.len)).n;
  w->text.data[w->text.len] = 0;
}

static int last_text_part(const struct chat_message *m, size_t i, int *last, struct err *e) {
  *last = -1;
  for (int k = 0; k < m->n_parts; k++) {
    struct chat_part part;
    if (chat_part_read(m, i, k, &part, e) != 0) return -1;
    if (part.kind == CHAT_TEXT) *last = k;
  }
  if (*last < 0) return err_set(e, ERR_BAD_INPUT, "messages[%zu].content: expected text that can be continued", i);
  return 0;
}

/* Parts 0..n-1. */
static int gemma3_content(struct chat_writer *w, const struct chat_message *m, size_t i, int n, bool allow_media, struct err *e) {
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
    else if (part.kind == CHAT_IMAGE && allow_media) chat_write_control(w, "<start_of_image>");
    else
      return err_set(e, ERR_UNSUPPORTED, "messages[%zu].content[%d]: expected text, this model takes no %s", i, k,
                     part.kind == CHAT_IMAGE   ? "pictures"
                     : part.kind == CHAT_AUDIO ? "sound"
                                               : "video");
  }
  return 0;
}

/* The leading system message, kept for the first turn. 1 if there is one. */
static int gemma3_prefix(const json_t *messages, struct buf *prefix, struct err *e) {
  struct chat_message m;
  if (chat_message_read(messages, 0, &m, e) != 0) return -1;
  if (m.role != CHAT_SYSTEM && m.role != CHAT_DEVELOPER) return 0;
  if (!m.content) return err_set(e, ERR_BAD_INPUT, "messages[0].content: expected text in a %s message", chat_role_name(m.role));
  if (chat_text_only(&m, 0, prefix, e) != 0) return -1;
  if (buf_puts(prefix, "\n\n")) return 1;
  return err_set(e, ERR_TOO_LARGE, "messages[0].content: expected less than %d bytes", TOK_TEXT_BYTES_MAX);
}

static int gemma3_turns(struct chat_writer *w, const json_t *messages, size_t first, struct str prefix, const struct chat_options *o,
                        struct err *e) {
  size_t n = json_array_size(messages);
  for (size_t i = first; i < n; i++) {
    struct chat_message m;
    if (chat_message_read(messages, i, &m, e) != 0 || expect_turn(&m, i, i - first, e) != 0) return -1;
    bool open = o->continue_final_message && i == n - 1;
    int last = m.n_parts - 1;
    if (open && last_text_part(&m, i, &last, e) != 0) return -1;
    chat_write_control(w, "<start_of_turn>");
    chat_write(w, str_c(m.role == CHAT_ASSISTANT ? "model" : m.role == CHAT_DEVELOPER ? "system" : chat_role_name(m.role)));
    chat_write(w, str_c("\n"));
    if (i == first) chat_write(w, prefix);
    if (gemma3_content(w, &m, i, last + 1, o->allow_media, e) != 0) return -1;
    if (open) {
      leave_open(w);
    } else {
      chat_write_control(w, "<end_of_turn>");
      chat_write(w, str_c("\n"));
    }
  }
  return 0;
}

int chat_gemma3(struct chat_writer *w, const json_t *messages, const struct chat_options *o, struct err *e) {
  struct buf prefix;
  buf_init(&prefix, TOK_TEXT_BYTES_MAX);
  int system = gemma3_prefix(messages, &prefix, e), rc = -1;
  if (system < 0) goto done;
  if (o->continue_final_message && json_array_size(messages) == (size_t)system) {
    err_set(e, ERR_BAD_INPUT, "messages: expected a turn that can be continued, found only a system message");
    goto done;
  }
  chat_write_control(w, "<bos>");
  rc = gemma3_turns(w, messages, (size_t)system, str_of(buf_cstr(&prefix), prefix.len), o, e);
  if (rc == 0 && !o->no_generation_prompt && !o->continue_final_message) {
    chat_write_control(w, "<start_of_turn>");
    chat_write(w, str_c("model\n"));
  }
done:
  buf_free(&prefix);
  return rc;
}
