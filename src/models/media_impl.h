/* media_impl.h — between the files of media.h: geometry apart from pixels, and the mel recipe. */
#ifndef CYGNET_MEDIA_IMPL_H
#define CYGNET_MEDIA_IMPL_H

#include "models/media.h"

struct media_size {
  int width, height;
};

/* Everything of *m but its pixels and digest, and the size that the picture is resized to (mllama: the canvas is larger). */
int media_shape(const struct model_config *c, int width, int height, const struct media_options *o, struct media *m,
                struct media_size *picture, struct err *e);

/* What pixels of 0 .. 255 are to the encoder. */
void media_values(const struct vision_config *v, float value[3][256]);

/* Gemma 4: sound of 20 ms every 10 ms, the first half of the first frame silent. Frames that n samples fill; fewer than 161 give none. */
enum { MEDIA_HOP = AUDIO_RATE / 100, MEDIA_FRAME_SAMPLES = 2 * MEDIA_HOP };
int media_mel_frames(int64_t n_samples);
/* Into out [media_mel_frames(n), n_mel]; in float64 until it is stored. False when there is no memory. */
bool media_mel(const float *samples, int64_t n, int n_mel, float *out);

#endif
