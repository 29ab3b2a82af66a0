/* command_remote.c — commands that ask a server instead of running a model: eval --url, bench --serve. */
#include "commands.h"
#include "eval/url.h"

bool command_given(bool given, const char *name) { return given && !opts_in_environment(&options_table, name); }

static int refuse_engine_options(const struct options *o, const char *option, struct err *e) {
  const struct {
    bool given;
    const char *name;
  } engine[] = {{o->threads, "threads"},
                {o->ctx, "ctx"},
                {o->kv_type, "kv-type"},
                {o->isa, "isa"},
                {o->numa, "numa"},
                {o->shortlist, "shortlist"},
                {o->attn, "attn"},
                {o->backend, "backend"},
                {o->device_id, "device-id"},
                {o->chunk, "chunk"},
                {o->page_size, "page-size"},
                {o->max_running, "max-running-requests"},
                {o->swa_ratio > 0, "swa-full-tokens-ratio"},
                {o->mem, "mem"},
                {o->mem_fraction > 0, "mem-fraction-static"},
                {o->quant, "quant"},
                {o->chat_template, "chat-template"},
                {o->draft, "draft"},
                {o->draft_model != NULL, "draft-model"},
                {o->mmproj != NULL, "mmproj"},
                {o->no_media, "disable-media"},
                {o->media_mem, "media-mem"},
                {o->media_pixels, "media-pixels"},
                {o->no_prefix_cache, "disable-radix-cache"},
                {o->no_graph, "no-graph"}};
  for (size_t i = 0; i < ARRAY_LEN(engine); i++)
    if (command_given(engine[i].given, engine[i].name))
      return err_set(e, ERR_BAD_INPUT, "--%s is for a model in this process (-m); with %s the server's own counts", engine[i].name, option);
  return 0;
}

int command_remote(const struct options *o, const char *option, const char *address, struct url *u, struct err *e) {
  if (refuse_engine_options(o, option, e) || url_init(u, option, address, e)) return -1;
  u->key = o->api_key;
  u->timeout_s = (int)o->timeout_s;
  return 0;
}
