/* config_json.c — config.json and generation_config.json: finding the family, and the getters of its reader. */
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "files/config_read.h"

enum { CONFIG_BYTES_MAX = 16 << 20 };

static int missing(const char *where, const char *key, struct err *e) {
  return err_set(e, ERR_BAD_FILE, "%s: %s: expected this key, it is missing", where, key);
}

int config_json_int(const struct config_json *s, const char *key, int64_t lo, int64_t hi, int64_t dflt, int *out, struct err *e) {
  int64_t v = dflt;
  if (json_get_int(s->text, key, lo, hi, &v, s->where_text, e) < 0) return -1;
  if (v == CONFIG_REQUIRED_INT) return missing(s->where_text, key, e);
  *out = (int)v;
  return 0;
}

int config_json_float(const struct config_json *s, const char *key, double lo, double hi, double dflt, double *out, struct err *e) {
  double v = dflt;
  if (json_get_float(s->text, key, lo, hi, &v, s->where_text, e) < 0) return -1;
  if (isnan(v)) return missing(s->where_text, key, e);
  *out = v;
  return 0;
}

int config_json_must_be_off(const struct config_json *s, const char *key, struct err *e) {
  const json_t *v = json_object_get(s->text, key);
  if (!v || json_is_null(v) || json_is_false(v) || (json_is_number(v) && json_number_value(v) == 0)) return 0;
  return err_set(e, ERR_UNSUPPORTED, "%s: %s: expected it to be off, this build cannot do it", s->where_text, key);
}

int config_json_must_be(const struct config_json *s, const char *key, const char *value, struct err *e) {
  const char *found = value;
  char text[80];
  if (json_get_string(s->text, key, &found, NULL, s->where_text, e) < 0) return -1;
  if (strcmp(found, value) != 0)
    return err_set(e, ERR_UNSUPPORTED, "%s: %s: expected \"%s\", found \"%s\"", s->where_text, key, value,
                   str_escape(str_c(found), text, sizeof text));
  return 0;
}

int config_json_not_quantised(const struct config_json *s, struct err *e) {
  const json_t *quantised = json_object_get(s->top, "quantization_config");
  if (!quantised) quantised = json_object_get(s->top, "quantization");
  if (!quantised || json_is_null(quantised)) return 0;
  return err_set(e, ERR_UNSUPPORTED, "%s: quantization_config: quantised safetensors are not supported; use a GGUF file", s->where_top);
}

int config_json_layer_types(struct model_config *c, const struct config_json *s, struct err *e) {
  const json_t *types = NULL;
  int given = json_get_array(s->text, "layer_types", &types, s->where_text, e);
  if (given <= 0) return given;
  if (json_array_size(types) != (size_t)c->n_layers)
    return err_set(e, ERR_BAD_FILE, "%s: layer_types: expected %d entries, found %zu", s->where_text, c->n_layers, json_array_size(types));
  for (int l = 0; l < c->n_layers; l++) {
    const char *name = json_string_value(json_array_get(types, (size_t)l));
    char text[60];
    if (name && !strcmp(name, "full_attention")) c->layers[l].kind = LAYER_FULL;
    else if (name && !strcmp(name, "sliding_attention")) c->layers[l].kind = LAYER_SLIDING;
    else
      return err_set(e, ERR_UNSUPPORTED, "%s: layer_types[%d]: expected \"full_attention\" or \"sliding_attention\", found \"%s\"",
                     s->where_text, l, str_escape(str_c(name ? name : "(no text)"), text, sizeof text));
  }
  return 1;
}

/* One id, or with `list` several; returns how many were found (0: look elsewhere), -1 on error. */
static int read_ids(const json_t *o, const char *where, const char *key, bool list, int vocab, int32_t *ids, struct err *e) {
  const json_t *v = o ? json_object_get(o, key) : NULL;
  if (!v || json_is_null(v)) return 0;
  if (!list || !json_is_array(v)) {
    int64_t id;
    int found = json_get_int(o, key, 0, vocab - 1, &id, where, e);
    if (found == 1) ids[0] = (int32_t)id;
    return found;
  }
  if (json_array_size(v) > CONFIG_EOS_MAX)
    return err_set(e, ERR_BAD_FILE, "%s: %s: expected at most %d ids, found %zu", where, key, CONFIG_EOS_MAX, json_array_size(v));
  for (size_t i = 0; i < json_array_size(v); i++) {
    const json_t *id = json_array_get(v, i);
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= vocab)
      return err_set(e, ERR_BAD_FILE, "%s: %s[%zu]: expected an id from 0 to %d", where, key, i, vocab - 1);
    ids[i] = (int32_t)json_integer_value(id);
  }
  return (int)json_array_size(v);
}

static int find_ids(const struct config_json *s, const char *key, bool list, int vocab, int32_t *ids, struct err *e) {
  int n = read_ids(s->generation, s->where_generation, key, list, vocab, ids, e);
  if (n == 0) n = read_ids(s->top, s->where_top, key, list, vocab, ids, e);
  if (n == 0 && s->text != s->top) n = read_ids(s->text, s->where_text, key, list, vocab, ids, e);
  return n;
}

int config_json_ids(struct model_config *c, const struct config_json *s, int bos, int pad, int eos, struct err *e) {
  int32_t ids[CONFIG_EOS_MAX] = {eos};
  c->bos = bos < c->vocab ? bos : -1;
  c->pad = pad < c->vocab ? pad : -1;
  if (find_ids(s, "bos_token_id", false, c->vocab, &c->bos, e) < 0 || find_ids(s, "pad_token_id", false, c->vocab, &c->pad, e) < 0)
    return -1;
  int n = find_ids(s, "eos_token_id", true, c->vocab, ids, e);
  if (n < 0) return -1;
  if (n == 0) n = eos < c->vocab; /* the default, already in place */
  for (int i = 0; i < n; i++) config_add_eos(c, ids[i]);
  return 0;
}

int config_json_suppressed(struct model_config *c, const struct config_json *s, struct err *e) {
  const json_t *ids = NULL;
  int given = s->generation ? json_get_array(s->generation, "suppress_tokens", &ids, s->where_generation, e) : 0;
  if (given <= 0) return given;
  if (json_array_size(ids) > CONFIG_SUPPRESSED_MAX)
    return err_set(e, ERR_BAD_FILE, "%s: suppress_tokens: expected at most %d ids, found %zu", s->where_generation, CONFIG_SUPPRESSED_MAX,
                   json_array_size(ids));
  for (size_t i = 0; i < json_array_size(ids); i++) {
    const json_t *id = json_array_get(ids, i);
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= c->vocab)
      return err_set(e, ERR_BAD_FILE, "%s: suppress_tokens[%zu]: expected an id from 0 to %d", s->where_generation, i, c->vocab - 1);
    c->suppressed[c->n_suppressed++] = (int32_t)json_integer_value(id);
  }
  return 0;
}

/* --- entry points ------------------------------------------------------------------------------------------------------- */

/* A folder's files beside config.json; each may be NULL. */
struct companions {
  const json_t *generation, *processor; /* generation_config.json; preprocessor_config.json or processor_config.json */
  const char *processor_name;
};

static int read_config(struct model_config *c, const json_t *top, const struct companions *more, const char *where, struct err *e) {
  const json_t *generation = more->generation, *image = more->processor;
  char where_text[240], where_generation[240];
  if (!json_is_object(top)) return err_set(e, ERR_BAD_FILE, "%s: expected an object", where);
  if (generation && !json_is_object(generation)) return err_set(e, ERR_BAD_FILE, "%s: generation_config.json: expected an object", where);
  const char *type = NULL;
  if (json_get_string(top, "model_type", &type, NULL, where, e) < 0) return -1;
  if (!type) return missing(where, "model_type", e);
  const struct config_family *family = config_family_find(type, false, where, e);
  if (!family) return -1;
  struct config_json s = {.top = top, .text = top, .generation = generation, .where_top = where, .where_text = where};
  snprintf(where_generation, sizeof where_generation, "%.200s: generation_config.json", where);
  s.where_generation = where_generation;
  char where_processor[280];
  snprintf(where_processor, sizeof where_processor, "%.200s: %s", where, more->processor_name ? more->processor_name : "");
  if (image && json_is_object(json_object_get(image, "image_processor"))) image = json_object_get(image, "image_processor");
  s.image_processor = json_is_object(image) ? image : NULL;
  s.where_processor = where_processor;
  int nested = json_get_object(top, "text_config", &s.text, where, e);
  if (nested < 0) return -1;
  if (nested) {
    snprintf(where_text, sizeof where_text, "%.200s: text_config", where);
    s.where_text = where_text;
  }
  c->family = family->family;
  snprintf(c->architecture, sizeof c->architecture, "%s", family->architecture);
  if (family->from_json(c, &s, e) != 0 || config_media_from_json(c, &s, e) != 0) return -1;
  return config_check(c, where, e);
}

/* A getter that finds something odd says bad input; here it is a bad file. */
static int finish(int result, struct err *e) {
  if (result != 0 && e && e->code == ERR_BAD_INPUT) e->code = ERR_BAD_FILE;
  return result;
}

int config_from_json(struct model_config *c, const char *config, size_t n, const char *generation, size_t n_generation, const char *where,
                     struct err *e) {
  memset(c, 0, sizeof *c); /* padding too: records are compared as bytes */
  char where_generation[240];
  snprintf(where_generation, sizeof where_generation, "%.200s: generation_config.json", where);
  json_t *top = json_load_text(config, n, false, where, e);
  json_t *more = top && generation ? json_load_text(generation, n_generation, false, where_generation, e) : NULL;
  int result = -1;
  if (top && (more || !generation)) result = read_config(c, top, &(struct companions){.generation = more}, where, e);
  json_decref(top);
  json_decref(more);
  return finish(result, e);
}

/* The folder's own name, escaped. */
static void folder_name(const char *folder, char *name, size_t name_bytes) {
  char *real = realpath(folder, NULL), *copy = real ? real : xstrdup(folder);
  str_escape(str_c(basename(copy)), name, name_bytes);
  free(copy);
}

int config_from_folder(struct model_config *c, const char *folder, struct err *e) {
  memset(c, 0, sizeof *c);
  size_t n = strlen(folder) + sizeof "/preprocessor_config.json";
  char *path = xmalloc(n), where[200];
  int result = -1;
  json_t *generation = NULL, *processor = NULL;
  const char *processor_name = NULL;
  snprintf(path, n, "%s/config.json", folder);
  path_label(path, where);
  json_t *top = json_load_path(path, CONFIG_BYTES_MAX, e);
  if (!top) {
    if (e && e->code == ERR_NOT_FOUND) err_prefix(e, "expected a folder with config.json and safetensors");
    goto done;
  }
  snprintf(path, n, "%s/generation_config.json", folder);
  if (access(path, F_OK) == 0 && !(generation = json_load_path(path, CONFIG_BYTES_MAX, e))) goto done;
  static const char *const processors[] = {"preprocessor_config.json", "processor_config.json"};
  for (size_t i = 0; i < ARRAY_LEN(processors) && !processor; i++) {
    snprintf(path, n, "%s/%s", folder, processors[i]);
    if (access(path, F_OK) == 0 && !(processor = json_load_path(path, CONFIG_BYTES_MAX, e))) goto done;
    processor_name = processors[i];
  }
  result = read_config(c, top, &(struct companions){generation, processor, processor_name}, where, e);
  folder_name(folder, c->name, sizeof c->name);
done:
  free(path);
  json_decref(top);
  json_decref(generation);
  json_decref(processor);
  return finish(result, e);
}
