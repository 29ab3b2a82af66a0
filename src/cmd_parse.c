/* cmd_parse.c — answers taken apart: JSON lines in, JSON lines out (command_lines.c). A vocabulary is enough; it says whose way to write calls and thoughts it is.
 *
 *   {"chunks": ["...", ...], "options": {"tools": true | false | [names], "start": "content" | "reasoning"}, "finish": "stop"}
 *   {"content", "reasoning_content", "tool_calls": [{"index", "name", "arguments"}], "finish_reason"}
 *
 * Chunks are text with the control tokens spelled out. Without options.tools everybody's calls count where the family marks them, and none where
 * only a list of names could tell.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "commands.h"
#include "files/json.h"
#include "text/output.h"

struct parts {
  struct buf content, reasoning;
  json_t *calls;
};

static void take_part(void *ctx, const struct output_part *part) {
  struct parts *p = ctx;
  if (part->kind == OUTPUT_CONTENT) buf_append(&p->content, part->text.p, part->text.n);
  if (part->kind == OUTPUT_REASONING) buf_append(&p->reasoning, part->text.p, part->text.n);
  if (part->kind != OUTPUT_CALL) return;
  json_t *call = json_object();
  json_object_set_new(call, "index", json_integer(part->index));
  json_object_set_new(call, "name", json_stringn(part->name.p, part->name.n));
  json_object_set_new(call, "arguments", json_stringn(part->text.p, part->text.n));
  json_array_append_new(p->calls, call);
}

/* names: owned list, the strings are borrowed from the options. */
static int read_options(const json_t *options, struct output_options *o, const char ***names, struct err *e) {
  const json_t *tools = json_object_get(options, "tools");
  const char *start = "content";
  o->tools = !tools || json_is_null(tools) || json_is_true(tools) || json_array_size(tools);
  if (tools && !json_is_null(tools) && !json_is_boolean(tools) && !json_is_array(tools))
    return err_set(e, ERR_BAD_INPUT, "options: tools: expected true, false or an array of names");
  *names = xcalloc(json_array_size(tools) + 1, sizeof **names);
  for (size_t i = 0; i < json_array_size(tools); i++) {
    const char *name = json_string_value(json_array_get(tools, i));
    if (!name) return err_set(e, ERR_BAD_INPUT, "options: tools[%zu]: expected a string", i);
    (*names)[o->n_names++] = name;
  }
  o->names = *names;
  if (json_get_string(options, "start", &start, NULL, "options", e) < 0) return -1;
  if (strcmp(start, "content") && strcmp(start, "reasoning"))
    return err_set(e, ERR_BAD_INPUT, "options: start: expected \"content\" or \"reasoning\"");
  o->in_thought = !strcmp(start, "reasoning");
  return 0;
}

static json_t *answer(const struct parts *p, const char *finish) {
  json_t *out = json_object();
  bool calls = json_array_size(p->calls) && !strcmp(finish, "stop");
  json_object_set_new(out, "content", json_stringn(buf_cstr(&p->content), p->content.len));
  json_object_set_new(out, "reasoning_content", json_stringn(buf_cstr(&p->reasoning), p->reasoning.len));
  json_object_set(out, "tool_calls", p->calls);
  json_object_set_new(out, "finish_reason", json_string(calls ? "tool_calls" : finish));
  return out;
}

static json_t *parse_line(void *ctx, const json_t *in, struct err *e) {
  const struct tokenizer *t = ctx;
  const json_t *chunks = NULL, *options = NULL;
  const char *finish = "stop", **names = NULL;
  struct output_options o = {.family = tok_family(t)};
  struct parts p = {.calls = json_array()};
  json_t *out = NULL;
  buf_init(&p.content, 0);
  buf_init(&p.reasoning, 0);
  int found = json_get_array(in, "chunks", &chunks, "line", e);
  if (found == 0) err_set(e, ERR_BAD_INPUT, "line: expected an array \"chunks\", found none");
  if (found != 1 || json_get_object(in, "options", &options, "line", e) < 0 ||
      json_get_string(in, "finish", &finish, NULL, "line", e) < 0 || read_options(options, &o, &names, e) < 0)
    goto done;
  struct output *output = output_new(t, &o, take_part, &p);
  size_t i;
  for (i = 0; i < json_array_size(chunks); i++) {
    const json_t *chunk = json_array_get(chunks, i);
    if (!json_is_string(chunk)) break;
    output_raw(output, json_string_value(chunk), json_string_length(chunk));
  }
  output_finish(output);
  output_delete(output);
  if (i < json_array_size(chunks)) err_set(e, ERR_BAD_INPUT, "line: chunks[%zu]: expected a string", i);
  else out = answer(&p, finish);
done:
  free(names);
  buf_free(&p.content);
  buf_free(&p.reasoning);
  json_decref(p.calls);
  return out;
}

int cmd_parse(const struct options *o) {
  int status = 0;
  struct tokenizer *t = command_tokenizer(o, &status);
  if (t) status = command_lines(parse_line, t);
  tok_close(t);
  return status;
}
