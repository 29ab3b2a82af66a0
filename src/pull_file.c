/* pull_file.c — one file: a part that grows, over several tries and runs, until it is whole and checked. */
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "pull.h"

enum { READ_BYTES = 1 << 20, DIGESTS = 2 };

/* ---- the progress line -------------------------------------------------------------------------------------------------------------- */

static void put_time(char *out, size_t n, double seconds) {
  int64_t s = (int64_t)(seconds + 0.5);
  if (s >= 3600) snprintf(out, n, "%lld:%02d:%02d", (long long)(s / 3600), (int)(s / 60 % 60), (int)(s % 60));
  else snprintf(out, n, "%d:%02d", (int)(s / 60), (int)(s % 60));
}

static void measure_rate(struct pull_progress *p) {
  int64_t now = clock_ns();
  double seconds = (double)(now - p->mark_ns) / 1e9;
  if (!p->mark_ns) seconds = 0;
  else if (seconds < 0.5) return;
  if (seconds > 0) {
    double rate = (double)(p->came - p->mark) / seconds;
    p->rate = p->rate > 0 ? 0.8 * p->rate + 0.2 * rate : rate;
  }
  p->mark = p->came;
  p->mark_ns = now;
}

void pull_progress_draw(struct pull_progress *p, bool at_once) {
  enum { BAR_MAX = 20 };
  measure_rate(p);
  if (!p->shown || (!at_once && clock_ns() - p->drawn_ns < 100000000)) return;
  p->drawn_ns = clock_ns();
  struct winsize w = {0};
  int columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 20 ? w.ws_col : 80;
  int n_bar = columns >= 110 ? BAR_MAX : 6;
  double share = p->total ? (double)p->done / (double)p->total : 1;
  char done[32], total[32], rate[32], left[32], bar[BAR_MAX + 1] = "", head[48], tail[200], name[200];
  for (int i = 0; i < n_bar; i++) bar[i] = i < (int)(share * n_bar) ? '#' : '.';
  int n_head = snprintf(head, sizeof head, "%zu/%zu ", p->number, p->n_files);
  int n_tail = snprintf(tail, sizeof tail, "  [%s] %3d %%  %s of %s", bar, (int)(share * 100), mem_human((size_t)p->done, done),
                        mem_human((size_t)p->total, total));
  if (p->rate >= 1) {
    put_time(left, sizeof left, (double)(p->total - MIN(p->done, p->total)) / p->rate);
    n_tail += snprintf(tail + n_tail, sizeof tail - (size_t)n_tail, "  %s/s  %s left", mem_human((size_t)p->rate, rate), left);
  }
  int room = MIN(MAX(columns - 1 - n_head - n_tail, 6), (int)sizeof name - 1);
  size_t n = strlen(p->name), cut = n > (size_t)room ? n - (size_t)room : 0; /* the end of a name tells more */
  str_escape(str_of(p->name + cut, n - cut), name, (size_t)room + 1);
  fprintf(stderr, "\r\033[K%s%s%.*s", head, name, MAX(columns - 1 - n_head - (int)strlen(name), 0), tail);
}

void pull_progress_clear(const struct pull_progress *p) {
  if (p->shown && p->drawn_ns) fputs("\r\033[K", stderr);
}

/* ---- paths -------------------------------------------------------------------------------------------------------------------------- */

static char *path_of(const char *folder, const struct pull_file *f, const char *suffix) {
  struct buf b;
  buf_init(&b, 0);
  buf_printf(&b, "%s/%s%s", folder, f->path, suffix);
  return buf_take(&b, NULL);
}

static int64_t size_of(const char *path) {
  struct stat st;
  return lstat(path, &st) == 0 && !S_ISDIR(st.st_mode) ? (stat(path, &st) == 0 ? (int64_t)st.st_size : 0) : -1;
}

uint64_t pull_here(const char *folder, const struct pull_file *f, bool *whole) {
  char *final = path_of(folder, f, ""), *part = path_of(folder, f, ".part");
  int64_t n = size_of(final), n_part = size_of(part);
  *whole = n >= 0 && (uint64_t)n == f->size;
  free(final);
  free(part);
  return *whole ? f->size : n_part > 0 && (uint64_t)n_part <= f->size ? (uint64_t)n_part : 0;
}

/* The folders in which the file lies, below `folder`. */
static int make_folders(const char *path, size_t n_folder, struct err *e) {
  char *p = xstrdup(path);
  int rc = 0;
  for (char *at = p + n_folder + 1; rc == 0 && (at = strchr(at, '/')) != NULL; at++) {
    *at = 0;
    if (mkdir(p, 0777) && errno != EEXIST) rc = err_set(e, ERR_IO, "%s: cannot be made: %s", p, strerror(errno));
    *at = '/';
  }
  free(p);
  return rc;
}

int pull_announce(const char *folder, const struct pull_file *f, struct err *e) {
  char *final = path_of(folder, f, ""), *part = path_of(folder, f, ".part");
  int rc = make_folders(final, strlen(folder), e);
  if (rc == 0 && access(final, F_OK)) {
    int fd = open(part, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) rc = err_set(e, ERR_IO, "%s: cannot be written: %s", part, strerror(errno));
    else close(fd);
  }
  free(final);
  free(part);
  return rc;
}

/* ---- digests ------------------------------------------------------------------------------------------------------------------------ */

struct digests { /* both: which of them the hub means it may only say with the file itself */
  EVP_MD_CTX *ctx[DIGESTS];
};
static const struct {
  enum pull_digest kind;
  const char *name;
  const EVP_MD *(*md)(void);
} digest_kinds[DIGESTS] = {{PULL_SHA256, "SHA-256", EVP_sha256}, {PULL_GIT, "git SHA-1", EVP_sha1}};

/* From the first byte on. A file whose SHA-256 is known needs no other. */
static void digests_begin(struct digests *d, const struct pull_file *f) {
  for (int i = 0; i < DIGESTS; i++) {
    if (digest_kinds[i].kind == PULL_GIT && f->kind == PULL_SHA256) continue;
    if (!d->ctx[i]) d->ctx[i] = EVP_MD_CTX_new();
    CHECK(d->ctx[i] && EVP_DigestInit_ex(d->ctx[i], digest_kinds[i].md(), NULL) == 1);
    if (digest_kinds[i].kind != PULL_GIT) continue;
    char head[40];
    int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)f->size);
    CHECK(EVP_DigestUpdate(d->ctx[i], head, (size_t)n + 1) == 1);
  }
}

static void digests_add(struct digests *d, const void *p, size_t n) {
  for (int i = 0; i < DIGESTS; i++)
    if (d->ctx[i]) CHECK(EVP_DigestUpdate(d->ctx[i], p, n) == 1);
}

/* "": that one was not computed. Once. */
static void digests_end(struct digests *d, enum pull_digest kind, char hex[65]) {
  hex[0] = 0;
  for (int i = 0; i < DIGESTS; i++) {
    unsigned char v[EVP_MAX_MD_SIZE];
    unsigned int n = 0;
    if (digest_kinds[i].kind != kind || !d->ctx[i]) continue;
    CHECK(EVP_DigestFinal_ex(d->ctx[i], v, &n) == 1 && n <= 32);
    for (unsigned int k = 0; k < n; k++) snprintf(hex + 2 * k, 3, "%02x", v[k]);
  }
}

static void digests_free(struct digests *d) {
  for (int i = 0; i < DIGESTS; i++) EVP_MD_CTX_free(d->ctx[i]);
}

static const char *digest_name(enum pull_digest kind) {
  for (int i = 0; i < DIGESTS; i++)
    if (digest_kinds[i].kind == kind) return digest_kinds[i].name;
  return "none";
}

/* ---- one file on its way ------------------------------------------------------------------------------------------------------------ */

struct coming {
  struct hub *h;
  struct pull_file f; /* path borrowed; its digest may become known with the answer */
  struct pull_progress *progress;
  char *final, *part, *note;  /* owned */
  char etag[PULL_ETAG_BYTES]; /* of the version that the part is of */
  int fd;                     /* of the part, locked */
  uint64_t have;              /* bytes in the part, all of them in the digests */
  uint64_t counted;           /* of which the progress line knows */
  struct digests digests;
};

static void say(const struct coming *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void say(const struct coming *c, const char *fmt, ...) {
  va_list args;
  if (c->h->quiet) return;
  pull_progress_clear(c->progress);
  va_start(args, fmt);
  vfprintf(stderr, fmt, args);
  va_end(args);
  fputc('\n', stderr);
}

/* The progress line follows what is in the part. */
static void count(struct coming *c, bool from_network) {
  if (from_network) c->progress->came += c->have - c->counted;
  c->progress->done += c->have - c->counted; /* wraps back when it began anew */
  c->counted = c->have;
  pull_progress_draw(c->progress, false);
}

/* Every byte of fd into the digests; how many, or -1 and *e. */
static int64_t digest_file(struct coming *c, int fd, struct err *e) {
  unsigned char *piece = xmalloc(READ_BYTES);
  int64_t n = 0;
  ssize_t got = 0;
  digests_begin(&c->digests, &c->f);
  while (!c->h->stopped() && (got = pread(fd, piece, READ_BYTES, (off_t)n)) > 0) {
    digests_add(&c->digests, piece, (size_t)got);
    n += got;
  }
  free(piece);
  if (got < 0) return err_set(e, ERR_IO, "%s: cannot be read: %s", c->part, strerror(errno));
  if (c->h->stopped()) return err_set(e, ERR_CANCELLED, "stopped");
  return n;
}

static int begin_anew(struct coming *c, struct err *e) {
  if (ftruncate(c->fd, 0)) return err_set(e, ERR_IO, "%s: cannot be cut: %s", c->part, strerror(errno));
  c->have = 0;
  count(c, false);
  digests_begin(&c->digests, &c->f);
  return 0;
}

/* FILE.part.etag: the digest on the first line, the ETag on the second. */
static void write_note(const struct coming *c) {
  FILE *to = fopen(c->note, "we");
  if (!to) return; /* then a later run begins anew */
  fprintf(to, "%s\n%s\n", c->f.kind == PULL_UNKNOWN ? "-" : c->f.digest, c->etag);
  fclose(to);
}

/* Is the part of the version that the hub has now? Sets c->etag. */
static bool read_note(struct coming *c) {
  char digest[80] = "", etag[PULL_ETAG_BYTES + 2] = "";
  FILE *from = fopen(c->note, "re");
  if (!from) return false;
  bool read = fgets(digest, sizeof digest, from) != NULL;
  if (!fgets(etag, sizeof etag, from)) etag[0] = 0;
  fclose(from);
  digest[strcspn(digest, "\n")] = 0;
  etag[strcspn(etag, "\n")] = 0;
  snprintf(c->etag, sizeof c->etag, "%.*s", PULL_ETAG_BYTES - 1, etag);
  if (c->f.kind == PULL_UNKNOWN) return read && *c->etag; /* the ETag alone says so, when the hub is asked */
  return read && !strcmp(digest, c->f.digest);
}

static int open_part(struct coming *c, struct err *e) {
  c->fd = open(c->part, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (c->fd < 0) return err_set(e, ERR_IO, "%s: cannot be written: %s", c->part, strerror(errno));
  if (flock(c->fd, LOCK_EX | LOCK_NB)) return err_set(e, ERR_BUSY, "%s: another 'cygnet pull' is writing it", c->part);
  struct stat opened, named;
  bool same = fstat(c->fd, &opened) == 0 && stat(c->part, &named) == 0 && opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
  if (!same || !S_ISREG(opened.st_mode))
    return err_set(e, ERR_BUSY, "%s: another 'cygnet pull' has just moved it, or it is no file", c->part);
  int64_t n = (int64_t)opened.st_size;
  if (n == 0) return digests_begin(&c->digests, &c->f), 0;
  if (!read_note(c) || (uint64_t)n > c->f.size) {
    say(c, "%s: what lies in %s is of another version: beginning anew", c->f.path, c->part);
    c->etag[0] = 0;
    return begin_anew(c, e);
  }
  n = digest_file(c, c->fd, e);
  if (n < 0) return -1;
  c->have = (uint64_t)n;
  char human[32];
  say(c, "%s: going on after %s", c->f.path, mem_human((size_t)c->have, human));
  return 0;
}

/* "bytes 100-199/200" */
static bool range_fits(const struct coming *c, const char *range) {
  unsigned long long from, to, all;
  return sscanf(range, "bytes %llu-%llu/%llu", &from, &to, &all) == 3 && from == c->have && to + 1 == c->f.size && all == c->f.size;
}

static int part_begin(void *ctx, const struct pull_head *head, struct err *e) {
  struct coming *c = ctx;
  size_t n = strlen(head->linked);
  if (n == 64 && strspn(head->linked, "0123456789abcdef") == n) {
    if (c->f.kind == PULL_SHA256 && strcmp(c->f.digest, head->linked))
      return err_set(e, ERR_BAD_FILE, "%s: the repository changes just now: its listing and the file have different digests; pull again",
                     c->f.path);
    memcpy(c->f.digest, head->linked, n + 1); /* a git SHA-1 of the listing was that of a pointer to the file */
    c->f.kind = PULL_SHA256;
  }
  if (head->status == 206 && !range_fits(c, head->range))
    return err_set(e, ERR_IO, "%s: asked for bytes %llu to %llu, got \"%.60s\"", c->f.path, (unsigned long long)c->have,
                   (unsigned long long)c->f.size - 1, head->range);
  if (head->status == 200 && c->have) {
    say(c, "%s: the hub sends it from its beginning", c->f.path);
    if (begin_anew(c, e)) return -1;
  }
  snprintf(c->etag, sizeof c->etag, "%s", head->etag);
  write_note(c);
  return 0;
}

static int part_take(void *ctx, const char *p, size_t n, struct err *e) {
  struct coming *c = ctx;
  if (n > c->f.size - c->have)
    return err_set(e, ERR_BAD_FILE, "%s: the listing says %llu bytes, more come", c->f.path, (unsigned long long)c->f.size);
  for (size_t done = 0; done < n;) {
    ssize_t wrote = pwrite(c->fd, p + done, n - done, (off_t)(c->have + done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      int why = wrote < 0 ? errno : ENOSPC;
      if (ftruncate(c->fd, (off_t)c->have)) {} /* whole pieces alone are in the digests; a longer part would be refused */
      return err_set(e, ERR_IO, "%s: cannot be written: %s", c->part, strerror(why));
    }
    done += (size_t)wrote;
  }
  digests_add(&c->digests, p, n);
  c->have += n;
  count(c, true);
  return 0;
}

/* Until all bytes are here. */
static int download(struct coming *c, struct err *e) {
  const struct pull_sink sink = {.begin = part_begin, .take = part_take, .ctx = c};
  struct buf url;
  int rc = 0;
  buf_init(&url, 0);
  buf_printf(&url, "%s/%s/resolve/", c->h->endpoint, c->h->name->repo);
  hub_encode(&url, c->h->name->revision, false);
  buf_putc(&url, '/');
  hub_encode(&url, c->f.path, true);
  for (int n = 1; rc == 0 && c->have < c->f.size; n++) {
    char range[40];
    uint64_t had = c->have;
    int pause;
    if (had && c->f.kind == PULL_UNKNOWN && !*c->etag) { /* nothing would tell two versions apart */
      if ((rc = begin_anew(c, e)) != 0) break;
      had = 0;
    }
    snprintf(range, sizeof range, "%llu-", (unsigned long long)had);
    int went = pull_get(c->h, buf_cstr(&url), had ? range : NULL, c->etag, &sink, &pause, e);
    if (went >= 0 && c->have == c->f.size) break;
    if (c->have > had) n = 1;
    if (went == 1) err_set(e, ERR_IO, "%s: %llu of %llu bytes came", c->f.path, (unsigned long long)c->have, (unsigned long long)c->f.size);
    if (went < 0 || n > c->h->retries) rc = -1;
    else {
      pull_progress_clear(c->progress);
      if (!pull_pause(c->h, n, pause, e)) rc = err_set(e, ERR_CANCELLED, "stopped");
      else *e = (struct err){0};
    }
  }
  buf_free(&url);
  return rc;
}

/* Move a file to its name with a suffix that is free; says so. */
static int keep_as(const struct coming *c, const char *from, const char *suffix, const char *why, struct err *e) {
  struct buf b;
  buf_init(&b, 0);
  for (int i = 0; i == 0 || access(buf_cstr(&b), F_OK) == 0; i++) {
    buf_clear(&b);
    buf_printf(&b, "%s%s", c->final, suffix);
    if (i) buf_printf(&b, "%d", i + 1);
  }
  int rc = rename(from, buf_cstr(&b)) ? err_set(e, ERR_IO, "%s: cannot become %s: %s", from, buf_cstr(&b), strerror(errno)) : 0;
  if (rc == 0 && why) say(c, "%s: %s, kept as %s", c->f.path, why, buf_cstr(&b));
  buf_free(&b);
  return rc;
}

/* All bytes are here: right ones? Then the part gets its name. */
static int finish(struct coming *c, struct err *e) {
  char hex[65], human[32];
  digests_end(&c->digests, c->f.kind, hex);
  if (c->f.kind != PULL_UNKNOWN && strcmp(hex, c->f.digest)) {
    if (keep_as(c, c->part, ".wrong", NULL, e)) return -1;
    unlink(c->note);
    return err_set(e, ERR_BAD_FILE, "%s: expected %s %s, found %s; it is kept as %s.wrong, the same command fetches it anew", c->f.path,
                   digest_name(c->f.kind), c->f.digest, hex, c->final);
  }
  if (fsync(c->fd)) return err_set(e, ERR_IO, "%s: cannot be written: %s", c->part, strerror(errno));
  if (access(c->final, F_OK) == 0 && keep_as(c, c->final, ".old", "the one that was here differs", e)) return -1;
  if (rename(c->part, c->final)) return err_set(e, ERR_IO, "%s: cannot become %s: %s", c->part, c->final, strerror(errno));
  unlink(c->note);
  say(c, "%s  %s, %s", c->f.path, mem_human((size_t)c->f.size, human),
      c->f.kind == PULL_UNKNOWN  ? "no digest to check it by"
      : c->f.kind == PULL_SHA256 ? "SHA-256 is right"
                                 : "git SHA-1 is right");
  return 0;
}

/* 1: the file under its name is the hub's; 0: it is not, or there is none. */
static int check_final(struct coming *c, struct err *e) {
  char hex[65];
  int fd = open(c->final, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  int64_t n = size_of(c->final) == (int64_t)c->f.size ? digest_file(c, fd, e) : 0;
  close(fd);
  if (n < 0) return -1;
  if ((uint64_t)n != c->f.size) return 0;
  digests_end(&c->digests, c->f.kind, hex);
  if (c->f.kind != PULL_UNKNOWN && strcmp(hex, c->f.digest)) return 0;
  c->have = c->f.size;
  count(c, false);
  say(c, "%s  is here already%s", c->f.path, c->f.kind == PULL_UNKNOWN ? ", no digest to check it by" : " and right");
  return 1;
}

int pull_file(struct hub *h, const char *folder, const struct pull_file *f, struct pull_progress *p, struct err *e) {
  struct coming c = {.h = h, .f = *f, .progress = p, .fd = -1};
  c.final = path_of(folder, f, "");
  c.part = path_of(folder, f, ".part");
  c.note = path_of(folder, f, ".part.etag");
  p->name = f->path;
  pull_progress_draw(p, true);
  int rc = make_folders(c.final, strlen(folder), e);
  int here = rc == 0 ? check_final(&c, e) : rc;
  if (here == 0) {
    rc = open_part(&c, e);
    count(&c, false);
    if (rc == 0) rc = download(&c, e);
    if (rc == 0) rc = finish(&c, e);
  } else rc = MIN(here, 0);
  if (rc && c.have && c.have < f->size && e->code != ERR_BUSY) {
    char have[32], size[32];
    pull_progress_clear(p);
    say(&c, "%s: %s of %s are kept in %s", f->path, mem_human((size_t)c.have, have), mem_human((size_t)f->size, size), c.part);
  }
  if (c.fd >= 0) close(c.fd);
  digests_free(&c.digests);
  free(c.final);
  free(c.part);
  free(c.note);
  return rc;
}
