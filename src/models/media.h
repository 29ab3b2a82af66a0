/* media.h — a picture or a sound as a model wants it: resized, counted, and its features on demand.
 *
 *   struct image ──media_from_image──► struct media {digest, rows, pixels} ──media_patches──► float32 rows for the encoder
 *   struct audio ──media_from_audio──► struct media {digest, rows, frames}
 *
 * Made on any thread, immutable afterwards, counted. What is kept is 8-bit pixels behind the resize (or mel frames), so that the count of
 * rows is exact and two files with the same pixels are the same medium, whatever else the files hold.
 *
 * Recipes, each to the bit that of the released processors (docs/media.md has formulas and sources):
 *   Gemma 3         image x image pixels whatever the shape, bilinear; soft_tokens rows. Crops (pan and scan) only when asked for
 *   Gemma 4         the largest size of whole 3x3 groups of patches within the budget of rows, bicubic; a row for each group
 *   mllama          a canvas of tiles, bilinear, black to the right and below; one token in the prompt, tiles * (patches + 1) bank rows
 *   Gemma 4 sound   log-mel frames, 10 ms apart; a row per four. 12B: raw frames of 640 samples, a row each
 * Resizing is Pillow's rule: antialiased, 8-bit in and out, horizontal pass first.
 */
#ifndef CYGNET_MEDIA_H
#define CYGNET_MEDIA_H

#include "files/audio.h"
#include "files/config.h"
#include "files/image.h"

enum media_kind { MEDIA_IMAGE, MEDIA_FRAME /* of a video: a picture with its own placeholder */, MEDIA_AUDIO };
const char *media_kind_name(enum media_kind kind); /* "picture", "video frame", "sound" */

struct media { /* what cygnet.h calls struct cygnet_media: one is cast into the other */
  enum media_kind kind;
  int refs;           /* atomic; media_retain, media_release */
  uint8_t digest[32]; /* SHA-256 of everything below that an encoder sees */
  int n_tokens;       /* placeholders it takes in the prompt */
  int n_rows;         /* rows that the encoder makes of it: n_tokens, but for mllama those of its bank (used tiles only) */
  int n_patches;      /* rows that go into the encoder: patches, blocks, or frames. mllama: of all n_tiles tiles */
  int width, height;  /* pixels behind the resize; mllama: of the canvas, tiles * image */
  int tiles_wide, tiles_high, ratio_id; /* mllama */
  uint8_t *pixels;                      /* [height, width, 3]; NULL for sound */
  float *frames;                        /* [n_patches, frame_cols]: mel features, or samples; NULL for pictures */
  int frame_cols;
  double seconds; /* of the whole sound that it is part of; not in the digest */
};

struct media_options {
  int soft_tokens; /* Gemma 4: 70, 140, 280, 560 or 1120; 0 = the processor's own. Others: must be 0 */
  bool frame;      /* a video's */
};

/* Budgets that a request may name, 0 behind the last; none where the model's pictures have one number of rows. */
const int *media_budgets(const struct model_config *c);

/* Returns owned (one reference). ERR_BAD_INPUT with a sentence: no encoder, a shape that the recipe refuses, a budget that the model does
 * not know. */
struct media *media_from_image(const struct model_config *c, const struct image *im, const struct media_options *o, struct err *e);
/* a's samples from `first` on, n of them; longer than the model hears at once (media_seconds_max) is refused, never cut. */
struct media *media_from_audio(const struct model_config *c, const struct audio *a, int64_t first, int64_t n, struct err *e);
void media_retain(const struct media *m);
void media_release(const struct media *m); /* NULL is fine */

/* Gemma 3's pan and scan: rectangles (left, top, width, height) to cut out of a picture beside the whole one; their number, 0 .. 4. */
struct media_crop {
  int left, top, width, height;
};
int media_crops(int width, int height, int crop_min, int crops_max, double ratio_min, struct media_crop crops[4]);

/* Columns of an encoder's input row, and n rows of it from `first` on into out [n, cols]: in the order that the weights of the checkpoint's
 * format want.
 *   SIGLIP, MLLAMA   [colour, y, x] of a patch, normalised; MLLAMA: tiles one after the other, those that are not used are 0
 *   GEMMA4           [y, x, colour], 0 .. 1; BLOCKS the same of whole blocks
 *   sound            a frame */
int media_cols(const struct model_config *c, enum media_kind kind);
void media_patches(const struct model_config *c, const struct media *m, int first, int n, float *out);
/* Place of a patch: column and row. Gemma 4. */
void media_place(const struct model_config *c, const struct media *m, int patch, int *x, int *y);

/* What the encoder gets of it, as tensors of a safetensors file (media_write.c has their names). Several only for SIGLIP: a picture and its
 * crops. */
int media_write(const struct model_config *c, const struct media *const *media, int n, const char *path, struct err *e);

/* Bounds for planning memory: of one picture (any shape, the greatest budget) or sound. 0 where the model has no encoder. */
int media_tokens_max(const struct model_config *c, enum media_kind kind);
int media_rows_max(const struct model_config *c, enum media_kind kind);
int media_patches_max(const struct model_config *c, enum media_kind kind);
int media_seconds_max(const struct model_config *c);

/* Resize alone, for tests: channels interleaved. Returns owned, or NULL when there is no memory. */
enum media_filter { MEDIA_BILINEAR, MEDIA_BICUBIC };
uint8_t *media_resize(const uint8_t *from, int width, int height, int channels, int to_width, int to_height, enum media_filter filter);

#endif
