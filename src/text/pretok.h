/* pretok.h — where the Llama 3 tokenizer cuts text into words before it merges anything.
 *
 * The published pattern, tried in this order at each place, by hand (no backtracking, constant stack):
 *
 *   (?i:'s|'t|'re|'ve|'m|'ll|'d)      contraction; s also as U+017F, which folds to it
 *   [^\r\n\p{L}\p{N}]?\p{L}+         letters, with one character that is no line end, letter or number in front
 *   \p{N}{1,3}                        up to three numbers
 *    ?[^\s\p{L}\p{N}]+[\r\n]*         other characters, a blank in front, line ends behind
 *   \s*[\r\n]+                        white space up to its last line end
 *   \s+(?!\S)                         white space but for the last character before something else
 *   \s+
 *
 * Cutting a whole text takes linear time: no character is looked at more than four times. Classes are those of Unicode 16 at least.
 */
#ifndef CYGNET_PRETOK_H
#define CYGNET_PRETOK_H

#include "base/str.h"

#define PRETOK_LLAMA3                                                                                                                      \
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

enum pretok_class { PRETOK_OTHER, PRETOK_LETTER, PRETOK_NUMBER, PRETOK_SPACE };
enum pretok_class pretok_class(uint32_t cp);

/* Bytes of the first word of well-formed UTF-8; 0 only for an empty text. */
size_t pretok_llama3(const char *p, size_t n);

#endif
