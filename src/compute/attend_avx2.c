/* attend_avx2.c — encoders' attention at the avx2 level. */
#if defined(__x86_64__)
#include "compute/vec_avx2.h"

#include "compute/attend_impl.h"

const struct attend_kern attend_avx2 = {.packs = true, .pack = attend_pack, .block = attend_block};
#else
typedef int attend_avx2_is_for_x86_64;
#endif
