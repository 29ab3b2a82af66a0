/* gguf_maker.h — builds GGUF files in memory for tests, good ones and bad ones. Plain C, needs nothing of the product.
 *
 *   struct gguf_maker m;
 *   gguf_maker_init(&m);
 *   gguf_maker_str(&m, "general.architecture", "gemma3");
 *   gguf_maker_tensor(&m, "token_embd.weight", GM_F32, 2, (uint64_t[]){8, 4}, data, sizeof data);
 *   unsigned char *file = gguf_maker_finish(&m, &n_bytes);      // owned: free()
 *
 * Fields may be set before finishing to lie: version, claimed counts. gguf_maker_finish frees what the maker holds.
 */
#ifndef CYGNET_GGUF_MAKER_H
#define CYGNET_GGUF_MAKER_H

#include <stddef.h>
#include <stdint.h>

enum { GM_U8, GM_I8, GM_U16, GM_I16, GM_U32, GM_I32, GM_F32_KV, GM_BOOL, GM_STR, GM_ARRAY, GM_U64, GM_I64, GM_F64 }; /* of values */
enum { GM_F32 = 0, GM_F16 = 1, GM_Q4_0 = 2, GM_Q8_0 = 8, GM_Q4_K = 12, GM_BF16 = 30 };                               /* of tensors */

struct gm_bytes {
  unsigned char *data;
  size_t n, cap;
};

struct gguf_maker {
  struct gm_bytes kv, info, data;
  uint64_t n_kv, n_tensors;             /* counted */
  uint64_t claimed_kv, claimed_tensors; /* UINT64_MAX: the truth */
  uint32_t version;                     /* 3 */
  uint32_t alignment;                   /* 32; the key general.alignment is the caller's affair */
};

void gguf_maker_init(struct gguf_maker *m);
unsigned char *gguf_maker_finish(struct gguf_maker *m, size_t *n_bytes);

/* A key with its value in the file's form. */
void gguf_maker_kv(struct gguf_maker *m, const char *key, size_t key_bytes, uint32_t type, const void *value, size_t n_bytes);
void gguf_maker_u32(struct gguf_maker *m, const char *key, uint32_t v);
void gguf_maker_f32(struct gguf_maker *m, const char *key, float v);
void gguf_maker_bool(struct gguf_maker *m, const char *key, int v);
void gguf_maker_str(struct gguf_maker *m, const char *key, const char *v);
/* n elements of a fixed-size type, elem_bytes each. */
void gguf_maker_array(struct gguf_maker *m, const char *key, uint32_t type, const void *elems, uint64_t n, size_t elem_bytes);
void gguf_maker_strings(struct gguf_maker *m, const char *key, const char *const *v, uint64_t n);

/* ne fastest first. The data is put behind that of the tensors before, aligned. NULL data: zeros. */
void gguf_maker_tensor(struct gguf_maker *m, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *ne, const void *data,
                       size_t n_bytes);
/* Only the entry in the table, with any offset. */
void gguf_maker_entry(struct gguf_maker *m, const char *name, size_t name_bytes, uint32_t type, uint32_t n_dims, const uint64_t *ne,
                      uint64_t offset);

/* Keys and F32 tensors of a gemma3 model with random weights (norms around 1): layers, hidden, heads, key heads, head width,
 * ffn, tokens, window. Every tensor name that the family has. `weights` 0: keys only. */
struct gm_gemma3 {
  int n_layers, hidden, n_q, n_kv, head_dim, ffn, vocab, window;
};
void gguf_maker_gemma3(struct gguf_maker *m, const struct gm_gemma3 *g, int weights);

#endif
