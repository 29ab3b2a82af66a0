/* cmd_preprocess.c — a picture or a sound as the model's encoder gets it, as safetensors. Of the model only its configuration is read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "commands.h"
#include "files/weights.h"
#include "models/media.h"

/* Pan and scan as the released processor does it where it is asked to. */
enum { CROP_MIN = 256, CROPS_MAX = 4 };
static const double CROP_RATIO = 1.2;

/* From a GGUF that may have no tensors. 1: it is none. */
static int config_from_file(struct model_config *c, const char *path, struct err *e) {
  struct map map = {0};
  struct gguf g = {0};
  int rc = 1;
  if (map_open(&map, path, e)) return -1;
  if (map.n_bytes >= 4 && !memcmp(map.data, "GGUF", 4)) rc = gguf_open(&g, &map, e) || config_from_gguf(c, &g, e) ? -1 : 0;
  gguf_close(&g);
  map_close(&map);
  return rc;
}

static int open_config(const struct options *o, struct model_config *c, struct err *e) {
  struct stat st;
  if (!o->model) return err_set(e, ERR_BAD_INPUT, "no model given: add -m PATH, a GGUF file or a folder with config.json");
  bool is_folder = stat(o->model, &st) == 0 && S_ISDIR(st.st_mode);
  int rc = is_folder ? config_from_folder(c, o->model, e) : config_from_file(c, o->model, e);
  if (rc > 0) { /* a checkpoint's file; its configuration lies beside it */
    struct weights *w = weights_open(o->model, c, e);
    weights_close(w);
    rc = w ? 0 : -1;
  }
  if (rc == 0 && o->mmproj) {
    struct weights *w = weights_open_mmproj(o->mmproj, c, e);
    weights_close(w);
    rc = w ? 0 : -1;
  }
  bool asked_sound = o->sounds.n > 0, takes = asked_sound ? c->audio.kind != AUDIO_NONE : c->vision.kind != VISION_NONE;
  if (rc == 0 && !is_folder && !takes && !o->mmproj)
    return err_set(e, ERR_UNSUPPORTED,
                   "the model's file has nothing for %s: if there is a part for it, it is a file of its own (--mmproj FILE)",
                   asked_sound ? "sound" : "pictures");
  return rc;
}

static struct media *of_crop(const struct model_config *c, const struct image *whole, struct media_crop r, struct err *e) {
  static const struct media_options none = {0};
  struct image im = {.width = r.width, .height = r.height, .rgb = mem_try_alloc((size_t)r.width * (size_t)r.height * 3)};
  struct media *m = NULL;
  if (!im.rgb) err_set(e, ERR_NO_MEMORY, "no memory to cut out %d x %d pixels", r.width, r.height);
  else {
    for (int y = 0; y < r.height; y++)
      memcpy(im.rgb + (size_t)y * (size_t)r.width * 3, whole->rgb + ((size_t)(r.top + y) * (size_t)whole->width + (size_t)r.left) * 3,
             (size_t)r.width * 3);
    m = media_from_image(c, &im, &none, e);
  }
  image_free(&im);
  return m;
}

/* The picture, and its crops behind it. Returns their number, or -1 and *e. */
static int prepare_picture(const struct options *o, const struct model_config *c, const char *bytes, size_t n,
                           struct media *out[1 + CROPS_MAX], struct err *e) {
  struct media_options options = {.soft_tokens = (int)o->media_tokens};
  struct media_crop crops[CROPS_MAX];
  struct image im = {0};
  int n_out = -1;
  if (o->crops && c->vision.kind != VISION_NONE && c->vision.kind != VISION_SIGLIP)
    return err_set(e, ERR_UNSUPPORTED, "--crops: this model takes pictures of any shape as they are");
  if (image_decode(bytes, n, o->media_pixels, &im, e)) return -1;
  if (!(out[0] = media_from_image(c, &im, &options, e))) goto done;
  int n_crops = o->crops ? media_crops(im.width, im.height, CROP_MIN, CROPS_MAX, CROP_RATIO, crops) : 0;
  for (int i = 0; i < n_crops; i++)
    if (!(out[1 + i] = of_crop(c, &im, crops[i], e))) goto done;
  n_out = 1 + n_crops;
done:
  image_free(&im);
  return n_out;
}

static int prepare_sound(const struct model_config *c, const char *bytes, size_t n, struct media **out, struct err *e) {
  struct audio a = {0};
  if (audio_decode(bytes, n, 0, &a, e)) return -1;
  *out = media_from_audio(c, &a, 0, a.n_samples, e);
  audio_free(&a);
  return *out ? 1 : -1;
}

static void report(const struct media *m, const struct model_config *c) {
  if (m->kind == MEDIA_AUDIO) printf("sound of %.2f seconds: %d frames of %d", m->seconds, m->n_patches, m->frame_cols);
  else printf("picture, prepared as %d x %d pixels: %d rows of %d", m->width, m->height, m->n_patches, media_cols(c, m->kind));
  printf(", %d %s in a prompt\n", m->n_tokens, m->n_tokens == 1 ? "token" : "tokens");
}

int cmd_preprocess(const struct options *o) {
  struct err e = {0};
  struct model_config *c = xcalloc(1, sizeof *c);
  struct media *media[1 + CROPS_MAX] = {NULL};
  char *bytes = NULL;
  size_t n_bytes;
  int status = 0, n = -1;
  if (!o->out || !*o->out) {
    err_set(&e, ERR_BAD_INPUT, "no output file: add --out FILE.safetensors");
    goto done;
  }
  if (o->images.n + o->sounds.n != 1) {
    err_set(&e, ERR_BAD_INPUT, "expected one --image FILE or one --audio FILE, found %d", o->images.n + o->sounds.n);
    goto done;
  }
  const char *path = o->images.n ? o->images.v[0] : o->sounds.v[0];
  char label[200];
  if (open_config(o, c, &e) || !(bytes = command_read_file(path, &n_bytes, &e))) goto done;
  n = o->images.n ? prepare_picture(o, c, bytes, n_bytes, media, &e) : prepare_sound(c, bytes, n_bytes, media, &e);
  if (n < 0) err_prefix(&e, "%s", path_label(path, label));
  else if (media_write(c, (const struct media *const *)media, n, o->out, &e)) n = -1;
done:
  if (n < 0) status = command_fail(&e);
  for (int i = 0; i < n && !o->quiet; i++) report(media[i], c);
  for (size_t i = 0; i < ARRAY_LEN(media); i++) media_release(media[i]);
  free(bytes);
  free(c);
  return status;
}
