/* attnk_avx512.c — the attention kernels of the avx512 level. */
#if defined(__x86_64__)
#include "compute/vec_avx512.h"

#include "compute/attnk_impl.h"

static ALWAYS_INLINE __m256 ak_fold(vec a) { return vec_fold(a); }
#include "compute/attnk_many.h"

#define ATTN_KERN(whole_)                                                                                                                  \
  {                                                                                                                                        \
    .many_lines = 12, .tile = ak_tile, .many = ak_many, .merge = ak_merge, .finish = ak_finish, .load_q = ak_load_q, .expand = ak_expand,  \
    .store = ak_store, .whole_bf16 = whole_                                                                                                \
  }
const struct attn_kern attnk_avx512 = ATTN_KERN(NULL);
const struct attn_kern attnk_avx512bf16 = ATTN_KERN(&attnk_dot);
const struct attn_kern attnk_avx512amx = ATTN_KERN(&attnk_amx);
#else
typedef int attnk_avx512_is_for_x86_64;
#endif
