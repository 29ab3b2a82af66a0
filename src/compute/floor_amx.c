/* floor_amx.c — the peaks of tile products on registers: TDPBUSD and TDPBF16PS. */
#include "compute/floor.h"

#if defined(__x86_64__)
#ifdef CYGNET_SIMDE /* nothing to measure under emulation */
double floor_int8_amx(int n) { return (double)n; }
double floor_bf16_amx(int n) { return (double)n; }
#else
#include "compute/tiles_amx.h"

enum { TILES = 4, ROUNDS_PER_CALL = 8 /* a round takes 16 cycles a tile, other peaks' rounds about 8 */ };

/* Tiles 0 to 3 are sums that do not wait for each other, 4 and 5 factors. */
static void begin(void) {
  struct tile_shapes s = {0};
  for (int i = 0; i < TILES + 2; i++) tile_shape(&s, i, 16, 64);
  tile_begin(&s); /* all zeros */
}

double floor_int8_amx(int n) {
  begin();
  for (int r = 0; r < n / ROUNDS_PER_CALL; r++) {
    TILE_CODES(0, 4, 5);
    TILE_CODES(1, 4, 5);
    TILE_CODES(2, 4, 5);
    TILE_CODES(3, 4, 5);
  }
  tile_end();
  return (double)(n / ROUNDS_PER_CALL) * TILES * 2 * 16 * 16 * 64;
}

double floor_bf16_amx(int n) {
  begin();
  for (int r = 0; r < n / ROUNDS_PER_CALL; r++) {
    TILE_BF16(0, 4, 5);
    TILE_BF16(1, 4, 5);
    TILE_BF16(2, 4, 5);
    TILE_BF16(3, 4, 5);
  }
  tile_end();
  return (double)(n / ROUNDS_PER_CALL) * TILES * 2 * 16 * 16 * 32;
}
#endif
#endif
