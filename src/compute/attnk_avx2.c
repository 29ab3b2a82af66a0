/* attnk_avx2.c — the attention kernels of the avx2 level. */
#if defined(__x86_64__)
#include "compute/vec_avx2.h"

#include "compute/attnk_impl.h"

const struct attn_kern attnk_avx2 = {
    .expand_lines = 12,
    .tile = ak_tile,
    .merge = ak_merge,
    .finish = ak_finish,
    .load_q = ak_load_q,
    .expand = ak_expand,
    .store = ak_store,
};
#else
typedef int attnk_avx2_is_for_x86_64;
#endif
