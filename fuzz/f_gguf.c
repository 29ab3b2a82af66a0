/* f_gguf.c — any bytes as a GGUF file: opened, then everything that is reachable is read, then the config. */
#include <stdlib.h>
#include <string.h>

#include "files/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static volatile uint64_t sink;

static void touch(const struct gguf *g) {
  uint64_t sum = 0;
  for (size_t i = 0; i < g->n_kv; i++) {
    const struct gguf_kv *kv = &g->kv[i];
    const unsigned char *cursor = NULL;
    for (uint64_t k = 0; k < kv->n; k++) {
      if (kv->type == GGUF_STRING) {
        struct str s = gguf_kv_next_string(kv, &cursor);
        sum += hash_bytes(s.p, s.n, 0);
      } else {
        sum += (uint64_t)gguf_kv_int(kv, k) + (gguf_kv_float(kv, k) > 0);
      }
    }
    CHECK(kv->raw_bytes <= g->map->n_bytes);
  }
  for (size_t i = 0; i < g->n_tensors; i++) {
    const struct gguf_tensor *t = &g->tensors[i];
    sum += hash_bytes(t->data, t->n_bytes, 0);
    char name[GGUF_NAME_BYTES_MAX + 1];
    memcpy(name, t->name.p, t->name.n);
    name[t->name.n] = 0;
    CHECK(gguf_find_tensor(g, name) == t);
  }
  sink = sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  struct map m = {.data = n ? data : NULL, .n_bytes = n};
  struct gguf g;
  struct err e = {0};
  static struct model_config c;
  if (gguf_open(&g, &m, &e) == 0) {
    touch(&g);
    if (config_from_gguf(&c, &g, &e) == 0) CHECK(c.n_layers > 0 && c.vocab > 0 && c.rope_full.rotated > 0 && c.rope_full.rotated <= 1);
    else CHECK(e.msg[0]);
  } else {
    CHECK(e.msg[0]);
  }
  gguf_close(&g);
  return 0;
}
