/* t_acl_emu_attn_rules.c — what the emulator's attention refuses, each by a call that provokes it: with the real codes in phase 1, or as a fault of
 * the device that the next wait tells.
 */
#include "acl_emu_attn.h"

/* ---- refusals --------------------------------------------------------------------------------------------------------------------- */

/* Calls that are right on every chip that has the operator; each refusal changes one thing. */
static struct fia prompt_base(void) {
  struct fia f = decode_base();
  f.q = f.out = SHAPE(NPU_BF16, 2, 4, 4, 64);
  f.q_lens[0] = 4, f.q_lens[1] = 2, f.n_q_lens = 2;
  f.sparse = 3, f.mask = triangle_shape();
  return f;
}
static struct fia dense_base(void) {
  struct fia f = prompt_base();
  f.table = absent, f.block = 0;
  f.k = f.v = SHAPE(NPU_BF16, 2, 200, 2, 64);
  return f;
}
static struct fia packed_base(void) {
  struct fia f = decode_base();
  f.layout = "TND";
  f.q = f.out = SHAPE(NPU_BF16, 6, 4, 128);
  f.k = f.v = SHAPE(NPU_BF16, 6, 128, 2 * 128);
  f.q_lens[0] = 4, f.q_lens[1] = 6, f.n_q_lens = 2;
  f.sparse = 3, f.mask = triangle_shape();
  return f;
}
static struct fia incre_base(void) {
  struct fia f = decode_base();
  f.version = 0;
  if (!is_310p()) return f;
  f.q = f.out = SHAPE(NPU_FLOAT16, 2, 1, 2, 64);
  f.k = f.v = SHAPE(NPU_FLOAT16, 6, 128, 2 * 64);
  f.heads = 2, f.kv_heads = 0;
  return f;
}
#define GIVES(call, base, code, ...)                                                                                                       \
  do {                                                                                                                                     \
    struct base##_type f = base##_base();                                                                                                  \
    __VA_ARGS__;                                                                                                                           \
    expect(call(&f), code, #base ": " #__VA_ARGS__, __LINE__);                                                                             \
    release();                                                                                                                             \
  } while (0)
#define decode_type fia
#define prompt_type fia
#define dense_type  fia
#define packed_type fia
#define incre_type  fia

/* Pool and heads of d, table and pages of `block`. */
static void heads_of(struct fia *f, int64_t d, int64_t block) {
  f->q.dims[f->q.n - 1] = f->out.dims[f->out.n - 1] = d;
  f->k = f->v = SHAPE(f->q.type, 6, block, 2 * d);
  f->block = block;
}
static void refuse_any(void) { /* whatever the route */
  GIVES(fia, decode, 0, (void)f);
  GIVES(fia, decode, NULLPTR, f.layout = NULL);
  GIVES(fia, decode, TILING, f.layout = "BSHD");
  GIVES(fia, decode, NULLPTR, f.q.absent = true);
  GIVES(fia, decode, NULLPTR, f.no_key = true);
  GIVES(fia, decode, NULLPTR, f.out.absent = true);
  GIVES(fia, decode, INVALID, f.q.type = NPU_FLOAT);
  GIVES(fia, decode, INVALID, f.k.type = NPU_FLOAT16);
  GIVES(fia, decode, INVALID, f.out.type = NPU_FLOAT16);
  GIVES(fia, decode, INVALID, memcpy(f.q.strides, ((int64_t[]){512, 256, 128, 1}), 32)); /* as if each head lay twice as far apart */
  GIVES(fia, decode, INVALID, memcpy(f.k.strides, ((int64_t[]){2 * 128 * 128, 2 * 128, 1}), 24));
  GIVES(fia, decode, INVALID, f.q = SHAPE(NPU_BF16, 2, 1, 256));
  GIVES(fia, decode, TILING, f.heads = 3);
  GIVES(fia, decode, TILING, f.heads = 0);
  GIVES(fia, decode, TILING, f.heads = 257);
  GIVES(fia, decode, TILING, f.kv_heads = 3);
  GIVES(fia, decode, TILING, f.kv_heads = 1);
  GIVES(fia, decode, TILING, f.kv_heads = 0);
  GIVES(fia, decode, TILING, f.q = f.out = SHAPE(NPU_BF16, 2, 1, 130, 64); f.heads = 130);
  GIVES(fia, decode, INVALID, f.out = SHAPE(NPU_BF16, 2, 1, 4, 32));
  GIVES(fia, decode, TILING, f.extra = SHAPE(NPU_FLOAT, 1));
  GIVES(fia, decode, NULLPTR, f.lse_wanted = true);
  GIVES(fia, decode, INVALID, f.lse_wanted = true; f.lse = SHAPE(NPU_FLOAT, 2, 4, 1));
  GIVES(fia, decode, INVALID, f.lse_wanted = true; f.lse = SHAPE(NPU_FLOAT16, 2, 4, 1, 1));
  GIVES(fia, decode, 0, f.lse_wanted = true; f.lse = SHAPE(NPU_FLOAT, 2, 4, 1, 1));
  if (newest() == 4) GIVES(fia, decode, TILING, f.quant_mode = 3);
  GIVES(fia, decode, TILING, f.version = 2; f.layout = "TND");
  GIVES(fia, decode, TILING, f.version = 3; f.layout = "NTD");
  GIVES(fia, decode, TILING, f.layout = "BSND_NBSD");
  GIVES(fia, packed, TILING, f.layout = "TND_NTD");
}

static void refuse_pages(void) {
  GIVES(fia, decode, TILING, f.block = 0);
  GIVES(fia, decode, TILING, f.block = 64);
  GIVES(fia, decode, TILING, heads_of(&f, 64, 100));
  GIVES(fia, decode, TILING, heads_of(&f, 64, 528));
  GIVES(fia, decode, 0, heads_of(&f, 64, 512));
  GIVES(fia, decode, TILING, heads_of(&f, 72, 128));
  GIVES(fia, decode, TILING, heads_of(&f, 528, 128));
  GIVES(fia, decode, 0, heads_of(&f, 512, 128));
  GIVES(fia, decode, TILING, f.k = f.v = SHAPE(NPU_BF16, 6 * 128, 2 * 64));
  GIVES(fia, decode, TILING, f.v = SHAPE(NPU_BF16, 5, 128, 2 * 64));
  GIVES(fia, decode, is_new() ? 0 : TILING, f.k = f.v = SHAPE(NPU_BF16, 6, 2, 128, 64));
  GIVES(fia, decode, TILING, f.k = f.v = SHAPE(NPU_BF16, 6, 4, 128, 64); f.kv_heads = 4);
  GIVES(fia, decode, 0, f.k = f.v = SHAPE(NPU_BF16, 6, 2, 128, 64); f.layout = "BNSD"; f.q = f.out = SHAPE(NPU_BF16, 2, 4, 1, 64));
  GIVES(fia, decode, TILING, f.k = f.v = SHAPE(NPU_BF16, 6, 2, 4, 128, 16));
  GIVES(fia, decode, TILING, f.layout = "BNSD"; f.q = f.out = SHAPE(NPU_BF16, 2, 130, 1, 512); f.heads = f.kv_heads = 130; f.block = 16;
        f.k = f.v = SHAPE(NPU_BF16, 6, 16, 130 * 512); f.kv_lens[1] = 20);
  GIVES(fia, decode, INVALID, f.table.type = NPU_INT64);
  GIVES(fia, decode, TILING, f.table = SHAPE(NPU_INT32, 6));
  GIVES(fia, decode, TILING, f.table = SHAPE(NPU_INT32, 3, 3));
  GIVES(fia, decode, TILING, f.table = SHAPE(NPU_INT32, 2, 1));
  GIVES(fia, decode, TILING, f.n_kv_lens = -1);
  GIVES(fia, decode, TILING, f.n_kv_lens = 0);
  GIVES(fia, decode, 0, f.n_kv_lens = 1);
  GIVES(fia, decode, 0, f.n_kv_lens = 3; f.kv_lens[2] = 99999);
  GIVES(fia, decode, TILING, f.q.dims[0] = f.out.dims[0] = f.table.dims[0] = 3);
  GIVES(fia, decode, TILING, f.kv_lens[0] = -1);
  GIVES(fia, decode, TILING, f.kv_lens[0] = 3 * 128 + 1);
  GIVES(fia, decode, 0, f.kv_lens[0] = 3 * 128);
  struct shape two[2] = {SHAPE(NPU_BF16, 6, 128, 2 * 64), SHAPE(NPU_BF16, 6, 128, 2 * 64)};
  GIVES(fia, decode, TILING, f.n_list = 2; f.k_list = f.v_list = two);
  /* ids are not looked at in phase 1: the device finds out */
  int32_t ids[6] = {0, 1, 2, 3, 6, 5}, never[6] = {0, -1, -1, 3, 4, -1};
  GIVES(fia, decode, AICORE, own_data(&f.table, ids));
  GIVES(fia, decode, 0, own_data(&f.table, never)); /* beyond the lengths anything may stand */
  GIVES(fia, decode, AICORE, own_data(&f.table, never); f.kv_lens[0] = 129);
  GIVES(fia, prompt, TILING, heads_of(&f, 64, 16));
  GIVES(fia, prompt, is_new() ? 0 : TILING, heads_of(&f, 64, 1024));
  GIVES(fia, prompt, TILING, heads_of(&f, 64, 1152));
}

static void refuse_masks(void) {
  GIVES(fia, decode, 0, f.mask = SHAPE(NPU_BOOL, 2, 384));
  GIVES(fia, decode, 0, f.mask = SHAPE(NPU_UINT8, 2, 1, 1, 400));
  GIVES(fia, decode, TILING, f.mask = SHAPE(NPU_BOOL, 1, 384));
  GIVES(fia, decode, TILING, f.mask = SHAPE(NPU_BOOL, 2, 200));
  GIVES(fia, decode, TILING, f.mask = SHAPE(NPU_BOOL, 2, 2, 384));
  GIVES(fia, decode, TILING, f.mask = triangle_shape());
  GIVES(fia, decode, INVALID, f.mask = SHAPE(NPU_FLOAT16, 2, 384));
  GIVES(fia, decode, AICORE, f.mask = SHAPE(NPU_BOOL, 2, 384); poison(&f.mask));
  GIVES(fia, decode, 0, f.shift = SHAPE(NPU_BF16, 1, 4, 1, 384));
  GIVES(fia, decode, TILING, f.shift = SHAPE(NPU_BF16, 1, 1, 1, 384));
  GIVES(fia, decode, TILING, f.shift = SHAPE(NPU_BF16, 1, 4, 1, 383));
  GIVES(fia, decode, TILING, f.shift = SHAPE(NPU_BF16, 3, 4, 1, 384));
  GIVES(fia, decode, INVALID, f.shift = SHAPE(NPU_FLOAT, 1, 4, 1, 384));
  GIVES(fia, decode, TILING, f.precise = 2);
  GIVES(fia, prompt, 0, (void)f);
  GIVES(fia, prompt, TILING, f.precise = 4);
  GIVES(fia, prompt, TILING, f.sparse = -1);
  for (int sparse = 5; sparse <= 10; sparse++) GIVES(fia, prompt, TILING, f.sparse = sparse);
  for (int sparse = 1; sparse <= 4; sparse++) GIVES(fia, prompt, TILING, f.sparse = sparse; f.mask = absent);
  GIVES(fia, prompt, 0, f.sparse = 0; f.mask = absent);
  GIVES(fia, prompt, TILING, f.mask = SHAPE(NPU_BOOL, 2047, 2048));
  GIVES(fia, prompt, TILING, f.mask = SHAPE(NPU_BOOL, 4, 384));
  GIVES(fia, prompt, TILING, f.mask = SHAPE(NPU_BOOL, 2, 2048, 2048));
  GIVES(fia, prompt, TILING, f.sparse = 0); /* the triangle where a full mask is meant */
  GIVES(fia, prompt, 0, f.sparse = 1; f.mask = SHAPE(NPU_BOOL, 1, 1, 4, 256));
  GIVES(fia, prompt, TILING, f.sparse = 1; f.mask = SHAPE(NPU_BOOL, 1, 1, 4, 255));
  GIVES(fia, prompt, TILING, f.sparse = 1; f.mask = SHAPE(NPU_BOOL, 3, 384));
  GIVES(fia, prompt, TILING, f.sparse = 1; f.mask = SHAPE(NPU_BOOL, 2, 4, 4, 384));
  GIVES(fia, dense, TILING, f.sparse = 1; f.mask = SHAPE(NPU_BOOL, 4, 225));
  GIVES(fia, dense, 0, f.sparse = 1; f.mask = SHAPE(NPU_BOOL, 4, 224));
  GIVES(fia, prompt, AICORE, f.mask.data = NULL); /* zeros: no triangle */
  GIVES(fia, prompt, AICORE, f.mask.data = NULL; poison(&f.mask));
  set_byte(triangle(), 2048 * 3 + 4, 0);
  GIVES(fia, prompt, AICORE, (void)f);
  set_byte(triangle(), 2048 * 3 + 4, 1);
  set_byte(triangle(), 2048 * 199 + 199, 1);
  GIVES(fia, prompt, AICORE, (void)f);
  set_byte(triangle(), 2048 * 199 + 199, 0);
  set_byte(triangle(), 2048 * 1999, 1); /* a row that so few keys do not need: found before long */
  int faults = 0;
  for (int i = 0; i < 64; i++) {
    struct fia f = prompt_base();
    faults += fia(&f) == AICORE;
    release();
  }
  set_byte(triangle(), 2048 * 1999, 0);
  assert_int_equal(faults, 1);
  GIVES(fia, prompt, AICORE, f.sparse = 1; f.mask = SHAPE(NPU_INT8, 4, 384); f.mask.data = NULL; poison(&f.mask););
  GIVES(fia, prompt, TILING, f.sparse = 4; f.pre = 3; f.next = -4);
  GIVES(fia, prompt, TILING, f.sparse = 4; f.pre = -3; f.next = 10); /* below minus two rows */
  GIVES(fia, prompt, TILING, f.sparse = 4; f.pre = 300; f.next = -6);
  GIVES(fia, prompt, 0, f.sparse = 4; f.pre = -2; f.next = 10);
  GIVES(fia, prompt, TILING, f.sparse = 0; f.mask = SHAPE(NPU_BOOL, 4, 384); f.pre = 2; f.next = -3);
  GIVES(fia, prompt, TILING, f.q_lens[0] = 5);
  GIVES(fia, prompt, TILING, f.q_lens[1] = -1);
  GIVES(fia, prompt, TILING, f.n_q_lens = 0);
  GIVES(fia, prompt, 0, f.n_q_lens = -1);
  GIVES(fia, prompt, TILING, f.layout = "BNSD_BSND"; f.q = SHAPE(NPU_BF16, 2, 4, 1, 64); f.out = SHAPE(NPU_BF16, 2, 1, 4, 64);
        f.n_q_lens = -1);
}

static void refuse_dense(void) {
  GIVES(fia, dense, 0, (void)f);
  GIVES(fia, dense, 0, f.n_kv_lens = -1);
  GIVES(fia, dense, TILING, f.kv_lens[1] = 201);
  GIVES(fia, dense, TILING, f.k = f.v = SHAPE(NPU_BF16, 3, 200, 2, 64));
  GIVES(fia, dense, TILING, f.v = SHAPE(NPU_BF16, 2, 199, 2, 64));
  GIVES(fia, dense, TILING, f.k = SHAPE(NPU_BF16, 2, 200, 2, 32));
  GIVES(fia, dense, TILING, f.k = f.v = SHAPE(NPU_BF16, 2, 200, 1, 64));
  GIVES(fia, dense, INVALID, f.k = f.v = SHAPE(NPU_BF16, 2, 200, 128));
  GIVES(fia, dense, TILING, f.q = f.out = SHAPE(NPU_BF16, 2, 4, 128, 512); f.heads = 128; f.k = f.v = SHAPE(NPU_BF16, 2, 200, 2, 512));
  GIVES(fia, dense, TILING, f.v = SHAPE(NPU_BF16, 2, 200, 2, 32); f.out = SHAPE(NPU_BF16, 2, 4, 4, 32));
  struct shape three[3] = {SHAPE(NPU_BF16, 1, 200, 2, 64), SHAPE(NPU_BF16, 1, 5, 2, 64), SHAPE(NPU_BF16, 1, 9, 2, 64)};
  GIVES(fia, dense, TILING, f.n_list = 3; f.k_list = f.v_list = three);
  GIVES(fia, dense, TILING, f.n_list = 2; f.k_list = f.v_list = three); /* 200 keys of 5 */
  for (int i = 0; i < 3; i++) three[i].data = NULL;
  GIVES(fia, dense, 0, f.n_list = 2; f.k_list = f.v_list = three; f.kv_lens[1] = 5);
  if (newest() < 4) return;
  GIVES(fia, dense, 0, f.layout = "BSND_BNSD"; f.out = SHAPE(NPU_BF16, 2, 4, 4, 64));
  GIVES(fia, dense, TILING, f.layout = "BSND_BNSD"; f.q = f.out = SHAPE(NPU_BF16, 2, 4, 4, 32); f.k = f.v = SHAPE(NPU_BF16, 2, 200, 2, 32));
}

static void refuse_packed(void) {
  bool older = emu->cann < 805;
  GIVES(fia, packed, 0, (void)f);
  GIVES(fia, packed, TILING, f.n_q_lens = -1);
  GIVES(fia, packed, TILING, f.n_kv_lens = -1);
  GIVES(fia, packed, TILING, f.n_kv_lens = 1);
  GIVES(fia, packed, TILING, f.n_kv_lens = 3);
  GIVES(fia, packed, TILING, f.q_lens[1] = 3);
  GIVES(fia, packed, TILING, f.q_lens[1] = 5);
  GIVES(fia, packed, TILING, f.q_lens[0] = 7);
  GIVES(fia, packed, 0, f.q_lens[0] = 0);
  GIVES(fia, packed, TILING, f.kv_lens[0] = 385);
  GIVES(fia, packed, TILING, f.table = absent); /* dense lengths are cumulative: 200 of 768 */
  GIVES(fia, packed, TILING, f.table.dims[0] = 3);
  GIVES(fia, packed, TILING, f.shift = SHAPE(NPU_BF16, 1, 4, 6, 384));
  GIVES(fia, packed, TILING, f.sparse = 2);
  GIVES(fia, packed, TILING, f.sparse = 1);
  GIVES(fia, packed, TILING, f.sparse = 0);
  GIVES(fia, packed, 0, f.sparse = 0; f.mask = absent);
  GIVES(fia, packed, TILING, f.mask = absent);
  GIVES(fia, packed, is_new() ? 0 : TILING, f.sparse = 4; f.pre = 10; f.next = 0);
  GIVES(fia, packed, older ? TILING : 0, heads_of(&f, 64, 128));
  GIVES(fia, packed, is_new() ? 0 : TILING, heads_of(&f, 256, 128));
  GIVES(fia, packed, TILING, heads_of(&f, 512, 128)); /* the heads of global layers */
  GIVES(fia, packed, TILING, heads_of(&f, 264, 128));
  GIVES(fia, packed, TILING, heads_of(&f, 256, 128); f.q.dims[1] = f.out.dims[1] = f.heads = 2); /* not grouped */
  GIVES(fia, packed, is_new() ? 0 : TILING, heads_of(&f, 192, 128));
  GIVES(fia, packed, TILING, heads_of(&f, 256, 256));
  GIVES(fia, packed, TILING, heads_of(&f, 128, 24));
  GIVES(fia, packed, is_new() ? 0 : TILING, heads_of(&f, 128, 256));
  GIVES(fia, packed, 0, heads_of(&f, 128, 512));
  GIVES(fia, packed, is_new() ? TILING : 0, f.precise = 1);
  GIVES(fia, packed, TILING, f.precise = 2);
  GIVES(fia, packed, older ? TILING : 0, f.q.type = f.out.type = f.k.type = f.v.type = NPU_FLOAT16);
  if (!older) /* fp16, each query head with its own keys */
    GIVES(fia, packed, is_new() ? 0 : TILING, f.q.type = f.out.type = f.k.type = f.v.type = NPU_FLOAT16;
          f.q.dims[1] = f.out.dims[1] = f.heads = 2);
  GIVES(fia, packed, is_new() ? 0 : TILING, f.k = f.v = SHAPE(NPU_BF16, 6, 2, 8, 128, 16));
  GIVES(fia, packed, 0, f.k = f.v = SHAPE(NPU_BF16, 6, 2, 128, 128));
  GIVES(fia, packed, TILING, heads_of(&f, 256, 128); f.k = f.v = SHAPE(NPU_BF16, 6, 2, 128, 256));
  struct shape two[2] = {SHAPE(NPU_BF16, 100, 2, 128), SHAPE(NPU_BF16, 100, 2, 128)};
  GIVES(fia, packed, TILING, f.table = absent; f.n_list = 2; f.k_list = f.v_list = two);
}

static void refuse_incre(void) {
  GIVES(fia, incre, 0, (void)f);
  GIVES(fia, incre, NULLPTR, f.layout = NULL);
  GIVES(fia, incre, TILING, f.layout = "TND");
  GIVES(fia, incre, TILING, f.q.dims[1] = f.out.dims[1] = 2);
  GIVES(fia, incre, TILING, f.precise = 2);
  GIVES(fia, incre, TILING, f.n_kv_lens = -1);
  GIVES(fia, incre, TILING, f.n_kv_lens = 0);
  GIVES(fia, incre, TILING, f.kv_lens[0] = 385);
  GIVES(fia, incre, TILING, heads_of(&f, 528, 128));
  GIVES(fia, incre, TILING, heads_of(&f, 72, 128));
  GIVES(fia, incre, TILING, heads_of(&f, 64, 528));
  GIVES(fia, incre, TILING, f.k = f.v = SHAPE(f.q.type, 6, 2, 128, 64));
  GIVES(fia, incre, TILING, f.mask = SHAPE(NPU_BOOL, 2, 383));
  GIVES(fia, incre, TILING, f.extra = SHAPE(NPU_FLOAT, 1));
  if (!is_310p()) return;
  GIVES(fia, incre, INVALID, f.q.type = f.out.type = f.k.type = f.v.type = NPU_BF16);
  GIVES(fia, incre, TILING, f.kv_heads = 2);
}

static struct flash flash_base(void) {
  struct flash f = {.layout = "BSND", .heads = 4, .scale = 0.125, .keep = 1, .pre = MOST, .next = MOST, .sparse = 3};
  f.q = f.out = SHAPE(NPU_BF16, 2, 4, 4, 64);
  f.k = f.v = SHAPE(NPU_BF16, 2, 9, 2, 64);
  f.max = f.sum = SHAPE(NPU_FLOAT, 2, 4, 4, 8);
  f.mask = triangle_shape(), f.shift = f.extra = absent;
  return f;
}
static struct flash varlen_base(void) {
  struct flash f = flash_base();
  f.packed = true, f.layout = "TND";
  f.q = f.out = SHAPE(NPU_BF16, 6, 4, 64);
  f.k = f.v = SHAPE(NPU_BF16, 14, 2, 64);
  f.max = f.sum = SHAPE(NPU_FLOAT, 6, 4, 8);
  f.n_lens = f.n_kv_lens = 2;
  f.q_lens[0] = 4, f.q_lens[1] = 6, f.kv_lens[0] = 9, f.kv_lens[1] = 14;
  return f;
}
#define flash_type  flash
#define varlen_type flash

static void refuse_flash(void) {
  GIVES(flash, flash, 0, (void)f);
  GIVES(flash, flash, NULLPTR, f.layout = NULL);
  GIVES(flash, flash, TILING, f.layout = "TND");
  GIVES(flash, flash, NULLPTR, f.q.absent = true);
  GIVES(flash, flash, NULLPTR, f.max.absent = true);
  GIVES(flash, flash, NULLPTR, f.sum.absent = true);
  GIVES(flash, flash, INVALID, f.max.type = f.sum.type = NPU_BF16);
  GIVES(flash, flash, INVALID, f.max = f.sum = SHAPE(NPU_FLOAT, 2, 4, 4, 1));
  GIVES(flash, flash, INVALID, f.q.type = NPU_INT8);
  GIVES(flash, flash, INVALID, f.k.type = NPU_FLOAT16);
  GIVES(flash, flash, TILING, f.keep = 0.5);
  GIVES(flash, flash, INVALID, f.keep = 0);
  GIVES(flash, flash, TILING, f.extra = SHAPE(NPU_UINT8, 64));
  GIVES(flash, flash, TILING, f.heads = 8);
  GIVES(flash, flash, TILING, f.k = f.v = SHAPE(NPU_BF16, 2, 9, 3, 64));
  GIVES(flash, flash, TILING, f.q = f.out = SHAPE(NPU_BF16, 2, 4, 4, 769); f.k = f.v = SHAPE(NPU_BF16, 2, 9, 2, 769));
  GIVES(flash, flash, 0, f.q = f.out = SHAPE(NPU_BF16, 2, 4, 4, 768); f.k = f.v = SHAPE(NPU_BF16, 2, 9, 2, 768));
  GIVES(flash, flash, TILING, f.v = SHAPE(NPU_BF16, 2, 9, 2, 72); f.out = SHAPE(NPU_BF16, 2, 4, 4, 72));
  GIVES(flash, flash, TILING, f.v = SHAPE(NPU_BF16, 2, 8, 2, 64));
  GIVES(flash, flash, TILING, f.sparse = 5);
  GIVES(flash, flash, TILING, f.mask = SHAPE(NPU_BOOL, 4, 9));
  GIVES(flash, flash, TILING, f.sparse = 1);
  GIVES(flash, flash, INVALID, f.mask = SHAPE(NPU_INT8, 2048, 2048));
  GIVES(flash, flash, AICORE, f.mask.data = NULL);
  GIVES(flash, flash, TILING, f.k = f.v = SHAPE(NPU_BF16, 2, 3, 2, 64)); /* the first row sees nothing */
  GIVES(flash, flash, 0, f.k = f.v = SHAPE(NPU_BF16, 2, 3, 2, 64); f.mask = absent);
  GIVES(flash, flash, TILING, f.sparse = 4; f.pre = 3; f.next = -6);
  GIVES(flash, flash, TILING, f.sparse = 4; f.pre = 10; f.next = -8);
  unsigned char hidden[4 * 9];
  memset(hidden, 1, sizeof hidden);
  GIVES(flash, flash, AICORE, f.sparse = 1; f.mask = SHAPE(NPU_BOOL, 4, 9); own_data(&f.mask, hidden));
  GIVES(flash, varlen, 0, (void)f);
  GIVES(flash, varlen, TILING, f.layout = "BSND");
  GIVES(flash, varlen, NULLPTR, f.n_lens = -1);
  GIVES(flash, varlen, TILING, f.n_lens = 1);
  GIVES(flash, varlen, TILING, f.q_lens[1] = 5);
  GIVES(flash, varlen, TILING, f.kv_lens[1] = 13);
  GIVES(flash, varlen, TILING, f.kv_lens[0] = 15);
  GIVES(flash, varlen, 0, f.q_lens[0] = 0; f.kv_lens[0] = 0); /* an empty sequence */
  GIVES(flash, varlen, TILING, f.kv_lens[0] = 0; f.mask = absent);
  GIVES(flash, varlen, TILING, f.kv_lens[0] = 3);
  GIVES(flash, varlen, INVALID, f.max = f.sum = SHAPE(NPU_FLOAT, 6, 8, 4));
  GIVES(flash, varlen, TILING, f.shift = SHAPE(NPU_BF16, 1, 4, 4, 9));
}

static int32_t small_ints[8];
static struct scatter scatter_base(void) {
  static const int32_t slots[3] = {3, 0, 9};
  struct scatter s = {.cache_mode = "Norm", .scatter_mode = "None", .extra = absent};
  s.k = s.v = SHAPE(NPU_BF16, 3, 2, 16);
  s.k_cache = s.v_cache = SHAPE(NPU_BF16, 4, 4, 2, 16);
  s.slots = SHAPE(NPU_INT32, 3);
  memcpy(small_ints, slots, sizeof slots);
  return s;
}
static int scatter_slots(struct scatter *s) {
  if (!s->slots.data && s->slots.type == NPU_INT32 && !s->slots.absent) own_data(&s->slots, small_ints);
  return scatter(s);
}
static struct gather gather_base(void) {
  struct gather g = {.mode = "Norm", .offsets = absent};
  g.k_cache = g.v_cache = SHAPE(NPU_BF16, 4, 4, 2, 16);
  g.table = SHAPE(NPU_INT32, 2, 2);
  g.lens = SHAPE(NPU_INT32, 2);
  g.k = g.v = SHAPE(NPU_BF16, 7, 2, 16);
  small_ints[0] = 5, small_ints[1] = 2;
  return g;
}
static int gather_lens(struct gather *g) {
  if (!g->lens.data && g->lens.type == NPU_INT32) own_data(&g->lens, small_ints);
  return gather(g);
}
#define scatter_type scatter
#define gather_type  gather

static void refuse_paged(void) {
  GIVES(scatter_slots, scatter, 0, (void)f);
  GIVES(scatter_slots, scatter, 0, f.cache_mode = f.scatter_mode = NULL);
  GIVES(scatter_slots, scatter, NULLPTR, f.k.absent = true);
  GIVES(scatter_slots, scatter, NULLPTR, f.v.absent = true);
  GIVES(scatter_slots, scatter, NULLPTR, f.k_cache.absent = true);
  GIVES(scatter_slots, scatter, NULLPTR, f.slots.absent = true);
  GIVES(scatter_slots, scatter, INVALID, f.cache_mode = "NZ");
  GIVES(scatter_slots, scatter, INVALID, f.scatter_mode = "Rope");
  GIVES(scatter_slots, scatter, INVALID, f.slots.type = NPU_UINT8);
  GIVES(scatter_slots, scatter, INVALID, f.slots = SHAPE(NPU_INT32, 2));
  GIVES(scatter_slots, scatter, INVALID, f.k.type = f.k_cache.type = NPU_FLOAT);
  GIVES(scatter_slots, scatter, INVALID, f.k_cache.type = NPU_FLOAT16);
  GIVES(scatter_slots, scatter, INVALID, f.k_cache = SHAPE(NPU_BF16, 4, 4, 32));
  GIVES(scatter_slots, scatter, INVALID, f.v_cache = SHAPE(NPU_BF16, 4, 8, 2, 16));
  GIVES(scatter_slots, scatter, INVALID, f.k = SHAPE(NPU_BF16, 3, 32));
  GIVES(scatter_slots, scatter, INVALID, f.v = SHAPE(NPU_BF16, 2, 2, 16));
  GIVES(scatter_slots, scatter, TILING, f.extra = SHAPE(NPU_INT32, 3));
  GIVES(scatter_slots, scatter, VECTOR, small_ints[1] = 16);
  GIVES(scatter_slots, scatter, VECTOR, small_ints[1] = -1);
  GIVES(scatter_slots, scatter, VECTOR, small_ints[1] = 9); /* twice */
  GIVES(scatter_slots, scatter, 0, small_ints[1] = 15);
  GIVES(scatter_slots, scatter, 0, f.v = SHAPE(NPU_BF16, 0); f.v_cache = SHAPE(NPU_BF16, 0)); /* keys alone */
  GIVES(scatter_slots, scatter, INVALID, f.v = SHAPE(NPU_BF16, 0));
  bool newer = is_new();
  GIVES(scatter_slots, scatter, newer ? 0 : INVALID, f.scatter_mode = "NHSD"; f.k_cache = f.v_cache = SHAPE(NPU_BF16, 4, 2, 4, 16));
  if (newer)
    GIVES(scatter_slots, scatter, TILING, f.scatter_mode = "NHSD"; f.k = f.v = SHAPE(NPU_BF16, 3, 2, 8);
          f.k_cache = f.v_cache = SHAPE(NPU_BF16, 4, 2, 4, 8));
  GIVES(scatter_slots, scatter, INVALID, f.cache_mode = "PA_NZ");
  GIVES(scatter_slots, scatter, 0, f.cache_mode = "PA_NZ"; f.k_cache = f.v_cache = SHAPE(NPU_BF16, 4, 2, 4, 16));
  GIVES(gather_lens, gather, 0, (void)f);
  GIVES(gather_lens, gather, NULLPTR, f.mode = NULL);
  GIVES(gather_lens, gather, INVALID, f.mode = "norm");
  GIVES(gather_lens, gather, NULLPTR, f.v_cache.absent = true);
  GIVES(gather_lens, gather, INVALID, f.table = SHAPE(NPU_INT32, 4));
  GIVES(gather_lens, gather, INVALID, f.lens = SHAPE(NPU_INT32, 3));
  GIVES(gather_lens, gather, INVALID, f.table.type = f.lens.type = NPU_INT64);
  GIVES(gather_lens, gather, INVALID, f.k = SHAPE(NPU_BF16, 7, 32));
  GIVES(gather_lens, gather, INVALID, f.v = SHAPE(NPU_BF16, 6, 2, 16));
  GIVES(gather_lens, gather, INVALID, f.k.type = NPU_FLOAT16);
  GIVES(gather_lens, gather, TILING, f.k_cache = f.v_cache = SHAPE(NPU_BF16, 4, 1, 149, 512); f.k = f.v = SHAPE(NPU_BF16, 7, 149, 512));
  GIVES(gather_lens, gather, VECTOR, small_ints[0] = 6);
  GIVES(gather_lens, gather, VECTOR, small_ints[0] = 4);
  GIVES(gather_lens, gather, VECTOR, small_ints[0] = 9, small_ints[1] = -2);
  GIVES(gather_lens, gather, VECTOR, poison(&f.table));
  int32_t cumulative[3] = {0, 5, 7}, late[3] = {1, 5, 7};
  GIVES(gather_lens, gather, 0, f.cumulative = true; f.lens = SHAPE(NPU_INT32, 3); own_data(&f.lens, cumulative));
  GIVES(gather_lens, gather, VECTOR, f.cumulative = true; f.lens = SHAPE(NPU_INT32, 3); own_data(&f.lens, late));
  GIVES(gather_lens, gather, VECTOR, small_ints[0] = 3, small_ints[1] = 4; f.table = SHAPE(NPU_INT32, 2, 1);
        f.offsets = SHAPE(NPU_INT32, 2); own_data(&f.offsets, ((int32_t[]){0, 4})));
}
static void symbols(void) {
  bool older = emu->cann < 805;
  assert_true(acl.FusedInferAttentionScoreV2 && acl.FusedInferAttentionScoreV3 && acl.FlashAttentionScore &&
              acl.FlashAttentionVarLenScore && acl.IncreFlashAttentionV4);
  assert_true(!acl.FusedInferAttentionScoreV4 == older && !acl.ScatterPaKvCache == older && !acl.GatherPaKvCache == older);
}

/* The names are there, but this chip has no kernel behind them. */
static void refuse_310p(void) {
  GIVES(fia, decode, NO_KERNEL, (void)f);
  GIVES(fia, decode, NO_KERNEL, f.version = 2);
  GIVES(flash, flash, NO_KERNEL, f.mask = absent);
  GIVES(flash, varlen, NO_KERNEL, f.mask = absent);
  GIVES(scatter_slots, scatter, NO_KERNEL, (void)f);
  GIVES(gather_lens, gather, NO_KERNEL, (void)f);
}
static void refusals_body(void) {
  open_npu();
  symbols();
  refuse_incre();
  if (is_310p()) {
    refuse_310p();
  } else {
    refuse_any();
    refuse_pages();
    refuse_masks();
    refuse_dense();
    refuse_packed();
    refuse_flash();
    if (acl.ScatterPaKvCache) refuse_paged();
  }
  close_npu();
}
static void test_refusals(void **state) {
  (void)state;
  npu_each_profile(refusals_body);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_refusals)};
TEST_MAIN(tests)
