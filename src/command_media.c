/* command_media.c — pictures and sounds from files, for commands that run a model. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "commands.h"
#include "files/json.h"
#include "files/map.h"

int command_media_add(struct command_media *m, const struct options *o, const struct cygnet *c, enum cygnet_media_kind kind,
                      const char *path, struct err *e) {
  const struct cygnet_media_options mo = {.max_tokens = kind == CYGNET_AUDIO ? 0 : (int)o->media_tokens};
  struct cygnet_error why = {0};
  size_t n;
  char *bytes = command_read_file(path, &n, e);
  if (!bytes) return -1;
  struct cygnet_media *one = cygnet_media_new(c, kind, bytes, n, &mo, &why);
  free(bytes);
  if (!one) {
    char label[200];
    return err_set(e, why.exit_status == 1 ? ERR_INTERNAL : ERR_BAD_FILE, "%s: %s", path_label(path, label), why.message);
  }
  m->v = xrealloc(m->v, (m->n + 1) * sizeof *m->v);
  m->v[m->n++] = one;
  return 0;
}

void command_media_cut(struct command_media *m, size_t n) {
  while (m->n > n) cygnet_media_free(m->v[--m->n]);
  if (n) return;
  free(m->v);
  m->v = NULL;
}

/* A text with pictures and sounds in front, or at the markers that it spells. */
static int render_text(const struct options *o, const struct cygnet *c, int32_t **ids, size_t *n, struct err *e) {
  struct cygnet_error why = {0};
  struct buf json;
  char *owned = NULL;
  size_t len = o->prompt ? strlen(o->prompt) : 0;
  if (o->file && !(owned = command_read_file(o->file, &len, e))) return -1;
  json_t *parts = json_array(), *text = json_stringn(owned ? owned : o->prompt, len);
  for (int i = 0; i < o->images.n; i++) json_array_append_new(parts, json_pack("{s:s}", "type", "image_url"));
  for (int i = 0; i < o->sounds.n; i++) json_array_append_new(parts, json_pack("{s:s}", "type", "input_audio"));
  free(owned);
  if (!text) {
    json_decref(parts);
    return err_set(e, ERR_BAD_INPUT, "the prompt: expected text in UTF-8");
  }
  json_array_append_new(parts, json_pack("{s:s, s:o}", "type", "text", "text", text));
  json_t *messages = json_pack("[{s:s, s:o}]", "role", "user", "content", parts);
  buf_init(&json, 0);
  json_put(&json, messages);
  json_decref(messages);
  int bad = cygnet_render(c, buf_cstr(&json), NULL, o->special ? "{\"raw\":true,\"special\":true}" : "{\"raw\":true}", ids, n, NULL, NULL,
                          &why);
  buf_free(&json);
  return bad ? err_set(e, why.exit_status == 1 ? ERR_INTERNAL : ERR_BAD_INPUT, "%s", why.message) : 0;
}

/* A file for each placeholder. */
static int load(const struct options *o, const struct cygnet *c, const int32_t *ids, size_t n, struct command_media *m, struct err *e) {
  struct cygnet_info info;
  int images = 0, sounds = 0;
  cygnet_info(c, &info);
  for (size_t i = 0; i < n; i++) {
    bool image = info.vision && ids[i] >= 0 && ids[i] == info.image_id, frame = info.vision && ids[i] >= 0 && ids[i] == info.video_id,
         sound = info.audio && ids[i] >= 0 && ids[i] == info.audio_id;
    if (!image && !frame && !sound) continue;
    if (sound ? sounds == o->sounds.n : images == o->images.n)
      return err_set(e, ERR_BAD_INPUT, "expected %s for each placeholder of the prompt, found %d", sound ? "--audio FILE" : "--image FILE",
                     sound ? o->sounds.n : o->images.n);
    const char *path = sound ? o->sounds.v[sounds++] : o->images.v[images++];
    if (command_media_add(m, o, c, sound ? CYGNET_AUDIO : frame ? CYGNET_VIDEO_FRAME : CYGNET_IMAGE, path, e)) return -1;
  }
  if (images < o->images.n || sounds < o->sounds.n) {
    const char *what = images < o->images.n ? "image" : "audio";
    return err_set(e, ERR_BAD_INPUT, "--%s: expected a placeholder in the prompt for each of the %d files, found %d", what,
                   images < o->images.n ? o->images.n : o->sounds.n, images < o->images.n ? images : sounds);
  }
  return 0;
}

/* Whether the model takes what is given; the library's sentence says what would help where it does not. */
static int check_taken(const struct options *o, const struct cygnet *c, struct err *e) {
  static const struct cygnet_media_options none = {0};
  struct cygnet_error why = {0};
  struct cygnet_info info;
  cygnet_info(c, &info);
  bool image = o->images.n && !info.vision, sound = o->sounds.n && !info.audio;
  if (!image && !sound) return 0;
  if (o->no_media) return err_set(e, ERR_BAD_INPUT, "--%s: expected none with --disable-media", image ? "image" : "audio");
  cygnet_media_free(cygnet_media_new(c, image ? CYGNET_IMAGE : CYGNET_AUDIO, "", 0, &none, &why));
  return err_set(e, ERR_UNSUPPORTED, "--%s: %s", image ? "image" : "audio", why.message);
}

int command_prompt_media(const struct options *o, const struct cygnet *c, int32_t **ids, size_t *n, struct command_media *m) {
  struct err e = {0};
  int status = 0;
  bool any = o->images.n || o->sounds.n, one_text = !o->ids && (o->prompt != NULL) + (o->file != NULL) == 1;
  if (check_taken(o, c, &e)) status = command_fail(&e);
  else if (any && one_text) status = render_text(o, c, ids, n, &e) ? command_fail(&e) : 0;
  else status = command_prompt(o, c, ids, n);
  if (!status && load(o, c, *ids, *n, m, &e)) status = command_fail(&e);
  return status;
}
