/* attend_avx512.c — encoders' attention at the avx512 level. */
#if defined(__x86_64__)
#include "compute/vec_avx512.h"

#include "compute/attend_impl.h"

const struct attend_kern attend_avx512 = {.packs = true, .pack = attend_pack, .block = attend_block};
#else
typedef int attend_avx512_is_for_x86_64;
#endif
