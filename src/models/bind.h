/* bind.h — what all families do when they load: fetch vectors, bind matrices, take scratch, and count what they took.
 *
 * Tables name the tensors of a layer, each with the shape that the forward pass assumes; loading is the check of shapes.
 */
#ifndef CYGNET_BIND_H
#define CYGNET_BIND_H

#include "base/mem.h"
#include "models/model.h"

struct bind_vector { /* a norm's weight, as float32 in the model's arena */
  const char *name;
  float **out;
  int n;
};
struct bind_matrix { /* of products */
  const char *name;
  struct weight *out;
  int rows, cols;
};
struct bind_scratch { /* activations */
  struct tensor *t;
  int rows, cols;
};

enum { BIND_NAME_BYTES = 64 };
/* "blk.LAYER.NAME.weight", or "blk.LAYER.NAME" for one of the names that end otherwise. */
const char *bind_name(char text[BIND_NAME_BYTES], int layer, const char *name);

/* Names are whole names. Matrices are quantised as the plan wants it; packed ones give the file's pages back. */
int bind_vector(struct model *m, struct weights *w, struct arena *arena, const struct bind_vector *v, struct err *e);
int bind_matrix(struct model *m, struct weights *w, const struct bind_matrix *x, struct err *e);
/* The same of the output matrix, for device_ops.head. */
int bind_head(struct model *m, struct weights *w, const struct bind_matrix *x, struct err *e);
/* The same of a matrix that was fetched; v->data must live as long as the model unless x->out->packed is set afterwards. */
int bind_view(struct model *m, const struct bind_matrix *x, const struct weight_view *v, struct err *e);
/* A matrix of which rows are only looked up (device_ops.table_bind). */
int bind_table(struct model *m, struct weights *w, const struct bind_matrix *x, struct err *e);
/* The same for tables of one layer, by its short names. */
int bind_layer_vectors(struct model *m, struct weights *w, struct arena *arena, int layer, const struct bind_vector *v, size_t n,
                       struct err *e);
int bind_layer_matrices(struct model *m, struct weights *w, int layer, const struct bind_matrix *x, size_t n, struct err *e);
/* token_embd.weight into *embed, and output.weight into *head where the file has one; else head->rows is 0 and the embedding is the head. */
int bind_embedding(struct model *m, struct weights *w, struct weight *embed, struct weight *head, struct err *e);

/* Once an arena's vectors are what they will be: the device keeps them (device_ops.hold). bind_drop ends that and frees the arena. */
int bind_hold(struct model *m, const struct arena *vectors, struct err *e);
void bind_drop(struct model *m, struct arena *vectors);

/* Sizes of the arena: bytes of a vector of n floats in it. */
static inline size_t bind_vector_bytes(int n) { return align_up((size_t)n * sizeof(float), 64); }

/* What a weight costs: products of one row of activations, bytes that a product reads. bind_count_head: and what a shortlist saves of those. */
void bind_count(struct model_products *products, size_t *bytes, const struct weight *w);
void bind_count_head(struct model *m, const struct weight *head);

int bind_scratch(struct model *m, const struct bind_scratch *s, size_t n, struct err *e);
void bind_progress(const struct model *m, const struct weights *w, bool done);

/* The first rows × cols of a scratch tensor: layers may be narrower than the widest one. */
static inline struct tensor part(struct tensor t, int rows, int cols) {
  t.rows = rows;
  t.cols = cols;
  return t;
}

#endif
