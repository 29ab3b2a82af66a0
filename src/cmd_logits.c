/* cmd_logits.c — the logits (and hidden states) of every position of a prompt, as safetensors. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "commands.h"
#include "files/safetensors.h"

struct sink {
  float *logits; /* [T, vocab] */
  float *hidden; /* [layers + 1, T, hidden] or NULL */
  int n_rows;
};

static void on_logits(void *ctx, int position, const float *x, int vocab) {
  struct sink *s = ctx;
  memcpy(s->logits + (size_t)position * (size_t)vocab, x, (size_t)vocab * sizeof *x);
}

static void on_hidden(void *ctx, int layer, int position, const float *x, int hidden) {
  struct sink *s = ctx;
  memcpy(s->hidden + ((size_t)layer * (size_t)s->n_rows + (size_t)position) * (size_t)hidden, x, (size_t)hidden * sizeof *x);
}

/* ids: with all rows of pictures and sounds, n of them; prompt: as it is submitted. */
static int run(const struct options *o, struct cygnet *c, const int32_t *ids, size_t n, const int32_t *prompt, size_t n_prompt,
               const struct command_media *media) {
  struct cygnet_error e = {0};
  struct err fe = {0};
  struct cygnet_info info;
  cygnet_info(c, &info);
  struct sink s = {.n_rows = (int)n};
  int status = 0;
  size_t logits_bytes = n * (size_t)info.vocab * sizeof(float),
         hidden_bytes = n * (size_t)(info.n_layers + 1) * (size_t)info.hidden * sizeof(float);
  s.logits = mem_try_alloc(logits_bytes);
  s.hidden = o->hidden ? mem_try_alloc(hidden_bytes) : NULL;
  if (!s.logits || (o->hidden && !s.hidden)) {
    char need[32];
    err_set(&fe, ERR_NO_MEMORY, "logits of %zu positions need %s: give a shorter prompt", n,
            mem_human(logits_bytes + (o->hidden ? hidden_bytes : 0), need));
    status = command_fail(&fe);
    goto done;
  }
  struct cygnet_request r = {.prompt = prompt,
                             .n_prompt = n_prompt,
                             .media = (const struct cygnet_media *const *)media->v,
                             .n_media = media->n,
                             .max_tokens = 0,
                             .on_logits = on_logits,
                             .on_hidden = o->hidden ? on_hidden : NULL,
                             .callback_ctx = &s};
  if (!cygnet_submit(c, &r, &e)) {
    status = command_fail_public(&e);
    goto done;
  }
  struct cygnet_event ev = {0};
  do {
    while (cygnet_next_event(c, &ev))
      if (ev.finish == CYGNET_FINISH_ERROR) {
        status = command_fail_public(&ev.error);
        goto done;
      }
  } while (cygnet_step(c));

  const struct st_write tensors[] = {
      {.name = "ids", .dtype = DTYPE_I32, .n_dims = 1, .shape = {(int64_t)n}, .data = ids},
      {.name = "logits", .dtype = DTYPE_F32, .n_dims = 2, .shape = {(int64_t)n, info.vocab}, .data = s.logits},
      {.name = "hidden", .dtype = DTYPE_F32, .n_dims = 3, .shape = {info.n_layers + 1, (int64_t)n, info.hidden}, .data = s.hidden},
  };
  if (safetensors_write(o->out, tensors, o->hidden ? 3 : 2, &fe)) status = command_fail(&fe);
done:
  free(s.logits);
  free(s.hidden);
  return status;
}

int cmd_logits(const struct options *o) {
  struct err e = {0};
  if (!o->out || !*o->out) {
    err_set(&e, ERR_BAD_INPUT, "no output file: add --out FILE.safetensors");
    return command_fail(&e);
  }
  int status = 0;
  struct options alone = *o;
  alone.max_running = 1;
  struct cygnet *c = command_open(&alone, &status);
  if (!c) return status;
  int32_t *ids = NULL, *rows = NULL;
  size_t n = 0, n_rows = 0;
  struct command_media media = {0};
  struct cygnet_error why = {0};
  status = command_prompt_media(o, c, &ids, &n, &media);
  if (!status && media.n && cygnet_expand(c, ids, n, (const struct cygnet_media *const *)media.v, media.n, &rows, &n_rows, &why))
    status = command_fail_public(&why);
  if (!status) status = run(o, c, rows ? rows : ids, rows ? n_rows : n, ids, n, &media);
  command_media_cut(&media, 0);
  cygnet_free(rows);
  cygnet_free(ids);
  cygnet_close(c);
  return status;
}
