/* access.c — keys as digests. */
#include "server/access.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <openssl/crypto.h>

#include "base/log.h"
#include "base/mem.h"

enum { FILE_BYTES_MAX = 1 << 20 };

static bool is_key(struct str key) {
  bool ok = key.n > 0 && key.n <= ACCESS_KEY_BYTES_MAX;
  for (size_t i = 0; ok && i < key.n; i++) ok = key.p[i] > ' ' && key.p[i] < 0x7f;
  return ok;
}

static int bad_key(const char *where, struct err *e) {
  return err_set(e, ERR_BAD_INPUT, "%s: expected a key of 1 to %d visible ASCII characters, without blanks", where, ACCESS_KEY_BYTES_MAX);
}

static void add_key(struct access *a, struct str key) {
  a->keys = xrealloc(a->keys, (size_t)(a->n_keys + 1) * sizeof *a->keys);
  digest_sha256(key.p, key.n, a->keys[a->n_keys++]);
}

static int add_lines(struct access *a, FILE *f, const char *shown, struct err *e) {
  char line[ACCESS_KEY_BYTES_MAX + 3]; /* CR LF NUL */
  for (int number = 1; fgets(line, sizeof line, f); number++) {
    struct str key = str_c(line);
    bool whole = (key.n && key.p[key.n - 1] == '\n') || feof(f);
    while (key.n && strchr("\r\n\t ", key.p[key.n - 1])) key.n--;
    if (line[0] == '#') { /* a comment may be of any length */
      while (!whole && fgets(line, sizeof line, f)) whole = strchr(line, '\n') || feof(f);
      continue;
    }
    if (key.n == 0 && whole) continue;
    if (!whole || !is_key(key)) {
      char where[260];
      snprintf(where, sizeof where, "api-key-file: %s line %d", shown, number);
      return bad_key(where, e);
    }
    add_key(a, key);
  }
  OPENSSL_cleanse(line, sizeof line);
  return ferror(f) ? err_set(e, ERR_IO, "api-key-file: cannot read %s: %s", shown, strerror(errno)) : 0;
}

static int add_file(struct access *a, const char *path, struct err *e) {
  char shown[200];
  struct stat st;
  str_escape(str_c(path), shown, sizeof shown);
  FILE *f = fopen(path, "re");
  if (!f) return err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "api-key-file: cannot read %s: %s", shown, strerror(errno));
  setvbuf(f, NULL, _IONBF, 0); /* no copy of the keys stays behind in a buffer */
  int r, had = a->n_keys;
  if (fstat(fileno(f), &st)) r = err_set(e, ERR_IO, "api-key-file: cannot read %s: %s", shown, strerror(errno));
  else if (S_ISDIR(st.st_mode)) r = err_set(e, ERR_BAD_FILE, "api-key-file: expected %s to be a file, it is a folder", shown);
  else if (st.st_size > FILE_BYTES_MAX) r = err_set(e, ERR_TOO_LARGE, "api-key-file: %s is larger than 1 MiB", shown);
  else r = add_lines(a, f, shown, e);
  if (r == 0 && a->n_keys == had) /* a server that was meant to be closed must not be open */
    r = err_set(e, ERR_BAD_FILE, "api-key-file: expected a key on a line of its own in %s, found none", shown);
  if (r == 0 && S_ISREG(st.st_mode) && (st.st_mode & S_IROTH))
    log_line(LOG_WARN, "server", "everybody on this machine can read the keys in %s", shown);
  fclose(f);
  return r;
}

int access_open(struct access *a, const char *api_key, const char *api_key_file, const char *admin_key, struct err *e) {
  *a = (struct access){0};
  if (api_key) {
    if (!is_key(str_c(api_key))) return bad_key("api-key", e);
    add_key(a, str_c(api_key));
  }
  if (api_key_file && add_file(a, api_key_file, e)) return -1;
  if (admin_key) {
    if (!is_key(str_c(admin_key))) return bad_key("admin-api-key", e);
    digest_sha256(admin_key, strlen(admin_key), a->admin);
    a->has_admin = true;
  }
  return 0;
}

void access_close(struct access *a) {
  free(a->keys);
  *a = (struct access){0};
}

int access_check(const struct access *a, enum access_level level, const struct str *shown, int n_shown) {
  unsigned char digest[DIGEST_BYTES];
  unsigned is_api_key = 0, is_admin = 0;
  for (int i = 0; i < n_shown; i++) {
    if (!shown[i].p) continue;
    digest_sha256(shown[i].p, shown[i].n, digest);
    for (int k = 0; k < a->n_keys; k++)
      is_api_key |= CRYPTO_memcmp(digest, a->keys[k], sizeof digest) == 0; /* all of them, also after a match */
    is_admin |= a->has_admin & (CRYPTO_memcmp(digest, a->admin, sizeof digest) == 0);
  }
  if (level == ACCESS_PUBLIC) return 0;
  if (level == ACCESS_ADMIN && a->has_admin) return is_admin ? 0 : is_api_key ? 403 : 401;
  return a->n_keys == 0 || is_api_key ? 0 : 401;
}
