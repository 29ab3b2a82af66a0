/* cmd_serve.c — the server: banner with everything that was decided at start, then HTTP until a signal. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "commands.h"
#include "server/access.h"
#include "server/http_tls.h"
#include "server/media.h"
#include "server/serve.h"

enum { STEP_MS = 200, QUEUED = 1024 /* cygnet.h: max_queued */, LOG_LINES = 100 /* of the access log in a second */ };

static void print_prefix_cache(const struct cygnet_info *i) {
  if (!i->prefix_cache) fprintf(stderr, "  prefix cache off: every prompt is computed from its first token\n");
  else if (i->pool_sliding_tokens == 0) fprintf(stderr, "  prefix cache up to %d tokens, of that memory\n", i->pool_full_tokens);
  else
    fprintf(stderr, "  prefix cache up to %d tokens, of that memory; room to go on from %d places when all run\n", i->pool_full_tokens,
            i->resume_points);
}

static void print_banner(const struct cygnet *c, const struct options *o) {
  struct cygnet_info i;
  char weights[32], cache[32], scratch[32], together[32];
  cygnet_info(c, &i);
  fprintf(stderr,
          "cygnet %s: %s (%s, %s)\n"
          "  kernels %s, %d thread%s; loaded in %.0f ms\n"
          "  context %d tokens of the model's %d; window %d tokens in %d of %d layers\n"
          "  memory: weights %s, cache %s (%d tokens full, %d sliding, %s), scratch %s\n"
          "  together %s, taken now\n",
          cygnet_version(), i.name, i.architecture, i.format, i.isa, i.threads, i.threads == 1 ? "" : "s", i.load_ms, i.ctx_tokens,
          i.ctx_tokens_model, i.window_tokens, i.n_layers_sliding, i.n_layers,
          mem_human(i.packed_bytes ? i.packed_bytes : i.weight_bytes, weights), mem_human(i.kv_bytes, cache), i.pool_full_tokens,
          i.pool_sliding_tokens, i.kv_type, mem_human(i.scratch_bytes, scratch),
          mem_human((i.packed_bytes ? i.packed_bytes : i.weight_bytes) + i.kv_bytes + i.scratch_bytes, together));
  print_prefix_cache(&i);
  if (i.vision || i.audio)
    fprintf(stderr, "  takes %s%s%s; memory for them %s, %d rows%s\n", i.vision ? "pictures" : "", i.vision && i.audio ? " and " : "",
            i.audio ? "sound" : "", mem_human(i.media_bytes, scratch), i.media_rows,
            o->media_urls || (o->media_allow && *o->media_allow) ? "; fetches them from the web" : "");
  fprintf(stderr, "  at most %d requests at the same time and %lld waiting, %d prompt tokens a step, pages of %d tokens\n", i.max_running,
          (long long)(o->max_queued ? o->max_queued : QUEUED), i.chunk_tokens, i.page_tokens);
}

/* What can be wrong with keys and certificates is said before the model is loaded, which takes its time. */
static int check_doors(const struct options *o, const struct http_tls *tls, struct access *access, struct err *e) {
  if (access_open(access, o->api_key, o->api_key_file, o->admin_key, e)) return -1;
  if (tls->certificate_file || tls->key_file) {
    struct http_tls_context *t = http_tls_open(tls, true, e);
    if (!t) return -1;
    http_tls_close(t);
  }
  if (!serve_is_loopback(o->host) && access->n_keys == 0)
    log_line(LOG_WARN, "server", "everybody who reaches this machine can use this server: --api-key changes that");
  return 0;
}

static int serve(const struct options *o, const struct http_tls *tls, const struct access *access) {
  int status = 0;
  struct options own = *o;
  if (own.step_ms == 0) own.step_ms = STEP_MS;
  own.take_memory = true;
  struct cygnet *c = command_open(&own, &status);
  if (!c) return status;
  if (!o->quiet) print_banner(c, o);
  bool log_requests = o->log_requests && !o->quiet;
  struct cygnet_sampling sampling = {.temperature = 1};
  struct buf options;
  buf_init(&options, 0);
  opts_dump_json(&options_table, CMD_SERVE, o, &options);
  const struct media_limits media = {.items = (int)o->media_items,
                                     .item_bytes = o->media_item_bytes,
                                     .total_bytes = o->media_total_bytes,
                                     .urls = o->media_urls,
                                     .allow = o->media_allow,
                                     .path = o->media_path,
                                     .timeout_ms = (int)o->media_timeout_s * 1000};
  struct serve_options so = {
      .host = o->host,
      .port = (int)o->port,
      .access = access,
      .tls = *tls,
      .prep_threads = (int)o->prep_threads,
      .log_requests = log_requests,
      .model_name = o->served_name,
      .grace_ms = o->grace_s > 0 ? (int)o->grace_s * 1000 : -1,
      .sampling = &sampling,
      .limits = {.body_bytes = (size_t)o->body_mib << 20,
                 .bodies_bytes = MAX((size_t)256, 2 * (size_t)o->body_mib) << 20,
                 .connections = (int)o->connections,
                 .idle_ms = (int)o->idle_s * 1000,
                 .log_lines = log_requests ? LOG_LINES : 0},
      .media = &media,
      .cors_origin = o->cors_origin,
      .allowed_hosts = o->allowed_hosts,
      .options_json = buf_cstr(&options),
      .quiet = o->quiet,
  };
  struct err e = {0};
  if (serve_run(c, &so, &e)) status = command_fail(&e);
  cygnet_close(c);
  buf_free(&options);
  return status;
}

int cmd_serve(const struct options *o) {
  struct err e = {0};
  struct access access = {0};
  const struct http_tls tls = {.certificate_file = o->tls_cert, .key_file = o->tls_key};
  if (!o->quiet && !o->verbose) log_set_level(LOG_INFO);
  int status = check_doors(o, &tls, &access, &e) ? command_fail(&e) : serve(o, &tls, &access);
  access_close(&access);
  return status;
}
