/* cmd_serve.c — the server: banner with everything that was decided at start, then HTTP until a signal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "commands.h"
#include "server/serve.h"

static void print_banner(const struct cygnet *c) {
  struct cygnet_info i;
  char weights[32], cache[32], scratch[32];
  cygnet_info(c, &i);
  fprintf(stderr,
          "cygnet %s: %s (%s, %s)\n"
          "  kernels %s, %d thread%s; loaded in %.0f ms\n"
          "  context %d tokens of the model's %d; window %d tokens in %d of %d layers\n"
          "  memory: weights %s, cache %s (%d tokens full, %d sliding, %s), scratch %s\n"
          "  at most %d requests at the same time, %d prompt tokens a step, pages of %d tokens\n",
          cygnet_version(), i.name, i.architecture, i.format, i.isa, i.threads, i.threads == 1 ? "" : "s", i.load_ms, i.ctx_tokens,
          i.ctx_tokens_model, i.window_tokens, i.n_layers_sliding, i.n_layers,
          mem_human(i.packed_bytes ? i.packed_bytes : i.weight_bytes, weights), mem_human(i.kv_bytes, cache), i.pool_full_tokens,
          i.pool_sliding_tokens, i.kv_type, mem_human(i.scratch_bytes, scratch), i.max_running, i.chunk_tokens, i.page_tokens);
}

int cmd_serve(const struct options *o) {
  int status = 0;
  if (!o->quiet && !o->verbose) log_set_level(LOG_INFO);
  struct cygnet *c = command_open(o, &status);
  if (!c) return status;
  if (!o->quiet) print_banner(c);
  struct cygnet_sampling sampling = {.temperature = 1};
  struct buf options;
  buf_init(&options, 0);
  opts_dump_json(&options_table, CMD_SERVE, o, &options);
  struct serve_options so = {.host = o->host,
                             .port = (int)o->port,
                             .api_key = o->api_key,
                             .model_name = o->served_name,
                             .grace_ms = o->grace_s > 0 ? (int)o->grace_s * 1000 : -1,
                             .sampling = &sampling,
                             .limits = {.body_bytes = (size_t)o->body_mib << 20},
                             .cors_origin = o->cors_origin,
                             .allowed_hosts = o->allowed_hosts,
                             .options_json = buf_cstr(&options),
                             .quiet = o->quiet};
  struct err e = {0};
  if (serve_run(c, &so, &e)) status = command_fail(&e);
  cygnet_close(c);
  buf_free(&options);
  return status;
}
