/* schema.c — a JSON schema to rules: the whole road. */
#include "text/schema.h"

#include <stdlib.h>

#include "base/mem.h"
#include "text/schema_impl.h"

static void builder_free(struct schema_builder *b) {
  for (int i = 0; i < b->n_shapes; i++) free(b->shapes[i].forms);
  for (int i = 0; i < b->n_langs; i++) lang_delete(b->langs[i]);
  free(b->shapes);
  free(b->langs);
  free(b->places);
  free(b->resources);
  free(b->patterns);
  free(b->jobs);
  lang_map_free(&b->place_of);
  lang_map_free(&b->pattern_of);
  lang_map_free(&b->shape_of);
  lang_map_free(&b->rule_of);
  pool_free(&b->pool);
}

static int build(struct schema_builder *b, int *node) {
  if (!json_is_object(b->root) && !json_is_boolean(b->root))
    return err_set(b->e, ERR_BAD_INPUT, "%s: expected a JSON schema: an object, true or false", b->where);
  if (schema_index(b) != 0 || schema_shapes(b) != 0) return -1;
  if (b->shapes[0].height == SHAPE_NEVER) return err_set(b->e, ERR_BAD_INPUT, "%s: no value satisfies this schema", b->where);
  for (int i = 0; i < b->n_shapes; i++)
    if (b->shapes[i].must_be_empty && b->shapes[i].height != SHAPE_NEVER)
      return err_set(b->e, ERR_BAD_INPUT, "%s", b->shapes[i].must_be_empty);
  return schema_emit(b, 0, node);
}

static int build_as(struct schema_builder b, int *node) {
  if (b.style == SCHEMA_GEMMA4_CALL) b.quote = tok_find(b.t, "<|\"|>");
  int rc = build(&b, node);
  if (rc == 0) rc = rules_error(b.g, b.e);
  builder_free(&b);
  return rc;
}

int schema_build(struct grammar_rules *g, const struct tokenizer *t, const json_t *schema, enum schema_style style, const char *where,
                 int *node, struct err *e) {
  return build_as((struct schema_builder){.g = g, .t = t, .root = schema, .style = style, .where = where, .e = e}, node);
}

int schema_build_object(struct grammar_rules *g, const struct tokenizer *t, const json_t *schema, enum schema_style style,
                        const char *where, int *node, struct err *e) {
  return build_as((struct schema_builder){.g = g, .t = t, .root = schema, .style = style, .where = where, .object_only = true, .e = e},
                  node);
}
