/* hub.c — names, and what was pulled. */
#include "hub.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

enum { WALK_DEPTH_MAX = 4, WALK_FILES_MAX = 4096 };

/* ---- names -------------------------------------------------------------------------------------------------------------------------- */

static bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
}

/* One or more ordinary names with slashes between. */
static bool is_words(struct str s, int *n_slashes) {
  *n_slashes = 0;
  for (size_t i = 0; i < s.n; i++) {
    bool first = i == 0 || s.p[i - 1] == '/';
    if (s.p[i] == '/' ? first : !is_name_byte(s.p[i]) || (first && (s.p[i] == '.' || s.p[i] == '-'))) return false;
    if (s.p[i] == '.' && i + 1 < s.n && s.p[i + 1] == '.') return false;
    *n_slashes += s.p[i] == '/';
  }
  return s.n > 0 && s.p[s.n - 1] != '/';
}

static bool take_words(struct str s, bool pair, char *out, size_t out_bytes) {
  int n_slashes;
  if (!is_words(s, &n_slashes) || (pair && n_slashes != 1) || s.n >= out_bytes) return false;
  memcpy(out, s.p, s.n);
  out[s.n] = 0;
  return true;
}

int hub_name_parse(struct hub_name *n, const char *text, struct err *e) {
  char shown[120];
  size_t repo = strcspn(text, ":@");
  const char *at = text[repo] == '@' ? text + repo + 1 : NULL, *colon = strchr(text + repo, ':');
  struct str revision = at ? str_of(at, strcspn(at, ":")) : str_c("main"), file = colon ? str_c(colon + 1) : str_c("");
  *n = (struct hub_name){0};
  for (size_t i = file.n; !at && i > 0; i--) /* the revision may stand at the end, too */
    if (file.p[i - 1] == '@') {
      revision = str_of(file.p + i, file.n - i);
      file.n = i - 1;
      break;
    }
  if (!take_words(str_of(text, repo), true, n->repo, sizeof n->repo))
    return err_set(e, ERR_BAD_INPUT, "expected ORG/NAME, ORG/NAME:FILE or ORG/NAME@REVISION, found \"%s\"",
                   str_escape(str_c(text), shown, sizeof shown));
  if (!take_words(revision, false, n->revision, sizeof n->revision))
    return err_set(e, ERR_BAD_INPUT, "%s: expected the name of a branch, a tag or a commit after @, found \"%s\"", n->repo,
                   str_escape(revision, shown, sizeof shown));
  if (file.n >= sizeof n->file)
    return err_set(e, ERR_TOO_LARGE, "%s: expected a file name of at most %d bytes", n->repo, HUB_PATH_BYTES - 1);
  memcpy(n->file, file.p, file.n);
  n->file[file.n] = 0;
  if (colon && !hub_is_plain_path(n->file))
    return err_set(e, ERR_BAD_INPUT, "%s: expected a file's path in the repository or a number format after the colon, found \"%s\"",
                   n->repo, str_escape(str_c(n->file), shown, sizeof shown));
  return 0;
}

void hub_name_put(struct buf *b, const struct hub_name *n, const char *file) {
  buf_puts(b, n->repo);
  if (strcmp(n->revision, "main")) buf_printf(b, "@%s", n->revision);
  if (*file) buf_printf(b, ":%s", file);
}

void hub_encode(struct buf *b, const char *text, bool keep_slashes) {
  for (; *text; text++)
    if (is_name_byte(*text) || *text == '~' || (keep_slashes && *text == '/')) buf_putc(b, *text);
    else buf_printf(b, "%%%02X", (unsigned)(unsigned char)*text);
}

int hub_folder(struct buf *b, const struct hub_name *n, struct err *e) {
  const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  if (cache && *cache == '/') buf_puts(b, cache);
  else if (home && *home == '/') buf_printf(b, "%s/.cache", home);
  else return err_set(e, ERR_NOT_FOUND, "no folder for pulled models: neither HOME nor XDG_CACHE_HOME is set to one");
  buf_printf(b, "/cygnet/models/%s", n->repo);
  if (strcmp(n->revision, "main")) {
    buf_putc(b, '@');
    hub_encode(b, n->revision, false);
  }
  return 0;
}

/* ---- paths in a repository ---------------------------------------------------------------------------------------------------------- */

bool hub_is_plain_path(const char *path) {
  size_t n = strlen(path);
  if (n == 0 || n >= HUB_PATH_BYTES || !utf8_valid(path, n)) return false;
  for (size_t i = 0, start = 0; i <= n; i++) {
    unsigned char c = (unsigned char)path[i];
    if (i == n || c == '/') {
      if (i == start || i - start > 200 || path[start] == '.') return false;
      start = i + 1;
    } else if (c < 0x20 || c == 0x7f || c == '\\') return false;
  }
  return true;
}

bool hub_is_gguf(const char *path) { return str_ends(str_c(path), ".gguf"); }

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

bool hub_is_projector(const char *path) { return hub_is_gguf(path) && strcasestr(base_name(path), "mmproj"); }

bool hub_is_part(const char *path, size_t *stem, int *number, int *count) {
  enum { SUFFIX_BYTES = 20 }; /* -00002-of-00003.gguf */
  size_t n = strlen(path);
  int64_t no, of;
  if (n <= SUFFIX_BYTES) return false;
  const char *s = path + n - SUFFIX_BYTES;
  if (s[0] != '-' || memcmp(s + 6, "-of-", 4) || strcmp(s + 15, ".gguf") || !str_to_i64(str_of(s + 1, 5), 1, HUB_PARTS_MAX, &no) ||
      !str_to_i64(str_of(s + 10, 5), no, HUB_PARTS_MAX, &of))
    return false;
  *stem = n - SUFFIX_BYTES;
  *number = (int)no;
  *count = (int)of;
  return true;
}

static bool is_alnum(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

bool hub_has_format(const char *path, const char *format) {
  const char *name = base_name(path);
  size_t n = strlen(format);
  if (!is_alnum(*format) || (*format >= '0' && *format <= '9') || !strpbrk(format, "0123456789")) return false;
  for (const char *at = name; (at = strcasestr(at, format)) != NULL; at++) {
    char after = at[n];
    if ((at == name || !is_alnum(at[-1])) && !is_alnum(after) && after != '_') return true;
  }
  return false;
}

/* ---- which file --------------------------------------------------------------------------------------------------------------------- */

static bool is_candidate(const char *path, const char *file) {
  size_t stem;
  int number, count;
  if (!hub_is_gguf(path) || hub_is_projector(path)) return false;
  if (hub_is_part(path, &stem, &number, &count) && number != 1) return false;
  return !*file || hub_has_format(path, file);
}

/* "a.gguf, b.gguf and 3 more" of the candidates for `file`. */
static void put_candidates(struct buf *b, const char *const *paths, size_t n, const char *file) {
  enum { BYTES = 260 };
  char shown[120];
  int left = 0, said = 0;
  for (size_t i = 0; i < n; i++) {
    if (!is_candidate(paths[i], file)) continue;
    str_escape(str_c(paths[i]), shown, sizeof shown);
    if (b->len + strlen(shown) > BYTES) left++;
    else buf_printf(b, "%s%s", said++ ? ", " : "", shown);
  }
  if (left) buf_printf(b, " and %d more", left);
}

int hub_pick_gguf(const char *const *paths, size_t n, const char *file, struct err *e) {
  int found = -1, n_found = 0;
  char shown[120];
  for (size_t i = 0; i < n; i++) {
    if (!strcmp(paths[i], file)) return (int)i;
    if (is_candidate(paths[i], file)) found = (int)i, n_found++;
  }
  if (n_found == 1) return found;
  struct buf b;
  buf_init(&b, 0);
  put_candidates(&b, paths, n, n_found ? file : "");
  str_escape(str_c(file), shown, sizeof shown);
  if (n_found && *file)
    err_set(e, ERR_BAD_INPUT, "several files have %s in their names: add one of them after the colon: %s", shown, buf_cstr(&b));
  else if (n_found)
    err_set(e, ERR_BAD_INPUT, "there are several models here: add a file's name or its number format after a colon: %s", buf_cstr(&b));
  else if (b.len) err_set(e, ERR_NOT_FOUND, "no file %s and none with that format in its name; there are: %s", shown, buf_cstr(&b));
  else err_set(e, ERR_NOT_FOUND, "there is no GGUF here");
  buf_free(&b);
  return -1;
}

/* ---- what was pulled ---------------------------------------------------------------------------------------------------------------- */

struct pulled {
  char **paths; /* below the folder; of what is on its way, too, without ".part". Owned, and each */
  size_t n;
  bool half; /* files of a folder's model are on their way */
};

static void add_path(struct pulled *p, const char *path) {
  size_t n = strlen(path);
  bool on_way = str_ends(str_c(path), ".part");
  char *name = xstrndup(path, on_way ? n - 5 : n);
  if (on_way && !hub_is_gguf(name)) p->half = true;
  for (size_t i = 0; i < p->n; i++)
    if (!strcmp(p->paths[i], name)) {
      free(name);
      return;
    }
  p->paths = xrealloc(p->paths, (p->n + 1) * sizeof *p->paths);
  p->paths[p->n++] = name;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void walk(struct pulled *p, const char *folder, const char *below, int depth) {
  struct buf b;
  buf_init(&b, 0);
  buf_printf(&b, "%s/%s", folder, below);
  DIR *d = opendir(buf_cstr(&b));
  for (struct dirent *x; d && p->n < WALK_FILES_MAX && (x = readdir(d)) != NULL;) {
    if (x->d_name[0] == '.') continue;
    struct stat st;
    buf_clear(&b);
    buf_printf(&b, "%s/%s%s", folder, below, x->d_name);
    if (stat(buf_cstr(&b), &st)) continue;
    buf_clear(&b);
    buf_printf(&b, "%s%s%s", below, x->d_name, S_ISDIR(st.st_mode) ? "/" : "");
    if (!S_ISDIR(st.st_mode)) add_path(p, buf_cstr(&b));
    else if (depth < WALK_DEPTH_MAX) walk(p, folder, buf_cstr(&b), depth + 1);
  }
  if (d) closedir(d);
  buf_free(&b);
}

static bool is_here(const char *folder, const char *path) {
  struct buf b;
  buf_init(&b, 0);
  buf_printf(&b, "%s/%s", folder, path);
  bool here = access(buf_cstr(&b), F_OK) == 0;
  buf_free(&b);
  return here;
}

/* The file, and the rest of its set, lie in the folder. */
static bool is_whole(const char *folder, const char *path) {
  size_t stem;
  int number, count;
  if (!hub_is_part(path, &stem, &number, &count)) return is_here(folder, path);
  for (int i = 1; i <= count; i++) {
    char part[HUB_PATH_BYTES + 32];
    snprintf(part, sizeof part, "%.*s-%05d-of-%05d.gguf", (int)MIN(stem, (size_t)HUB_PATH_BYTES), path, i, count);
    if (!is_here(folder, part)) return false;
  }
  return true;
}

/* *path of the name in its folder; -1 and *e. */
static int find_pulled(const struct hub_name *n, const char *folder, const char *text, struct pulled *p, struct buf *out, struct err *e) {
  if (!*n->file && is_here(folder, "config.json")) {
    if (p->half) return err_set(e, ERR_NOT_FOUND, "%s: only a part of it was pulled: 'cygnet pull %s' goes on", text, text);
    return buf_puts(out, folder), 0;
  }
  int i = hub_pick_gguf((const char *const *)p->paths, p->n, n->file, e);
  if (i < 0) {
    err_prefix(e, "%s: among what was pulled", text);
    return -1;
  }
  if (!is_whole(folder, p->paths[i]))
    return err_set(e, ERR_NOT_FOUND, "%s: only a part of it was pulled: 'cygnet pull %s' goes on", text, text);
  return buf_printf(out, "%s/%s", folder, p->paths[i]), 0;
}

int hub_resolve(const char **path, struct err *e) {
  const char *text = *path;
  struct hub_name n;
  struct buf folder, out;
  int rc = 0;
  if (!text || access(text, F_OK) == 0 || hub_name_parse(&n, text, NULL)) return 0; /* who opens it says what is wrong with it */
  if (hub_is_gguf(n.repo) || str_ends(str_c(n.repo), ".safetensors")) return 0;
  buf_init(&folder, 0);
  buf_init(&out, 0);
  struct pulled p = {0};
  if (hub_folder(&folder, &n, NULL) == 0) walk(&p, buf_cstr(&folder), "", 0);
  if (p.n) {
    qsort(p.paths, p.n, sizeof *p.paths, by_name);
    rc = find_pulled(&n, buf_cstr(&folder), text, &p, &out, e);
  } else
    rc = err_set(e, ERR_NOT_FOUND,
                 "%s: no such file or folder, and no model of that name was pulled: if it is one on a hub, pull it first: 'cygnet pull %s'",
                 text, text);
  for (size_t i = 0; i < p.n; i++) free(p.paths[i]);
  free(p.paths);
  if (rc == 0) {
    free((char *)(uintptr_t)text);
    *path = buf_take(&out, NULL);
  }
  buf_free(&folder);
  buf_free(&out);
  return rc;
}
