/* hub.h — names of models on a Hugging Face-style hub, and the folder where pulled ones lie.
 *
 *   ORG/NAME[@REVISION][:FILE]     FILE: a path in the repository, or a number format that one GGUF's name holds (Q4_K_M)
 *
 * Rules
 *   1. Nothing here touches the network: a name given to -m is looked up among what `cygnet pull` brought, and nowhere else.
 *   2. A path that exists on this machine is never taken for a name.
 *   3. Names of files come from strangers: none becomes a path here before hub_is_plain_path has seen it.
 *   4. What is on its way lies beside its place as FILE.part; a file without one is whole and was checked.
 */
#ifndef CYGNET_HUB_H
#define CYGNET_HUB_H

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

enum { HUB_REPO_BYTES = 200, HUB_REVISION_BYTES = 128, HUB_PATH_BYTES = 512, HUB_PARTS_MAX = 1024 };

struct hub_name {
  char repo[HUB_REPO_BYTES];         /* "org/name" */
  char revision[HUB_REVISION_BYTES]; /* "main" unless another was given */
  char file[HUB_PATH_BYTES];         /* what stood after the colon; "": nothing did */
};

int hub_name_parse(struct hub_name *n, const char *text, struct err *e);
/* "org/name@v2:FILE", as people write it. */
void hub_name_put(struct buf *b, const struct hub_name *n, const char *file);
/* Percent-encoded for an address; slashes stay where keep_slashes is set. */
void hub_encode(struct buf *b, const char *text, bool keep_slashes);

/* ${XDG_CACHE_HOME:-~/.cache}/cygnet/models/org/name, with @REVISION at its end where it is not main. */
int hub_folder(struct buf *b, const struct hub_name *n, struct err *e);

/* A relative path of ordinary names: not empty, no "..", nothing hidden, no control characters, no backslash, valid UTF-8. */
bool hub_is_plain_path(const char *path);
bool hub_is_gguf(const char *path);
/* The part of a model that takes pictures and sound, in a file of its own. */
bool hub_is_projector(const char *path);
/* NAME-00002-of-00003.gguf: its number, how many there are, and the length of NAME; false for any other. */
bool hub_is_part(const char *path, size_t *stem, int *number, int *count);
/* Does the file's name hold this number format as a word of its own? "x-Q4_K_M.gguf" holds Q4_K_M and neither Q4_K nor K_M. A format begins with a letter
 * and has a digit. */
bool hub_has_format(const char *path, const char *format);

/* Which of these paths is meant by `file`: a path among them, or a number format, or "": the one model there is. Of a split set the first part.
 * Its index; -1 and *e, which names what there is, when none or several are. */
int hub_pick_gguf(const char *const *paths, size_t n, const char *file, struct err *e);

/* An option's value that names a model: where it was pulled to, owned in place of *path (owned, may be NULL). Paths stay. -1 and *e. */
int hub_resolve(const char **path, struct err *e);

#endif
