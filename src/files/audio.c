/* audio.c — bytes of a sound to mono float32 at 16 kHz. The rules are in audio.h. */
#include "files/audio.h"

#include <stdlib.h>

const char *audio_type(const void *bytes, size_t n) {
  (void)bytes, (void)n;
  return NULL;
}

int audio_decode(const void *bytes, size_t n, int seconds_max, struct audio *out, struct err *e) {
  (void)bytes, (void)n, (void)seconds_max;
  *out = (struct audio){0};
  return err_set(e, ERR_UNSUPPORTED, "sound: no decoder");
}

void audio_free(struct audio *a) {
  free(a->samples);
  *a = (struct audio){0};
}
