/* cmd_pull.c — fetch a model from a hub: a folder with configuration, tokenizer and safetensors, or one GGUF. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/mem.h"
#include "commands.h"
#include "pull.h"

enum { QUIET_S_MAX = 60, SHOWN_MAX = 60 };

static volatile sig_atomic_t interrupted;
static void on_interrupt(int sig) { (void)sig, interrupted = 1; }
static bool stopped(void) { return interrupted; }

struct pull {
  const struct options *o;
  struct hub_name name;
  struct hub hub;
  struct pull_list list;
  const struct pull_file **wanted; /* owned; into the list */
  size_t n;
  const struct pull_file *gguf; /* the one to give to -m; NULL: it is a folder */
  char *folder;                 /* owned */
  bool said;                    /* what went wrong was printed, above what there is */
};

/* ---- which files -------------------------------------------------------------------------------------------------------------------- */

static void want(struct pull *p, const struct pull_file *f) {
  p->wanted = xrealloc(p->wanted, (p->n + 1) * sizeof *p->wanted);
  p->wanted[p->n++] = f;
}

static const struct pull_file *find(const struct pull *p, const char *path) {
  for (size_t i = 0; i < p->list.n; i++)
    if (!strcmp(p->list.v[i].path, path)) return &p->list.v[i];
  return NULL;
}

/* A GGUF with the rest of its set. */
static int want_gguf(struct pull *p, const struct pull_file *f, struct err *e) {
  size_t stem;
  int number, count;
  p->gguf = f;
  if (!hub_is_part(f->path, &stem, &number, &count)) return want(p, f), 0;
  for (int i = 1; i <= count; i++) {
    char path[HUB_PATH_BYTES + 32];
    snprintf(path, sizeof path, "%.*s-%05d-of-%05d.gguf", (int)MIN(stem, (size_t)HUB_PATH_BYTES), f->path, i, count);
    const struct pull_file *part = find(p, path);
    if (!part) return err_set(e, ERR_NOT_FOUND, "%s: %s is one of %d parts, and part %d is not there", p->name.repo, f->path, count, i);
    if (i == 1) p->gguf = part;
    want(p, part);
  }
  return 0;
}

/* Of a folder's files those that describe the model or are it; weights under a second name ("consolidated") are left out. */
static bool is_of_folder(const char *path, bool has_model) {
  static const char *const ends[] = {".json", ".jinja", ".model"};
  if (strchr(path, '/')) return false;
  for (size_t i = 0; i < ARRAY_LEN(ends); i++)
    if (str_ends(str_c(path), ends[i])) return true;
  return str_ends(str_c(path), ".safetensors") && (!has_model || str_starts(str_c(path), "model"));
}

static void want_folder(struct pull *p) {
  bool has_model = false;
  for (size_t i = 0; i < p->list.n; i++) {
    struct str path = str_c(p->list.v[i].path);
    has_model = has_model || (str_starts(path, "model") && str_ends(path, ".safetensors"));
  }
  for (int weights = 0; weights < 2; weights++) /* what is small and says most comes first */
    for (size_t i = 0; i < p->list.n; i++)
      if (is_of_folder(p->list.v[i].path, has_model) && str_ends(str_c(p->list.v[i].path), ".safetensors") == weights)
        want(p, &p->list.v[i]);
}

static bool has_safetensors(const struct pull *p) {
  for (size_t i = 0; i < p->list.n; i++)
    if (is_of_folder(p->list.v[i].path, false) && str_ends(str_c(p->list.v[i].path), ".safetensors")) return true;
  return false;
}

static int choose(struct pull *p, struct err *e) {
  const struct pull_file *exact = find(p, p->name.file);
  if (!*p->name.file && find(p, "config.json") && has_safetensors(p)) return want_folder(p), 0;
  if (exact && !hub_is_gguf(exact->path)) return want(p, exact), 0;
  const char **paths = xcalloc(p->list.n + 1, sizeof *paths);
  for (size_t i = 0; i < p->list.n; i++) paths[i] = p->list.v[i].path;
  int i = hub_pick_gguf(paths, p->list.n, p->name.file, e);
  free(paths);
  if (i >= 0) return want_gguf(p, &p->list.v[i], e);
  err_prefix(e, "%s", p->name.repo);
  return -1;
}

/* What there is, when it is not clear what is wanted. */
static void show_list(const struct pull *p) {
  char name[200], size[32];
  size_t n = 0;
  for (int gguf = 1; gguf >= 0; gguf--)
    for (size_t i = 0; i < p->list.n; i++) {
      const struct pull_file *f = &p->list.v[i];
      if (hub_is_gguf(f->path) != gguf || n++ >= SHOWN_MAX) continue;
      fprintf(stderr, "  %10s  %s\n", mem_human((size_t)f->size, size), str_escape(str_c(f->path), name, sizeof name));
    }
  if (n > SHOWN_MAX) fprintf(stderr, "  and %zu more\n", n - SHOWN_MAX);
}

/* ---- where to ----------------------------------------------------------------------------------------------------------------------- */

static int make_folder(struct pull *p, struct err *e) {
  struct buf b;
  struct stat st;
  buf_init(&b, 0);
  int rc = p->o->out ? (buf_puts(&b, p->o->out), 0) : hub_folder(&b, &p->name, e);
  while (b.len > 1 && b.data[b.len - 1] == '/') b.data[--b.len] = 0;
  if (rc == 0 && b.len == 0) rc = err_set(e, ERR_BAD_INPUT, "--out: expected a folder");
  p->folder = buf_take(&b, NULL);
  if (rc) return rc;
  for (char *at = p->folder; at && *at; at = strchr(at, '/')) {
    at += strspn(at, "/");
    char *slash = strchr(at, '/');
    if (slash) *slash = 0;
    bool bad = *at && mkdir(p->folder, 0777) && errno != EEXIST;
    if (bad) err_set(e, ERR_IO, "%s: cannot be made: %s", p->folder, strerror(errno));
    if (slash) *slash = '/';
    if (bad) return -1;
  }
  if (stat(p->folder, &st) || !S_ISDIR(st.st_mode)) return err_set(e, ERR_BAD_INPUT, "%s: expected a folder, found a file", p->folder);
  return 0;
}

/* Sizes of what is missing against the disk. A file that differs stays until its successor is whole, so it counts as missing. */
static int check_space(const struct pull *p, uint64_t *total, struct err *e) {
  uint64_t missing = 0;
  struct statvfs v;
  char needed[32], found[32];
  *total = 0;
  for (size_t i = 0; i < p->n; i++) {
    bool whole;
    uint64_t left = p->wanted[i]->size - pull_here(p->folder, p->wanted[i], &whole);
    if (__builtin_add_overflow(missing, left, &missing) || __builtin_add_overflow(*total, p->wanted[i]->size, total))
      return err_set(e, ERR_BAD_FILE, "the hub's listing: sizes without measure");
  }
  if (statvfs(p->folder, &v)) return 0; /* then writing says it */
  uint64_t free_bytes = (uint64_t)v.f_bavail * v.f_frsize;
  if (missing <= free_bytes) return 0;
  return err_set(e, ERR_IO, "%s: %s are still to come, the disk has %s free: make room, or choose another place with --out", p->folder,
                 mem_human((size_t)missing, needed), mem_human((size_t)free_bytes, found));
}

/* ---- the command -------------------------------------------------------------------------------------------------------------------- */

static int fetch_all(struct pull *p, struct err *e) {
  struct pull_progress progress = {.n_files = p->n, .shown = !p->o->quiet && isatty(STDERR_FILENO)};
  if (make_folder(p, e) || check_space(p, &progress.total, e)) return -1;
  for (size_t i = 0; i < p->n; i++)
    if (pull_announce(p->folder, p->wanted[i], e)) return -1;
  int rc = 0;
  for (size_t i = 0; i < p->n && rc == 0; i++) {
    progress.number = i + 1;
    rc = pull_file(&p->hub, p->folder, p->wanted[i], &progress, e);
  }
  pull_progress_clear(&progress);
  return rc;
}

/* Words of a command as a shell reads them. */
static void put_word(struct buf *b, const char *word) {
  bool plain = *word != 0;
  for (const char *c = word; *c; c++)
    plain = plain && (strchr("/._-:@%+=,", *c) || (*c >= '0' && *c <= '9') || ((*c | 32) >= 'a' && (*c | 32) <= 'z'));
  buf_puts(b, plain ? " " : " '");
  for (const char *c = word; *c; c++)
    if (*c == '\'') buf_puts(b, "'\\''");
    else buf_putc(b, *c);
  if (!plain) buf_putc(b, '\'');
}

static void put_model(const struct pull *p, const char *file, struct buf *b) {
  struct buf word;
  buf_init(&word, 0);
  if (!p->o->out) hub_name_put(&word, &p->name, file);
  else buf_printf(&word, "%s%s%s", p->folder, *file ? "/" : "", file);
  put_word(b, buf_cstr(&word));
  buf_free(&word);
}

/* The part for pictures and sound: in the next command when it is here, else how to get it. */
static const struct pull_file *projector(const struct pull *p, bool *here) {
  const struct pull_file *any = NULL;
  for (size_t i = 0; i < p->list.n; i++) {
    const struct pull_file *f = &p->list.v[i];
    if (!hub_is_projector(f->path)) continue;
    pull_here(p->folder, f, here);
    if (*here) return f;
    if (!any) any = f;
  }
  *here = false;
  return any;
}

static void say_done(const struct pull *p) {
  const char *file = p->n == 1 ? p->wanted[0]->path : "";
  bool here = false, is_model = p->gguf ? !hub_is_projector(p->gguf->path) : !*p->name.file;
  struct buf b;
  buf_init(&b, 0);
  if (p->gguf) file = p->gguf->path;
  printf("%s%s%s\n", p->folder, p->gguf || !is_model ? "/" : "", p->gguf || !is_model ? file : "");
  fflush(stdout);
  if (p->o->quiet || !is_model) return;
  const struct pull_file *media = p->gguf ? projector(p, &here) : NULL;
  buf_puts(&b, "next: cygnet chat -m");
  put_model(p, p->gguf ? file : "", &b);
  if (media && here) {
    buf_puts(&b, " --mmproj");
    put_model(p, media->path, &b);
  } else if (media) {
    struct buf name;
    buf_init(&name, 0);
    hub_name_put(&name, &p->name, media->path);
    buf_puts(&b, "\nits part for pictures and sound: cygnet pull");
    put_word(&b, buf_cstr(&name));
    if (p->o->out) {
      buf_puts(&b, " --out");
      put_word(&b, p->folder);
    }
    buf_free(&name);
  }
  fprintf(stderr, "%s\n", buf_cstr(&b));
  buf_free(&b);
}

/* How to go on after Ctrl-C. */
static void say_stopped(const struct pull *p) {
  struct buf b;
  buf_init(&b, 0);
  put_word(&b, p->o->repo);
  if (p->o->out) {
    buf_puts(&b, " --out");
    put_word(&b, p->o->out);
  }
  fprintf(stderr, "cygnet: stopped; the same command goes on: cygnet pull%s\n", buf_cstr(&b));
  buf_free(&b);
}

static int pull(struct pull *p, struct err *e) {
  if (!p->o->repo) return err_set(e, ERR_BAD_INPUT, "no repository given: cygnet pull ORG/NAME, ORG/NAME:FILE.gguf or ORG/NAME:Q4_K_M");
  if (hub_name_parse(&p->name, p->o->repo, e) || hub_open(&p->hub, &p->name, e)) return -1;
  p->hub.quiet = p->o->quiet;
  p->hub.retries = (int)p->o->retries;
  p->hub.quiet_s = (int)MIN(p->o->timeout_s, QUIET_S_MAX);
  p->hub.stopped = stopped;
  if (pull_list(&p->hub, &p->list, e)) return -1;
  if (p->list.n_odd && !p->o->quiet)
    fprintf(stderr, "cygnet: %s: %zu file%s left out: not plain paths\n", p->name.repo, p->list.n_odd, p->list.n_odd == 1 ? "" : "s");
  if (choose(p, e)) {
    command_fail(e);
    show_list(p);
    p->said = true;
    return -1;
  }
  return fetch_all(p, e);
}

int cmd_pull(const struct options *o) {
  struct pull p = {.o = o};
  struct err e = {0};
  struct sigaction sa = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND}; /* a second one ends it at once */
  sigaction(SIGINT, &sa, NULL);
  sigaction(SIGTERM, &sa, NULL);
  curl_global_init(CURL_GLOBAL_DEFAULT);
  int rc = pull(&p, &e), status = 0;
  if (rc == 0) say_done(&p);
  else if (e.code == ERR_CANCELLED) say_stopped(&p), status = 1;
  else if (p.said) status = err_exit_status(e.code);
  else status = command_fail(&e);
  pull_list_free(&p.list);
  hub_close(&p.hub);
  free(p.wanted);
  free(p.folder);
  return status;
}
