/* output_llama.c — calls in a whole answer, as Llama writes them and as Gemma 3 is asked to.
 *
 *   {"name": ..., "parameters": {...}}   one or several, blanks ; or , between them; or one array of them
 *   [name(key=value, ...), ...]
 *   name.call(query="...")               after the tag only
 *
 * All or nothing but for objects in a row: those before the first that is no call count, the text from there on is left over.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/output_impl.h"

/* Calls that were read and may turn out not to count. */
struct found {
  struct values *values; /* scratch */
  struct buf text;       /* names and arguments, one after the other */
  struct span {
    size_t name, n_name, arguments, n_arguments;
  } * calls; /* owned */
  int n, cap;
  bool tagged;
  const struct output_options *o;
};

static bool counts(const struct found *f, struct str name) {
  for (int i = 0; i < f->o->n_names; i++)
    if (str_is(name, f->o->names[i])) return true;
  return f->tagged;
}

/* False: no such function is on offer. arguments: of the scratch tree, -1: {}. */
static bool add(struct found *f, struct str name, int arguments) {
  if (!name.n || !counts(f, name)) return false;
  if (f->n == f->cap) {
    f->cap = f->cap ? 2 * f->cap : 8;
    f->calls = xrealloc(f->calls, (size_t)f->cap * sizeof *f->calls);
  }
  struct span *s = &f->calls[f->n++];
  *s = (struct span){.name = f->text.len, .n_name = name.n, .arguments = f->text.len + name.n};
  buf_append(&f->text, name.p, name.n);
  if (arguments < 0) buf_puts(&f->text, "{}");
  else values_put(f->values, arguments, &f->text);
  s->n_arguments = f->text.len - s->arguments;
  return true;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------------------- */

static bool only_keys(const struct values *t, int object, const char *const *keys) {
  for (int i = t->v[object].first; i >= 0; i = t->v[i].next) {
    size_t k = 0;
    while (keys[k] && !str_is(values_key(t, i), keys[k])) k++;
    if (!keys[k] && !t->v[i].dropped) return false;
  }
  return true;
}

/* Arguments that are a string with an object in it. The string is copied: reading it adds to the text that it is a part of. */
static int read_inner(struct found *f, int i) {
  struct str text = values_text(f->values, i);
  if (output_all_blank(text)) return -1;
  char *copy = xstrndup(text.p, text.n);
  struct values_reader r = {.p = copy, .end = copy + text.n, .syntax = SYNTAX_JSON, .out = f->values};
  int inner = values_read(&r, 0, -1);
  values_skip_blanks(&r);
  bool whole = inner >= 0 && r.p == r.end;
  free(copy);
  return whole ? inner : i; /* i is no object: the caller sees that */
}

static bool add_json(struct found *f, int i) {
  static const char *const outer[] = {"type", "id", "function", NULL}, *const keys[] = {"type",       "id",        "name",
                                                                                        "parameters", "arguments", NULL};
  struct values *t = f->values;
  if (t->v[i].kind != VALUE_OBJECT) return false;
  int function = values_find(t, i, "function");
  if (function >= 0 && t->v[function].kind == VALUE_OBJECT && only_keys(t, i, outer)) i = function;
  int name = values_find(t, i, "name"), parameters = values_find(t, i, "parameters"), arguments = values_find(t, i, "arguments");
  if (name < 0 || t->v[name].kind != VALUE_STRING || !only_keys(t, i, keys) || (parameters >= 0 && arguments >= 0)) return false;
  int a = parameters >= 0 ? parameters : arguments;
  if (a >= 0 && t->v[a].kind == VALUE_STRING) a = read_inner(f, a);
  if (a >= 0 && t->v[a].kind == VALUE_WORD && str_is(values_text(t, a), "null")) a = -1;
  if (a >= 0 && t->v[a].kind != VALUE_OBJECT) return false;
  return add(f, values_text(t, name), a);
}

/* Takes what it can from the front of the text; where it stops. */
static const char *take_objects(struct found *f, const char *from, const char *end) {
  for (const char *p = from;;) {
    while (p < end && (output_is_blank(*p) || (p > from && f->n && (*p == ';' || *p == ',')))) p++;
    if (p == end || *p != '{') return p;
    struct values_reader r = {.p = p, .end = end, .syntax = SYNTAX_JSON, .out = f->values};
    values_clear(f->values);
    int i = values_read(&r, 0, -1);
    if (i < 0 || !add_json(f, i)) return p;
    p = r.p;
  }
}

static bool take_array(struct found *f, const char *p, const char *end, const char **rest) {
  struct values_reader r = {.p = p, .end = end, .syntax = SYNTAX_JSON, .out = f->values};
  values_clear(f->values);
  int array = values_read(&r, 0, -1);
  *rest = r.p;
  if (array < 0 || f->values->v[array].kind != VALUE_ARRAY) return false;
  for (int i = f->values->v[array].first; i >= 0; i = f->values->v[i].next)
    if (!add_json(f, i)) return false;
  return f->n > 0;
}

/* ---- Python ------------------------------------------------------------------------------------------------------------------ */

static bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80; }
static bool is_name(char c) { return begins_name(c) || (c >= '0' && c <= '9'); }

static bool next_is(struct values_reader *r, char c) {
  values_skip_blanks(r);
  if (r->p == r->end || *r->p != c) return false;
  r->p++;
  return true;
}

static struct str take_name(struct values_reader *r) {
  values_skip_blanks(r);
  const char *from = r->p;
  if (r->p < r->end && begins_name(*r->p))
    while (r->p < r->end && is_name(*r->p)) r->p++;
  return str_of(from, (size_t)(r->p - from));
}

/* key=value, ...) */
static bool take_arguments(struct values_reader *r, int object) {
  do {
    if (next_is(r, ')')) goto done;
    struct str key = take_name(r);
    if (!key.n || !next_is(r, '=')) return false;
    int i = values_read(r, 1, object);
    if (i < 0) return false;
    r->out->v[i].key = (uint32_t)r->out->text.len;
    r->out->v[i].n_key = (uint32_t)key.n;
    buf_append(&r->out->text, key.p, key.n);
  } while (next_is(r, ','));
  if (!next_is(r, ')')) return false;
done:
  values_settle(r->out, object);
  return true;
}

static bool take_python(struct found *f, const char *p, const char *end) {
  struct values_reader r = {.p = p, .end = end, .syntax = SYNTAX_PYTHON, .out = f->values};
  bool good = next_is(&r, '[');
  while (good) {
    if (f->n && next_is(&r, ']')) break;
    struct buf name;
    struct str piece = take_name(&r);
    buf_init(&name, 0);
    buf_append(&name, piece.p, piece.n);
    while (piece.n && next_is(&r, '.')) {
      piece = take_name(&r);
      buf_putc(&name, '.');
      buf_append(&name, piece.p, piece.n);
    }
    values_clear(f->values);
    int arguments = values_add(f->values, VALUE_OBJECT, -1);
    good = piece.n && next_is(&r, '(') && take_arguments(&r, arguments) && add(f, str_of(buf_cstr(&name), name.len), arguments);
    buf_free(&name);
    if (good && !next_is(&r, ',')) {
      good = next_is(&r, ']');
      break;
    }
  }
  values_skip_blanks(&r);
  return good && r.p == end;
}

/* name.call(query="...") */
static bool take_builtin(struct found *f, const char *p, const char *end) {
  static const char middle[] = ".call(query=";
  struct values_reader r = {.p = p, .end = end, .syntax = SYNTAX_JSON, .out = f->values};
  struct str name = take_name(&r);
  if (!name.n || (size_t)(end - r.p) <= strlen(middle) || memcmp(r.p, middle, strlen(middle)) || r.p[strlen(middle)] != '"') return false;
  r.p += strlen(middle);
  values_clear(f->values);
  int object = values_add(f->values, VALUE_OBJECT, -1), i = values_read(&r, 1, object);
  if (i < 0 || r.p == end || *r.p++ != ')') return false;
  f->values->v[i].key = (uint32_t)f->values->text.len;
  f->values->v[i].n_key = 5;
  buf_puts(&f->values->text, "query");
  values_skip_blanks(&r);
  return r.p == end && add(f, name, object);
}

/* ---- answers ----------------------------------------------------------------------------------------------------------------- */

int output_llama_calls(struct str body, bool tagged, const struct output_options *o, struct values *scratch, output_call_fn fn, void *ctx,
                       struct str *rest) {
  struct found f = {.values = scratch, .tagged = tagged, .o = o};
  const char *p = body.p, *end = body.p + body.n, *left = end;
  buf_init(&f.text, 0);
  while (p < end && output_is_blank(*p)) p++;
  if (p < end && *p == '{') {
    left = take_objects(&f, p, end);
  } else if (p < end && *p == '[') {
    if (!take_array(&f, p, end, &left)) {
      f.n = 0;
      left = end;
      if (!take_python(&f, p, end)) f.n = 0;
    }
  } else if (tagged && !take_builtin(&f, p, end)) {
    f.n = 0;
  }
  for (int i = 0; i < f.n; i++)
    fn(ctx, str_of(buf_cstr(&f.text) + f.calls[i].name, f.calls[i].n_name),
       str_of(buf_cstr(&f.text) + f.calls[i].arguments, f.calls[i].n_arguments));
  *rest = f.n ? str_of(left, (size_t)(end - left)) : body;
  if (f.n && output_all_blank(*rest)) rest->n = 0;
  int n = f.n;
  buf_free(&f.text);
  free(f.calls);
  return n;
}

bool output_llama_hopeless(struct str s) {
  size_t i = 0;
  while (i < s.n && output_is_blank(s.p[i])) i++;
  if (i == s.n) return false;
  char open = s.p[i++];
  if (open != '{' && open != '[') return true;
  while (i < s.n && output_is_blank(s.p[i])) i++;
  if (i == s.n) return false;
  return open == '{' ? s.p[i] != '"' : (s.p[i] != '{' && !begins_name(s.p[i]));
}
