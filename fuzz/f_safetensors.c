/* f_safetensors.c — any bytes as a safetensors file; what opens is read whole, by name and by address, and its names are translated. */
#include <string.h>

#include "files/safetensors.h"
#include "files/weights_names.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static volatile uint64_t sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  struct map m = {.data = n ? data : NULL, .n_bytes = n};
  struct safetensors st;
  struct err e = {0};
  if (safetensors_from_map(&st, &m, &e) != 0) {
    CHECK(e.msg[0]);
    return 0;
  }
  uint64_t sum = 0;
  for (size_t i = 0; i < st.n_tensors; i++) {
    const struct st_tensor *t = &st.tensors[i];
    sum += hash_bytes(t->data, t->n_bytes, 0);
    CHECK(safetensors_find(&st, t->name) == t);
    static const enum model_family families[] = {FAMILY_GEMMA3, FAMILY_GEMMA4};
    for (size_t f = 0; f < ARRAY_LEN(families); f++) {
      char name[WEIGHT_NAME_BYTES];
      enum weight_use use = weight_name_from_hf(families[f], t->name, name);
      CHECK((use == WEIGHT_TEXT) == (name[0] != 0) && strlen(name) < WEIGHT_NAME_BYTES);
    }
  }
  sink = sum;
  safetensors_close(&st);
  return 0;
}
