/* options.h — every option of every command, in one table.
 *
 * The table feeds the command line, --help, the environment (CYGNET_THREADS, ...), --config FILE and /server_info.
 */
#ifndef CYGNET_OPTIONS_H
#define CYGNET_OPTIONS_H

#include "base/opts.h"
#include "cygnet.h"

enum command {
  CMD_SERVE = 1 << 0,
  CMD_CHAT = 1 << 1,
  CMD_COMPLETE = 1 << 2,
  CMD_LOGITS = 1 << 3,
  CMD_TOKENIZE = 1 << 4,
  CMD_RENDER = 1 << 5,
  CMD_BENCH = 1 << 6,
  CMD_INSPECT = 1 << 7,
  CMD_PARSE = 1 << 8,
  CMD_PREPROCESS = 1 << 9,
  CMD_EVAL = 1 << 10,
  CMD_PULL = 1 << 11,
  CMD_RUNS = CMD_SERVE | CMD_CHAT | CMD_COMPLETE | CMD_LOGITS | CMD_BENCH | CMD_EVAL, /* commands that run a model */
  CMD_SAMPLES = CMD_CHAT | CMD_COMPLETE,
  CMD_SHOWS = CMD_CHAT | CMD_COMPLETE | CMD_LOGITS | CMD_PREPROCESS, /* commands that take pictures and sound from files */
  CMD_ALL = 0xfff,
};

struct options {
  /* model */
  const char *model;
  int chat_template, quant; /* choices */
  /* engine */
  const char *draft_model, *mmproj;
  int64_t device_id, threads, ctx, page_size, chunk, max_running, max_queued, draft;
  int kv_type, isa, numa, shortlist, attn, backend; /* choices, indices into the table's lists */
  double swa_ratio, mem_fraction;
  size_t mem, media_mem;
  int64_t media_pixels;
  bool no_prefix_cache, no_graph, no_media;
  bool take_memory; /* no option: serve does */
  /* sampling; -1 = the command's own default */
  int64_t seed, top_k, min_tokens;
  double temp, top_p, min_p, frequency_penalty, presence_penalty, repetition_penalty;
  struct opt_strings stop;
  bool ignore_eos;
  const char *json_schema, *grammar, *regex; /* what the answer must be */
  bool think;
  /* complete, chat, logits */
  const char *prompt, *file, *ids, *system, *out;
  struct opt_strings images, sounds; /* preprocess, too */
  int64_t n, media_tokens;
  bool json, special, hidden;
  bool crops; /* preprocess */
  /* bench */
  const char *depths, *batches;
  int64_t bench_prompt, bench_gen, repeat;
  /* bench --serve; 0, -1 or NULL: not given */
  const char *serve_url, *rate, *dataset, *image_size, *csv, *svg;
  int64_t concurrency, max_concurrency, requests, warmup, load_seed, input_len, output_len, groups, per_group, system_len, turns,
      image_count;
  double range_ratio, slo_ttft, slo_tpot, slo_e2e;
  int workload, load_api, image_format; /* choices */
  bool load_ignore_eos, flush_cache;
  /* eval */
  const char *suite, *url, *data, *log;
  int64_t limit, parallel, samples, shots, window, stride, timeout_s, retries;
  double min, max;
  int eval_api; /* 0: the suite's own, 1: completion, 2: chat */
  /* pull */
  const char *repo;
  /* serve */
  const char *host, *api_key, *api_key_file, *admin_key, *tls_cert, *tls_key, *served_name, *cors_origin, *allowed_hosts;
  int64_t port, grace_s, body_mib, connections, idle_s, prep_threads, step_ms;
  const char *media_allow, *media_path;
  int64_t media_items, media_timeout_s;
  size_t media_item_bytes, media_total_bytes;
  bool log_requests, media_urls;
  /* everywhere */
  bool verbose, quiet, help;
  const char *config;
};

extern const struct opts_table options_table;

/* The engine's part of the options. Strings are borrowed from o. */
void options_engine(const struct options *o, struct cygnet_options *out);
/* The sampling part, with the command's defaults where nothing was given. */
void options_sampling(const struct options *o, enum command c, struct cygnet_sampling *out);

#endif
