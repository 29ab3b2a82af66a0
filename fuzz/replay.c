/* replay.c — feeds every file of the given folders to a fuzz target, for builds without a fuzzer. Prints how many.
 * Each input is a block of its exact size, so that an address sanitizer sees the first byte too far. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int feed(const char *path, size_t n) {
  FILE *f = fopen(path, "rb");
  uint8_t *data = malloc(n ? n : 1);
  int ok = f && data && fread(data, 1, n, f) == n;
  if (ok) LLVMFuzzerTestOneInput(data, n);
  else fprintf(stderr, "cannot read %s\n", path);
  free(data);
  if (f) fclose(f);
  return ok ? 0 : -1;
}

static int feed_folder(const char *folder) {
  DIR *d = opendir(folder);
  if (!d) {
    fprintf(stderr, "cannot open %s\n", folder);
    return -1;
  }
  int n = 0, result = 0;
  for (struct dirent *entry; (entry = readdir(d)) && result == 0;) {
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) continue;
    result = feed(path, (size_t)st.st_size);
    n++;
  }
  closedir(d);
  printf("%s: %d inputs\n", folder, n);
  return n > 0 ? result : -1;
}

int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++)
    if (feed_folder(argv[i]) != 0) return 1;
  return argc > 1 ? 0 : 1;
}
