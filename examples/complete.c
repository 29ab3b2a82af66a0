/* complete.c — a program on top of cygnet.h: continue a text, print it as it is written.
 *
 *     cc complete.c $(pkg-config --cflags --libs cygnet) -o complete
 *     ./complete model.gguf 'The capital of France is' 16
 *
 * With the library inside the program, so that it runs where cygnet is not installed:
 *
 *     cc complete.c $(pkg-config --cflags cygnet) -Wl,-Bstatic -lcygnet -Wl,-Bdynamic $(pkg-config --libs --static cygnet) -o complete
 */
#include <cygnet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(const struct cygnet_error *e) {
  fprintf(stderr, "complete: %s\n", e->message);
  return e->exit_status;
}

/* Works until nothing is left to do, printing what comes. Several requests could be on their way; ev.request and ev.user tell them apart. */
static int print_answer(struct cygnet *c) {
  struct cygnet_event ev;
  int status = 0;
  while (cygnet_step(c))
    while (cygnet_next_event(c, &ev)) {
      fwrite(ev.text, 1, ev.n_text, stdout);
      fflush(stdout);
      if (ev.finish == CYGNET_FINISH_ERROR) status = failed(&ev.error);
      else if (ev.finish) fprintf(stderr, "\n[%d tokens, then: %s]\n", ev.completion_tokens, cygnet_finish_name(ev.finish));
    }
  return status;
}

int main(int argc, char **argv) {
  if (argc < 3 || argc > 4) {
    fprintf(stderr, "usage: complete MODEL TEXT [TOKENS]\n");
    return 2;
  }
  const char *text = argv[2];
  struct cygnet_options options = {.model = argv[1], .quiet = 1}; /* zero is the default of all else */
  struct cygnet_error e;
  struct cygnet *c = cygnet_open(&options, &e);
  if (!c) return failed(&e);

  int status = 1;
  int32_t *ids = NULL;
  size_t n_ids;
  if (cygnet_encode(c, text, strlen(text), 0, 1, &ids, &n_ids)) {
    fprintf(stderr, "complete: the text is too long\n");
  } else {
    struct cygnet_request r = {.prompt = ids, .n_prompt = n_ids, .max_tokens = argc == 4 ? atoi(argv[3]) : 32}; /* temperature 0: greedy */
    status = cygnet_submit(c, &r, &e) ? print_answer(c) : failed(&e);
  }
  cygnet_free(ids);
  cygnet_close(c);
  return status;
}
