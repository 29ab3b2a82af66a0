/* cygnet_media.c — the public functions that concern pictures and sound. All may be called from any thread: what they read of struct cygnet
 * is fixed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cygnet.h"
#include "engine/engine.h"

/* struct cygnet_media is struct media under its public name. */
static const struct media *own(const struct cygnet_media *m) { return (const struct media *)m; }

_Static_assert((int)CYGNET_IMAGE == MEDIA_IMAGE && (int)CYGNET_VIDEO_FRAME == MEDIA_FRAME && (int)CYGNET_AUDIO == MEDIA_AUDIO,
               "the public kinds are the room's");

/* Whether there is an encoder; a sentence with what would help when there is none. */
static int check_taken(const struct cygnet *c, enum media_kind kind, struct err *e) {
  bool sound = kind == MEDIA_AUDIO;
  const char *what = sound ? "sound" : "pictures";
  if (sound ? c->model->audio != NULL : c->model->vision != NULL) return 0;
  if (sound ? c->config.audio.kind != AUDIO_NONE : c->config.vision.kind != VISION_NONE)
    return err_set(e, ERR_UNSUPPORTED, "%s: the model was opened without what takes them (disable_media)", what);
  if (weights_gguf(c->weights))
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: the model's file has no encoder for them: if there is one, it is a file of its own (--mmproj FILE)", what);
  return err_set(e, ERR_UNSUPPORTED, "%s: this model takes none", what);
}

static struct media *new_picture(const struct cygnet *c, enum media_kind kind, const void *bytes, size_t n,
                                 const struct cygnet_media_options *o, struct err *e) {
  const struct media_options options = {.soft_tokens = o->max_tokens, .frame = kind == MEDIA_FRAME};
  struct image im = {0};
  if (image_decode(bytes, n, c->image_pixels, &im, e)) return NULL;
  struct media *m = media_from_image(&c->config, &im, &options, e);
  image_free(&im);
  return m;
}

/* [start, start + seconds) of n samples, in samples; what lies behind the end is left out. */
static int choose_part(int n_samples, double start, double seconds, int64_t *first, int64_t *n, struct err *e) {
  if (!(start >= 0) || !(seconds >= 0) || isinf(start))
    return err_set(e, ERR_BAD_INPUT, "sound: expected a part that begins at 0 seconds or later, found %g, %g seconds long", start, seconds);
  double from = floor(start * AUDIO_RATE + 0.5), len = floor(seconds * AUDIO_RATE + 0.5);
  if (from > 0 && from >= n_samples)
    return err_set(e, ERR_BAD_INPUT, "sound: the part begins at %.2f seconds, behind the end at %.2f", start,
                   (double)n_samples / AUDIO_RATE);
  *first = (int64_t)from;
  *n = seconds > 0 && len < n_samples - from ? (int64_t)len : n_samples - *first;
  return 0;
}

static struct media *new_sound(const struct cygnet *c, const void *bytes, size_t n, const struct cygnet_media_options *o, struct err *e) {
  struct audio a = {0};
  struct media *m = NULL;
  int64_t first = 0, n_samples = 0;
  if (o->max_tokens) {
    err_set(e, ERR_BAD_INPUT, "sound: expected no budget of rows, found %d", o->max_tokens);
    return NULL;
  }
  bool whole = o->start_seconds == 0 && o->seconds == 0; /* then what is too long need not be decoded to be refused */
  if (audio_decode(bytes, n, whole ? media_seconds_max(&c->config) : 0, &a, e)) {
    if (whole && e->code == ERR_TOO_LARGE) e->code = ERR_BAD_INPUT;
    return NULL;
  }
  if (!choose_part(a.n_samples, o->start_seconds, o->seconds, &first, &n_samples, e))
    m = media_from_audio(&c->config, &a, first, n_samples, e);
  audio_free(&a);
  return m;
}

struct cygnet_media *cygnet_media_new(const struct cygnet *c, enum cygnet_media_kind kind, const void *bytes, size_t n,
                                      const struct cygnet_media_options *o, struct cygnet_error *e) {
  static const struct cygnet_media_options none = {0};
  struct err err = {0};
  struct media *m = NULL;
  if (!o) o = &none;
  if (!check_taken(c, (enum media_kind)kind, &err))
    m = kind == CYGNET_AUDIO ? new_sound(c, bytes, n, o, &err) : new_picture(c, (enum media_kind)kind, bytes, n, o, &err);
  if (!m) cygnet_error_set(e, &err);
  return (struct cygnet_media *)m;
}

static int cut(const struct cygnet *c, const struct audio *a, struct cygnet_media **pieces, int n, struct err *e) {
  for (int i = 0; i < n; i++) {
    int64_t from = (int64_t)a->n_samples * i / n, to = (int64_t)a->n_samples * (i + 1) / n;
    pieces[i] = (struct cygnet_media *)media_from_audio(&c->config, a, from, to - from, e);
    if (pieces[i]) continue;
    while (i) cygnet_media_free(pieces[--i]);
    return -1;
  }
  return n;
}

int cygnet_media_pieces(const struct cygnet *c, const void *bytes, size_t n, double seconds_max, struct cygnet_media **pieces, int n_max,
                        double *seconds, struct cygnet_error *e) {
  struct audio a = {0};
  struct err err = {0};
  int rc = -1;
  if (!(seconds_max * AUDIO_RATE >= 1)) {
    err_set(&err, ERR_BAD_INPUT, "sound: expected pieces of some length, found %g seconds", seconds_max);
  } else if (!check_taken(c, MEDIA_AUDIO, &err) && !audio_decode(bytes, n, 0, &a, &err)) {
    *seconds = (double)a.n_samples / AUDIO_RATE;
    double count = ceil(a.n_samples / floor(seconds_max * AUDIO_RATE));
    rc = count > n_max ? n_max + 1 : cut(c, &a, pieces, MAX((int)count, 1), &err);
  }
  audio_free(&a);
  if (rc < 0) cygnet_error_set(e, &err);
  return rc;
}

void cygnet_media_free(struct cygnet_media *m) { media_release(own(m)); }
int cygnet_media_tokens(const struct cygnet_media *m) { return own(m)->n_tokens; }
double cygnet_media_seconds(const struct cygnet_media *m) { return own(m)->seconds; }

size_t cygnet_media_memory(const struct cygnet_media *m) {
  const struct media *x = own(m);
  return sizeof *x + (x->pixels ? (size_t)x->width * (size_t)x->height * 3 : 0) +
         (x->frames ? (size_t)x->n_patches * (size_t)x->frame_cols * sizeof *x->frames : 0);
}

int cygnet_media_write(const struct cygnet *c, const struct cygnet_media *m, const char *path, struct cygnet_error *e) {
  struct err err = {0};
  const struct media *x = own(m);
  int rc = media_write(&c->config, &x, 1, path, &err);
  if (rc) cygnet_error_set(e, &err);
  return rc;
}

/* ---- prompts ----------------------------------------------------------------------------------------------------------------- */

/* Every placeholder has its medium; *n_out: tokens of the expanded prompt. */
static int match(const struct cygnet *c, const int32_t *ids, size_t n_ids, const struct cygnet_media *const *media, size_t n_media,
                 size_t *n_out, struct err *e) {
  size_t k = 0, n = n_ids;
  for (size_t i = 0; i < n_ids; i++) {
    int kind = request_placeholder(&c->limits.media, ids[i]);
    if (kind < 0) continue;
    if (k < n_media && (int)own(media[k])->kind != kind)
      return err_set(e, ERR_BAD_INPUT, "the prompt has a place for a %s at token %zu, found a %s", media_kind_name((enum media_kind)kind),
                     i, media_kind_name(own(media[k])->kind));
    if (k < n_media && size_add_overflows(n, (size_t)own(media[k])->n_tokens - 1, &n))
      return err_set(e, ERR_TOO_LARGE, "the prompt has too many pictures and sounds");
    k++;
  }
  if (k != n_media) return err_set(e, ERR_BAD_INPUT, "the prompt has places for %zu pictures and sounds, found %zu", k, n_media);
  *n_out = n;
  return 0;
}

int cygnet_expand(const struct cygnet *c, const int32_t *ids, size_t n_ids, const struct cygnet_media *const *media, size_t n_media,
                  int32_t **out, size_t *n_out, struct cygnet_error *e) {
  struct err err = {0};
  size_t n = 0, n_bytes;
  int32_t *to = NULL;
  *out = NULL;
  *n_out = 0;
  if (!match(c, ids, n_ids, media, n_media, &n, &err)) {
    bool fits = !size_mul_overflows(MAX(n, 1), sizeof *to, &n_bytes) && (to = mem_try_alloc(n_bytes)) != NULL;
    if (!fits) err_set(&err, ERR_NO_MEMORY, "no memory for a prompt of %zu tokens", n);
  }
  if (!to) {
    cygnet_error_set(e, &err);
    return -1;
  }
  *out = to;
  *n_out = n;
  for (size_t i = 0; i < n_ids; i++) {
    int copies = request_placeholder(&c->limits.media, ids[i]) < 0 ? 1 : own(*media++)->n_tokens;
    while (copies--) *to++ = ids[i];
  }
  return 0;
}
