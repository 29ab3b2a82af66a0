/* tok_family.c — what each family's vocabulary means, by spelling.
 *
 * Files are not trusted with this: Gemma 3 GGUFs type [multimodal] and the picture markers as user-defined, which would let plain text
 * reach them, and some type </s>, an ordinary HTML tag of this vocabulary, as control. Gemma 4 GGUFs type the tool and channel markers so.
 */
#include <string.h>

#include "text/vocab.h"

static const struct family_info families[] = {
    [TOK_GEMMA3] = {.name = "Gemma 3", .bos = "<bos>", .eog = {"<eos>", "<end_of_turn>"}},
    [TOK_GEMMA4] = {.name = "Gemma 4", .bos = "<bos>", .eog = {"<eos>", "<turn|>", "<|tool_response>"}},
    [TOK_LLAMA3] = {.name = "Llama 3", .bos = "<|begin_of_text|>", .eog = {"<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"}},
};
const struct family_info *family_info(enum tok_family f) { return &families[f]; }

static bool is_one_of(struct str s, const char *const *names, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (str_is(s, names[i])) return true;
  return false;
}

/* <unused0>, <unused1>, ... */
static bool is_unused(struct str s) {
  const size_t front = strlen("<unused");
  if (!str_starts(s, "<unused") || s.n < front + 2 || s.p[s.n - 1] != '>') return false;
  for (size_t i = front; i < s.n - 1; i++)
    if (s.p[i] < '0' || s.p[i] > '9') return false;
  return true;
}

static bool gemma3_control(struct str s) {
  static const char *const names[] = {"<pad>",          "<eos>",
                                      "<bos>",          "<unk>",
                                      "<mask>",         "<start_of_turn>",
                                      "<end_of_turn>",  "<start_of_image>",
                                      "<end_of_image>", "<image_soft_token>",
                                      "[multimodal]"};
  return is_one_of(s, names, ARRAY_LEN(names)) || is_unused(s);
}

/* Runs of one kind of white space, and HTML tags: special to look at, but text. */
static bool gemma3_text(struct str s) {
  static const char *const tags[] = {"table", "caption", "thead", "tbody", "tfoot", "tr",         "th",     "td",    "h1",
                                     "h2",    "h3",      "h4",    "h5",    "h6",    "blockquote", "strong", "em",    "b",
                                     "i",     "u",       "s",     "sub",   "sup",   "code",       "a",      "html",  "body",
                                     "img",   "span",    "bbox",  "ul",    "li",    "div",        "iframe", "footer"};
  if (s.n >= 3 && s.p[0] == '<' && s.p[s.n - 1] == '>') {
    size_t slash = s.p[1] == '/';
    return is_one_of(str_of(s.p + 1 + slash, s.n - 2 - slash), tags, ARRAY_LEN(tags));
  }
  size_t blank = s.n >= 3 && !memcmp(s.p, "\xE2\x96\x81", 3) ? 3 : 1;
  if (!s.n || s.n % blank || (blank == 1 && s.p[0] != '\n' && s.p[0] != '\t' && s.p[0] != ' ')) return false;
  for (size_t i = blank; i < s.n; i += blank)
    if (memcmp(s.p, s.p + i, blank)) return false;
  return true;
}

/* The 24 added tokens. Everything else is a piece like any other; the HTML tags and <unusedN> are in no merge, so no text reaches them. */
static bool gemma4_control(struct str s) {
  static const char *const names[] = {"<pad>",
                                      "<eos>",
                                      "<bos>",
                                      "<unk>",
                                      "<mask>",
                                      "<|tool>",
                                      "<tool|>",
                                      "<|tool_call>",
                                      "<tool_call|>",
                                      "<|tool_response>",
                                      "<tool_response|>",
                                      "<|\"|>",
                                      "<|think|>",
                                      "<|channel>",
                                      "<channel|>",
                                      "<|turn>",
                                      "<turn|>",
                                      "<|image>",
                                      "<|audio>",
                                      "<|image|>",
                                      "<|audio|>",
                                      "<image|>",
                                      "<audio|>",
                                      "<|video|>"};
  return is_one_of(s, names, ARRAY_LEN(names));
}

/* Names differ from release to release but all have this form, which no ordinary piece has. */
static bool llama3_control(struct str s) { return s.n >= 5 && str_starts(s, "<|") && str_ends(s, "|>"); }

static enum piece_kind gemma3_kind(struct str spelling, enum piece_kind in_file) {
  if (gemma3_control(spelling)) return PIECE_CONTROL;
  if (vocab_byte_spelling(spelling) >= 0) return PIECE_BYTE;
  if (in_file == PIECE_CONTROL && gemma3_text(spelling)) return PIECE_USER;
  return in_file;
}

static enum piece_kind gemma4_kind(struct str spelling) {
  if (gemma4_control(spelling)) return PIECE_CONTROL;
  return vocab_byte_spelling(spelling) >= 0 ? PIECE_BYTE : PIECE_NORMAL;
}

static enum piece_kind llama3_kind(struct str spelling, enum piece_kind in_file) {
  if (llama3_control(spelling)) return PIECE_CONTROL;
  return in_file == PIECE_BYTE ? PIECE_NORMAL : in_file;
}

enum piece_kind family_piece_kind(enum tok_family f, struct str spelling, enum piece_kind in_file) {
  if (in_file == PIECE_NORMAL && spelling.n && spelling.p[0] != '<' && spelling.p[0] != '[') return in_file; /* nearly all */
  switch (f) {
  case TOK_GEMMA3: return gemma3_kind(spelling, in_file);
  case TOK_GEMMA4: return gemma4_kind(spelling);
  case TOK_LLAMA3: return llama3_kind(spelling, in_file);
  }
  return in_file;
}
