/* names.c — numbers for keys: a hash table and a list from the latest used to the one used longest ago. The rules are in banks.h. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kv/banks.h"

struct name {
  struct bank_key key;
  int32_t number;
  int32_t chain, older, newer; /* 0 = end */
};

struct names {
  int n_max, n;
  struct name *all; /* [n_max + 1], from 1 on */
  int32_t *buckets; /* [n_buckets] */
  size_t n_buckets; /* power of two */
  int32_t oldest, newest;
  int32_t n_given;
};

size_t names_bytes(int n_max) {
  struct names *n;
  return sizeof *n + ((size_t)n_max + 1) * sizeof *n->all + power_of_two((size_t)n_max) * sizeof *n->buckets;
}

struct names *names_new(int n_max, struct err *e) {
  CHECK(n_max >= 1 && n_max <= NAMES_MAX);
  struct names *n = xcalloc(1, sizeof *n);
  n->n_max = n_max;
  n->n_buckets = power_of_two((size_t)n_max);
  n->all = mem_try_alloc(((size_t)n_max + 1) * sizeof *n->all);
  n->buckets = mem_try_alloc(n->n_buckets * sizeof *n->buckets);
  if (n->all && n->buckets) return n;
  err_set(e, ERR_NO_MEMORY, "pictures and sounds: no memory to remember %d", n_max);
  names_delete(n);
  return NULL;
}

void names_delete(struct names *n) {
  if (!n) return;
  free(n->all);
  free(n->buckets);
  free(n);
}

static int32_t *bucket_of(const struct names *n, const struct bank_key *key) {
  return &n->buckets[bank_key_hash(key) & (n->n_buckets - 1)];
}

static void unlink_name(struct names *n, int32_t i) {
  struct name *y = &n->all[i];
  *(y->older ? &n->all[y->older].newer : &n->oldest) = y->newer;
  *(y->newer ? &n->all[y->newer].older : &n->newest) = y->older;
}

static void link_newest(struct names *n, int32_t i) {
  n->all[i].older = n->newest;
  n->all[i].newer = 0;
  *(n->newest ? &n->all[n->newest].newer : &n->oldest) = i;
  n->newest = i;
}

/* A place for one more: a new one, or that of the name used longest ago. */
static int32_t take_place(struct names *n) {
  if (n->n < n->n_max) return ++n->n;
  int32_t i = n->oldest, *at = bucket_of(n, &n->all[i].key);
  unlink_name(n, i);
  while (*at != i) at = &n->all[*at].chain;
  *at = n->all[i].chain;
  return i;
}

int32_t names_number(struct names *n, const struct bank_key *key) {
  int32_t i = *bucket_of(n, key);
  while (i && memcmp(&n->all[i].key, key, sizeof *key) != 0) i = n->all[i].chain;
  if (i) {
    unlink_name(n, i);
  } else {
    if (n->n_given >= INT32_MAX - 2) return -1;
    i = take_place(n);
    int32_t *bucket = bucket_of(n, key);
    n->all[i] = (struct name){.key = *key, .number = n->n_given++, .chain = *bucket};
    *bucket = i;
  }
  link_newest(n, i);
  return n->all[i].number;
}
