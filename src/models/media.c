/* media.c — pictures and sounds as models want them: how many rows of what size, their life, and what tells one from another. */
#include "models/media.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "base/mem.h"
#include "models/media_impl.h"

/* What released processors take, and an own number of the file's beside. */
static const int budgets[] = {70, 140, 280, 560, 1120, 0};
enum { BUDGET_MAX = 1120, FRAME_BUDGET = 70, SECONDS_MAX = 30 };

/* ---- pictures ------------------------------------------------------------------------------------------------------------- */

static bool is_gemma4(const struct vision_config *v) { return v->kind == VISION_GEMMA4 || v->kind == VISION_GEMMA4_BLOCKS; }
static int square(int x) { return x * x; }

const int *media_budgets(const struct model_config *c) {
  static const int none[] = {0};
  return is_gemma4(&c->vision) ? budgets : none;
}

static int budget_of(const struct vision_config *v, const struct media_options *o, struct err *e) {
  if (o->soft_tokens == 0) return o->frame ? FRAME_BUDGET : v->soft_tokens;
  for (const int *b = budgets; *b; b++)
    if (o->soft_tokens == *b) return *b;
  if (o->soft_tokens == v->soft_tokens) return v->soft_tokens;
  return err_set(e, ERR_BAD_INPUT, "picture: expected a budget of 70, 140, 280, 560 or 1120 rows, found %d", o->soft_tokens);
}

/* Fill the budget: both sides are rounded down to whole groups of patches, a side that would vanish keeps one. The processors refuse a
 * picture of which both would vanish; their forerunner makes it one group, and so do we. */
static int shape_gemma4(const struct vision_config *v, int width, int height, const struct media_options *o, struct media *m,
                        struct media_size *to, struct err *e) {
  int budget = budget_of(v, o, e), side = v->patch * v->pool;
  if (budget < 0) return -1;
  double scale = sqrt((double)budget * side * side / ((double)width * height));
  int wide = (int)fmin(floor(scale * width / side), budget), high = (int)fmin(floor(scale * height / side), budget);
  if (wide == 0 && high == 0) wide = high = 1;
  else if (high == 0) high = 1, wide = MAX(MIN(width / height, budget), 1);
  else if (wide == 0) wide = 1, high = MAX(MIN(height / width, budget), 1);
  int per_side = v->kind == VISION_GEMMA4 ? v->pool : 1;
  if (MAX(wide, high) * per_side > v->n_positions)
    return err_set(
        e, ERR_BAD_INPUT,
        "picture: %d x %d pixels with %d rows are %d x %d patches, the model has places for %d a side: give it fewer rows or a part of it",
        width, height, budget, wide * per_side, high * per_side, v->n_positions);
  *to = (struct media_size){wide * side, high * side};
  m->n_tokens = m->n_rows = wide * high;
  m->n_patches = wide * high * square(per_side);
  m->width = to->width;
  m->height = to->height;
  return 0;
}

/* The canvas on which the picture can be largest, but no larger than need be; of those the one with the fewest tiles. */
static int choose_canvas(const struct vision_config *v, int width, int height) {
  double best = 0;
  int chosen = -1;
  for (int i = 0; i < v->n_ratios; i++) {
    int high = v->ratios[i][0], wide = v->ratios[i][1];
    double scale = fmin((double)high * v->image / height, (double)wide * v->image / width);
    bool better = chosen < 0 || (scale >= 1 ? best < 1 || scale < best : best < 1 && scale > best);
    if (better || (scale == best && high * wide < v->ratios[chosen][0] * v->ratios[chosen][1])) chosen = i;
    if (better) best = scale;
  }
  return chosen;
}

static void shape_mllama(const struct vision_config *v, int width, int height, struct media *m, struct media_size *to) {
  int chosen = choose_canvas(v, width, height), patches = square(v->image / v->patch);
  m->tiles_high = v->ratios[chosen][0];
  m->tiles_wide = v->ratios[chosen][1];
  m->ratio_id = chosen + 1;
  m->width = m->tiles_wide * v->image;
  m->height = m->tiles_high * v->image;
  m->n_tokens = 1;
  m->n_rows = m->tiles_wide * m->tiles_high * (patches + 1);
  m->n_patches = v->n_tiles * patches;
  /* enlarged until one side fills a tile, never to fill a larger canvas */
  int wide = MIN(MAX(width, v->image), m->width), high = MIN(MAX(height, v->image), m->height);
  double across = (double)wide / width, down = (double)high / height;
  if (across < down) *to = (struct media_size){wide, MIN(MAX((int)floor(height * across), 1), high)};
  else *to = (struct media_size){MIN(MAX((int)floor(width * down), 1), wide), high};
}

int media_shape(const struct model_config *c, int width, int height, const struct media_options *o, struct media *m,
                struct media_size *picture, struct err *e) {
  const struct vision_config *v = &c->vision;
  m->kind = o->frame ? MEDIA_FRAME : MEDIA_IMAGE;
  if (width <= 0 || height <= 0) return err_set(e, ERR_BAD_INPUT, "picture: expected a width and a height, found %d x %d", width, height);
  if (v->kind == VISION_NONE) return err_set(e, ERR_UNSUPPORTED, "picture: this model takes none");
  if (is_gemma4(v)) return shape_gemma4(v, width, height, o, m, picture, e);
  if (o->frame) return err_set(e, ERR_UNSUPPORTED, "video: this model takes none");
  if (o->soft_tokens)
    return err_set(e, ERR_BAD_INPUT, "picture: expected no budget of rows, for this model they are fixed, found %d", o->soft_tokens);
  if (v->kind == VISION_MLLAMA) {
    shape_mllama(v, width, height, m, picture);
    return 0;
  }
  *picture = (struct media_size){v->image, v->image};
  m->width = m->height = v->image;
  m->n_tokens = m->n_rows = v->soft_tokens;
  m->n_patches = square(v->image / v->patch);
  return 0;
}

/* Of everything that an encoder sees. Two media with the same digest give the same rows, so what belongs to one user may serve another. */
static void set_digest(struct media *m) {
  struct {
    int32_t sound, width, height, tiles_wide, tiles_high, ratio_id, n_patches, frame_cols;
    uint8_t content[DIGEST_BYTES];
  } all = {.sound = m->kind == MEDIA_AUDIO,
           .width = m->width,
           .height = m->height,
           .tiles_wide = m->tiles_wide,
           .tiles_high = m->tiles_high,
           .ratio_id = m->ratio_id,
           .n_patches = m->n_patches,
           .frame_cols = m->frame_cols};
  _Static_assert(sizeof all == 8 * sizeof(int32_t) + DIGEST_BYTES, "no padding");
  if (m->pixels) digest_sha256(m->pixels, (size_t)m->width * (size_t)m->height * 3, all.content);
  else digest_sha256(m->frames, (size_t)m->n_patches * (size_t)m->frame_cols * sizeof *m->frames, all.content);
  digest_sha256(&all, sizeof all, m->digest);
}

static struct media *media_new(void) {
  struct media *m = xcalloc(1, sizeof *m);
  m->refs = 1;
  return m;
}

/* Black behind and below the picture. False when there is no memory. */
static bool put_on_canvas(struct media *m, struct media_size size) {
  size_t from_bytes = (size_t)size.width * 3, to_bytes = (size_t)m->width * 3;
  uint8_t *canvas = mem_try_alloc(to_bytes * (size_t)m->height);
  if (!canvas) return false;
  for (int y = 0; y < size.height; y++) memcpy(canvas + (size_t)y * to_bytes, m->pixels + (size_t)y * from_bytes, from_bytes);
  free(m->pixels);
  m->pixels = canvas;
  return true;
}

struct media *media_from_image(const struct model_config *c, const struct image *im, const struct media_options *o, struct err *e) {
  static const struct media_options none = {0};
  struct media_size size;
  struct media *m = media_new();
  if (media_shape(c, im->width, im->height, o ? o : &none, m, &size, e)) goto fail;
  m->pixels = media_resize(im->rgb, im->width, im->height, 3, size.width, size.height,
                           is_gemma4(&c->vision) ? MEDIA_BICUBIC : MEDIA_BILINEAR);
  if (!m->pixels || ((size.width != m->width || size.height != m->height) && !put_on_canvas(m, size))) {
    err_set(e, ERR_NO_MEMORY, "picture: no memory to bring %d x %d pixels to %d x %d", im->width, im->height, m->width, m->height);
    goto fail;
  }
  set_digest(m);
  return m;
fail:
  media_release(m);
  return NULL;
}

/* ---- sound ---------------------------------------------------------------------------------------------------------------- */

struct media *media_from_audio(const struct model_config *c, const struct audio *a, int64_t first, int64_t n, struct err *e) {
  const struct audio_config *x = &c->audio;
  struct media *m = media_new();
  m->kind = MEDIA_AUDIO;
  m->seconds = (double)a->n_samples / AUDIO_RATE;
  CHECK(first >= 0 && n >= 0 && first + n <= a->n_samples);
  if (x->kind == AUDIO_NONE) {
    err_set(e, ERR_UNSUPPORTED, "sound: this model takes none");
    goto fail;
  }
  if (n > (int64_t)SECONDS_MAX * AUDIO_RATE) {
    err_set(e, ERR_BAD_INPUT, "sound: %.2f seconds are more than the %d that the model hears at once: give it in parts",
            (double)n / AUDIO_RATE, SECONDS_MAX);
    goto fail;
  }
  bool plain = x->kind == AUDIO_GEMMA4_FRAMES;
  m->frame_cols = plain ? x->hidden : x->n_mel;
  m->n_patches = plain ? div_up((int)n, m->frame_cols) : media_mel_frames(n);
  m->n_tokens = m->n_rows = plain ? m->n_patches : div_up(m->n_patches, 4);
  if (m->n_tokens == 0) {
    err_set(e, ERR_BAD_INPUT, "sound: expected at least %d samples at %d Hz, found %lld: too short to be heard", plain ? 1 : MEDIA_HOP + 1,
            AUDIO_RATE, (long long)n);
    goto fail;
  }
  m->frames = mem_try_alloc((size_t)m->n_patches * (size_t)m->frame_cols * sizeof *m->frames);
  if (!m->frames || (!plain && !media_mel(a->samples + first, n, x->n_mel, m->frames))) {
    err_set(e, ERR_NO_MEMORY, "sound: no memory for %d frames", m->n_patches);
    goto fail;
  }
  if (plain) memcpy(m->frames, a->samples + first, (size_t)n * sizeof *m->frames); /* the last frame ends in silence */
  set_digest(m);
  return m;
fail:
  media_release(m);
  return NULL;
}

/* ---- life ------------------------------------------------------------------------------------------------------------------ */

const char *media_kind_name(enum media_kind kind) {
  static const char *const names[] = {[MEDIA_IMAGE] = "picture", [MEDIA_FRAME] = "video frame", [MEDIA_AUDIO] = "sound"};
  return names[kind];
}

void media_retain(const struct media *m) { __atomic_add_fetch(&((struct media *)m)->refs, 1, __ATOMIC_RELAXED); }

void media_release(const struct media *m) {
  struct media *own = (struct media *)m;
  if (!own || __atomic_sub_fetch(&own->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
  free(own->pixels);
  free(own->frames);
  free(own);
}

/* ---- crops and bounds -------------------------------------------------------------------------------------------------------- */

int media_crops(int width, int height, int crop_min, int crops_max, double ratio_min, struct media_crop crops[4]) {
  int longer = MAX(width, height), shorter = MIN(width, height);
  if (shorter <= 0 || crop_min <= 0 || crops_max <= 0 || (double)longer / shorter < ratio_min) return 0;
  int n = (int)MIN(floor((double)longer / shorter + 0.5), 4);
  n = MIN(MAX(MIN(n, longer / crop_min), 2), MIN(crops_max, 4));
  int each = div_up(longer, n), n_crops = 0;
  if (MIN(each, shorter) < crop_min) return 0;
  for (int at = 0; n_crops < n && at < longer; at += each, n_crops++) {
    int len = MIN(each, longer - at);
    crops[n_crops] = width >= height ? (struct media_crop){at, 0, len, height} : (struct media_crop){0, at, width, len};
  }
  return n_crops;
}

int media_tokens_max(const struct model_config *c, enum media_kind kind) {
  return kind == MEDIA_IMAGE && c->vision.kind == VISION_MLLAMA ? 1 : media_rows_max(c, kind);
}

int media_rows_max(const struct model_config *c, enum media_kind kind) {
  const struct vision_config *v = &c->vision;
  if (kind == MEDIA_AUDIO) return c->audio.kind == AUDIO_GEMMA4 ? div_up(media_patches_max(c, kind), 4) : media_patches_max(c, kind);
  if (is_gemma4(v)) return MAX(v->soft_tokens, BUDGET_MAX);
  if (kind == MEDIA_FRAME) return 0;
  if (v->kind == VISION_MLLAMA) return v->n_tiles * (square(v->image / v->patch) + 1);
  return v->kind == VISION_SIGLIP ? v->soft_tokens : 0;
}

int media_patches_max(const struct model_config *c, enum media_kind kind) {
  const struct vision_config *v = &c->vision;
  int samples = SECONDS_MAX * AUDIO_RATE;
  if (kind == MEDIA_AUDIO && c->audio.kind == AUDIO_NONE) return 0;
  if (kind == MEDIA_AUDIO) return c->audio.kind == AUDIO_GEMMA4_FRAMES ? div_up(samples, c->audio.hidden) : media_mel_frames(samples);
  if (is_gemma4(v)) return media_rows_max(c, kind) * (v->kind == VISION_GEMMA4 ? square(v->pool) : 1);
  if (kind == MEDIA_FRAME) return 0;
  if (v->kind == VISION_MLLAMA) return v->n_tiles * square(v->image / v->patch);
  return v->kind == VISION_SIGLIP ? square(v->image / v->patch) : 0;
}

int media_seconds_max(const struct model_config *c) { return c->audio.kind == AUDIO_NONE ? 0 : SECONDS_MAX; }
