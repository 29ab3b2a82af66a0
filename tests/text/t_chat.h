/* t_chat.h — what the tests of conversations share: made-up vocabularies that have a family's control tokens, the published lines.
 *
 * A made-up vocabulary knows its control tokens and single bytes, nothing else: enough to render with, and to see whether text stays text. The
 * real ones are downloaded by tools/vocab.py: CYGNET_VOCAB, else build/vocab; tests that need them are skipped without.
 */
#ifndef CYGNET_TESTS_CHAT_H
#define CYGNET_TESTS_CHAT_H

#include "sample.h"

#include "base/buf.h"
#include "text/chat.h"

static const struct {
  int32_t id; /* in the released vocabulary */
  const char *spelling;
} gemma4_control[] = {{0, "<pad>"},
                      {1, "<eos>"},
                      {2, "<bos>"},
                      {3, "<unk>"},
                      {4, "<mask>"},
                      {46, "<|tool>"},
                      {47, "<tool|>"},
                      {48, "<|tool_call>"},
                      {49, "<tool_call|>"},
                      {50, "<|tool_response>"},
                      {51, "<tool_response|>"},
                      {52, "<|\"|>"},
                      {98, "<|think|>"},
                      {100, "<|channel>"},
                      {101, "<channel|>"},
                      {105, "<|turn>"},
                      {106, "<turn|>"},
                      {255999, "<|image>"},
                      {256000, "<|audio>"},
                      {258880, "<|image|>"},
                      {258881, "<|audio|>"},
                      {258882, "<image|>"},
                      {258883, "<audio|>"},
                      {258884, "<|video|>"}},
  llama3_control[] = {{128000, "<|begin_of_text|>"},
                      {128001, "<|end_of_text|>"},
                      {128002, "<|reserved_special_token_0|>"},
                      {128003, "<|reserved_special_token_1|>"},
                      {128004, "<|finetune_right_pad_id|>"},
                      {128005, "<|step_id|>"},
                      {128006, "<|start_header_id|>"},
                      {128007, "<|end_header_id|>"},
                      {128008, "<|eom_id|>"},
                      {128009, "<|eot_id|>"},
                      {128010, "<|python_tag|>"},
                      {128256, "<|image|>"}},
  gemma3_control[] = {{0, "<pad>"},
                      {1, "<eos>"},
                      {2, "<bos>"},
                      {3, "<unk>"},
                      {105, "<start_of_turn>"},
                      {106, "<end_of_turn>"},
                      {255999, "<start_of_image>"},
                      {256000, "<end_of_image>"}};

/* Spelling of a released id, NULL = none of the table. */
static inline const char *released_spelling(enum tok_family f, int64_t id) {
  for (size_t i = 0; f == TOK_GEMMA4 && i < ARRAY_LEN(gemma4_control); i++)
    if (gemma4_control[i].id == id) return gemma4_control[i].spelling;
  for (size_t i = 0; f == TOK_LLAMA3 && i < ARRAY_LEN(llama3_control); i++)
    if (llama3_control[i].id == id) return llama3_control[i].spelling;
  for (size_t i = 0; f == TOK_GEMMA3 && i < ARRAY_LEN(gemma3_control); i++)
    if (gemma3_control[i].id == id) return gemma3_control[i].spelling;
  return NULL;
}

static inline void add_piece(json_t *vocab, const char *spelling) {
  json_object_set_new(vocab, spelling, json_integer((json_int_t)json_object_size(vocab)));
}

/* The 256 characters that stand for bytes in a vocabulary that spells byte by byte. */
static inline void add_byte_letters(json_t *vocab) {
  uint32_t others = 0x100;
  for (uint32_t byte = 0; byte < 256; byte++) {
    bool shown = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
    char spelling[5] = {0};
    utf8_put(shown ? byte : others++, spelling);
    add_piece(vocab, spelling);
  }
}

static inline struct tokenizer *made_up_tokenizer(enum tok_family f) {
  static const char gemma[] = "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\\u2581\"},"
                              "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{},\"merges\":[]},\"added_tokens\":[]}",
                    llama[] =
                        "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\"},"
                        "\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
                        "\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]},\"added_tokens\":[]}",
                    pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
                                "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  json_t *root = json_loads(f == TOK_LLAMA3 ? llama : gemma, 0, NULL);
  assert_non_null(root);
  json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab"), *added = json_object_get(root, "added_tokens");
  if (f == TOK_LLAMA3) {
    add_byte_letters(vocab);
    json_t *split = json_array_get(json_object_get(json_object_get(root, "pre_tokenizer"), "pretokenizers"), 0);
    json_object_set_new(json_object_get(split, "pattern"), "Regex", json_string(pattern));
  }
  for (int64_t id = 0; id < 260000; id++) {
    const char *spelling = released_spelling(f, id);
    if (!spelling) continue;
    if (f != TOK_LLAMA3) add_piece(vocab, spelling);
    json_array_append_new(added,
                          json_pack("{s:I,s:s,s:b}", "id",
                                    (json_int_t)(json_object_size(vocab) - (f != TOK_LLAMA3) + (f == TOK_LLAMA3) * json_array_size(added)),
                                    "content", spelling, "special", 1));
  }
  for (int byte = 0; f != TOK_LLAMA3 && byte < 256; byte++) {
    char spelling[8];
    snprintf(spelling, sizeof spelling, "<0x%02X>", byte);
    add_piece(vocab, spelling);
  }
  char *text = json_dumps(root, 0);
  struct err e = {0};
  struct tokenizer *t = tok_from_json(text, strlen(text), "made up", &e);
  if (!t) fail_msg("%s", e.msg);
  assert_int_equal(tok_family(t), f);
  free(text);
  json_decref(root);
  return t;
}

/* A downloaded vocabulary by its file's name; skips the calling test when there is none. */
static inline struct tokenizer *real_tokenizer(const char *name) {
  char path[1024];
  const char *folder = getenv("CYGNET_VOCAB");
  snprintf(path, sizeof path, "%s/%s", folder && *folder ? folder : test_path("../build/vocab"), name);
  if (access(path, R_OK) != 0) {
    print_message("no %s (python3 tools/vocab.py fetches it): skipped\n", path);
    skip();
  }
  struct err e = {0};
  struct tokenizer *t = tok_open(path, &e);
  if (!t) fail_msg("%s", e.msg);
  return t;
}

static inline struct chat_options line_options(const json_t *line, enum chat_template dflt) {
  const json_t *o = json_object_get(line, "options");
  const char *template = json_string_value(json_object_get(o, "template")), *date = json_string_value(json_object_get(o, "date"));
  if (template) dflt = strstr(template, "small") ? CHAT_GEMMA4_SMALL : CHAT_GEMMA4_LARGE;
  return (struct chat_options){.template = dflt,
                               .no_generation_prompt = json_is_false(json_object_get(o, "add_generation_prompt")),
                               .continue_final_message = json_flag(o, "continue_final_message"),
                               .enable_thinking = json_flag(o, "enable_thinking"),
                               .preserve_thinking = json_flag(o, "preserve_thinking"),
                               .tools_in_system = json_is_false(json_object_get(o, "tools_in_user_message")),
                               .date = date ? date : "2024-07-26",
                               .allow_media = true};
}

#endif
